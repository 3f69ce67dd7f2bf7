"""A transactional session store for AI-agent servers: conversations, messages and the generating lease in one SQLite file.

    with Store.open("sqlite:///conversations.db", migrate_first=True) as store:
        store.create("c1", messages=[Draft(role="user", content="Hello")])
        turn = store.acquire("c1", "worker-1").value
        store.finish("c1", [Draft(role="assistant", content="Hi!")], token=turn.token)

Errors are in `sessionstore.errors`, values in `sessionstore.model`.
"""

from sessionstore import errors
from sessionstore.aio import AsyncStore
from sessionstore.conversation import GuardedConversation
from sessionstore.drafts import Draft, Save
from sessionstore.errors import SessionStoreError
from sessionstore.limits import Limits
from sessionstore.mirror import Mirror
from sessionstore.model import Answer, Conversation, Generation, Lease, Message, Page, Tag
from sessionstore.store import Store

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncStore",
    "Conversation",
    "Draft",
    "Generation",
    "GuardedConversation",
    "Lease",
    "Limits",
    "Message",
    "Mirror",
    "Page",
    "Save",
    "SessionStoreError",
    "Store",
    "Tag",
    "__version__",
    "errors",
]

"""A transactional session store for AI-agent servers: conversations, messages and the generating lease in one SQLite file.

    with Store.open("sqlite:///conversations.db", migrate_first=True) as store:
        store.create("c1", messages=[Draft(role="user", content="Hello")])
        with store.generate("c1", "worker-1") as turn:
            turn.save("reply-1", "Hi!")

Errors are in `sessionstore.errors`, values in `sessionstore.model`.
"""

from sessionstore import errors
from sessionstore.aio import AsyncStore
from sessionstore.aioturn import AsyncLiveTurn
from sessionstore.conversation import GuardedConversation
from sessionstore.drafts import Draft, Save
from sessionstore.errors import SessionStoreError
from sessionstore.events import Events
from sessionstore.limits import Limits
from sessionstore.liveturn import LiveTurn
from sessionstore.mirror import Mirror
from sessionstore.model import Answer, Conversation, Generation, Lease, Message, Page, Tag
from sessionstore.store import Store, copy, restore

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncLiveTurn",
    "AsyncStore",
    "Conversation",
    "Draft",
    "Events",
    "Generation",
    "GuardedConversation",
    "Lease",
    "Limits",
    "LiveTurn",
    "Message",
    "Mirror",
    "Page",
    "Save",
    "SessionStoreError",
    "Store",
    "Tag",
    "__version__",
    "copy",
    "errors",
    "restore",
]

"""Session stores behind a server, for Python programs (`pip install 'sessionstore[client]'`).

    with Client("http://127.0.0.1:8080") as store:
        store.create("garden")
        with store.generate("garden", "worker-1", messages=[Draft(role="user", content="Any basil?")]) as turn:
            turn.save("reply-1", "Four packets.")

Names, arguments, answers and errors are those of `sessionstore.Store`. Only `transact` is missing: its function runs in the
process that has the database.
"""

from sessionstore.client.awaited import AsyncClient
from sessionstore.client.blocking import Client
from sessionstore.client.events import ClientEvents

__all__ = ["AsyncClient", "Client", "ClientEvents"]

"""The product's own server, with an echo beside it: the same stack, a Starlette route, no database.

python -m benchmarks.server PORT DATABASE SYNCHRONOUS
"""

import sys

import msgspec
import uvicorn
from sessionstore_api.app import create_app
from sessionstore_api.serve import spare_the_collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sessionstore.settings import Settings


class Message(msgspec.Struct):
    """A message, decoded as quickly as can be."""

    role: str
    content: str


class Messages(msgspec.Struct):
    """A body."""

    messages: list[Message]


DECODER, ENCODER = msgspec.json.Decoder(Messages), msgspec.json.Encoder()


async def echo(request: Request) -> Response:
    """What comes in goes out."""
    return Response(ENCODER.encode(DECODER.decode(await request.body())), media_type="application/json")


def application(database: str, synchronous: str = "full") -> Starlette:
    """The product with the echo."""
    app = create_app(Settings(database_url=f"sqlite:///{database}", synchronous=synchronous))
    app.router.routes.append(Route("/echo", echo, methods=["POST"]))
    return app


def main() -> None:
    """Serve as `sessionstore serve` does."""
    port, database, synchronous = sys.argv[1:]
    app = application(database, synchronous)
    spare_the_collector()
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False, proxy_headers=False, server_header=False)


if __name__ == "__main__":
    main()

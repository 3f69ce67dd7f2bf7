"""Events of a server, for programs that may wait."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx2

from sessionstore.client.exchange import Exchange
from sessionstore.client.persistence import Persistence
from sessionstore.client.stream import BROKEN_OFF, Stream
from sessionstore.errors import ConversationDeleted, SessionStoreError

V = TypeVar("V")
Connect = Callable[[Exchange], AbstractContextManager[httpx2.EventSource]]


class ClientEvents(Generic[V]):
    """Events of a server, see `sessionstore.events.Events`. A break of more than the client's patience raises `Unreachable`."""

    def __init__(self, connect: Connect, check_open: Callable[[], None], stream: Stream[V], patience: float) -> None:
        self._connect, self._check_open, self._stream, self._patience = connect, check_open, stream, patience
        self._closed = threading.Event()
        self._response: httpx2.Response | None = None
        self._events = self._follow()

    def close(self) -> None:
        """Follow no more. From any thread."""
        self._closed.set()
        try:
            self._events.close()
        except ValueError:
            # Another thread is reading, and is not woken up by closing what it reads.
            self._wake_reader()

    def _wake_reader(self) -> None:
        response = self._response
        if response is not None:
            with suppress(OSError, KeyError, AttributeError):
                response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _follow(self) -> Generator[V]:
        persistence: Persistence | None = None
        while not self._closed.is_set() and not self._stream.over:
            exchange = self._stream.exchange()
            failure: Exception = BROKEN_OFF
            try:
                for event in self._connection(exchange):
                    persistence = None
                    value = self._stream.take(event)
                    if value is not None:
                        yield value
            except ConversationDeleted:
                if self._stream.begun:
                    return
                raise
            except (httpx2.RequestError, SessionStoreError) as error:
                failure = error
            if not self._closed.is_set() and not self._stream.over:
                self._check_open()
                # Patience begins with the break, however long it was quiet before.
                persistence = persistence or Persistence(exchange, self._patience)
                self._closed.wait(persistence.after(failure))

    def _connection(self, exchange: Exchange) -> Generator[httpx2.ServerSentEvent]:
        with self._connect(exchange) as source:
            self._response = source.response
            for event in source:
                yield event
                if self._stream.over or self._stream.broken or self._closed.is_set():
                    return

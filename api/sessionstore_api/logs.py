"""What is logged, and how: a JSON object a line on stderr, or words where a person looks on. Never a body, a key or a token.

Errors are logged by their kind and the places that they went through, without their words: those may quote what a user said.
"""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import msgspec
import structlog

from sessionstore.settings import Settings

Event = MutableMapping[str, Any]
JSON = structlog.processors.JSONRenderer(serializer=lambda event, **_: msgspec.json.encode(event, enc_hook=str))
"""As bytes: a line for each request has to cost little."""


def configure(settings: Settings) -> None:
    """Log as the settings say: our own words, and those of the libraries that we use."""
    level = logging.getLevelName(settings.log_level.upper())
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        places_of_errors,
    ]
    structlog.configure(
        processors=[*shared, JSON if as_json else structlog.dev.ConsoleRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer) if as_json else structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _configure_libraries(level, shared, as_json=as_json)


def _configure_libraries(level: int, shared: list[Any], *, as_json: bool) -> None:
    """What is logged by other means comes out in the same form."""
    renderers = [JSON, lambda _, __, line: line.decode()] if as_json else [structlog.dev.ConsoleRenderer()]
    handler, named = logging.StreamHandler(sys.stderr), [structlog.stdlib.add_logger_name, *shared]
    final: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=named, processors=final))
    root = logging.getLogger()
    root.handlers, root.level = [handler], max(level, logging.WARNING)
    for name in ("sessionstore", "sessionstore_api"):
        logging.getLogger(name).setLevel(level)


def places_of_errors(_: Any, __: str, event: Event) -> Event:
    """The kind of an error, and where it came from."""
    error = event.pop("exc_info", None)
    error = sys.exc_info()[1] if error is True else error[1] if isinstance(error, tuple) else error
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["places"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
    return event

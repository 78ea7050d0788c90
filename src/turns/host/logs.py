"""The log of a process: one line an event, on standard error.

Both structlog (the engine, the host) and the standard library's logging (fibers, the web server) go
through one handler. No secret gets out: see ``keep_secret``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from streamengine.redact import redact

from .errors import UsageError
from .text import escaped

LEVEL_VARIABLE: Final = "FIBERSCOPE_LOG"
LEVELS: Final = ("debug", "info", "warning", "error")

_VALUE_SHOWN_CHARACTERS: Final = 8000
_PLAIN: Final = re.compile(r"[\w./:@+*-]+", re.ASCII)
_ORDER: Final = ("timestamp", "level", "logger", "event")

_secrets: set[str] = set()


def keep_secret(secret: str) -> None:
    """Never write ``secret``, whatever event or traceback holds it."""
    _secrets.add(secret)


def without_secrets(text: str) -> str:
    """``text`` as the log would show it."""
    return redact(text, _secrets)


def level_of(environment: Mapping[str, str] = os.environ, *, default: str = "info") -> int:
    """The level that the environment asks for. Raises UsageError."""
    name = environment.get(LEVEL_VARIABLE) or default
    if name.lower() not in LEVELS:
        raise UsageError(f"{LEVEL_VARIABLE} is one of {', '.join(LEVELS)}, not {name!r}")
    return logging.getLevelNamesMapping()[name.upper()]


def configure(level: int, *, stream: TextIO | None = None) -> None:
    """Send every logger of this process to ``stream`` (standard error), from ``level`` on."""
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            one_line,
        ],
    )
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Their lines at info say what ours say already, request by request.
    chatty = level if level == logging.DEBUG else max(level, logging.WARNING)
    for name in ("uvicorn", "httpx", "httpcore", "asyncio", "filelock", "sse_starlette"):
        logging.getLogger(name).setLevel(chatty)
    # At debug it writes each chunk that is sent, which is what people and models said.
    logging.getLogger("sse_starlette").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def one_line(_logger: Any, _method: str, event: EventDict) -> str:
    """Render an event: time, level, logger, what happened, then the rest as name=value."""
    head = " ".join(_shown(event[key], quoted=False) for key in _ORDER if key in event)
    rest = (f"{key}={_shown(value)}" for key, value in event.items() if key not in _ORDER)
    # Once more, as the name of a value may say that it is one.
    return without_secrets(" ".join((head, *rest)))


def _shown(value: object, *, quoted: bool = True) -> str:
    # Before it is cut or quoted: what is left of a secret then is none that could be found.
    text = without_secrets(value if isinstance(value, str) else str(value))
    if len(text) > _VALUE_SHOWN_CHARACTERS:
        text = text[:_VALUE_SHOWN_CHARACTERS] + "..."
    if not quoted or _PLAIN.fullmatch(text):
        return escaped(text)
    return escaped(json.dumps(text, ensure_ascii=False))

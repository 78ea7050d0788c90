"""Silence for processes that play thousands of scenarios: nobody reads what they log."""

from __future__ import annotations

import logging

import structlog


def be_quiet() -> None:
    """Drop what this process logs from now on."""
    structlog.configure(processors=[_drop])
    logging.disable(logging.CRITICAL)


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent

"""Fixtures that several tests of the host share."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator

import pytest
import structlog

from turns.host import logs


@pytest.fixture
def log() -> Generator[io.StringIO]:
    """The log as a program of the host configures it; what was there before is put back."""
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    known = [logging.getLogger(name) for name in root.manager.loggerDict]
    levels = {logger: logger.level for logger in known}
    stream = io.StringIO()
    logs.configure(logging.DEBUG, stream=stream)
    try:
        yield stream
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in root.manager.loggerDict:
            logging.getLogger(name).setLevel(levels.get(logging.getLogger(name), logging.NOTSET))

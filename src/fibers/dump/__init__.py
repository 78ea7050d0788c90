"""What is alive: looked at (``tree``, ``chain``), grouped (``groups``), written (``render``)."""

from __future__ import annotations

from fibers.dump.emit import dump_on_signal, write_dump
from fibers.dump.groups import as_json, report
from fibers.dump.render import dump
from fibers.dump.tree import describe, known_scopes, live_fibers, snapshot, where

__all__ = [
    "as_json",
    "describe",
    "dump",
    "dump_on_signal",
    "known_scopes",
    "live_fibers",
    "report",
    "snapshot",
    "where",
    "write_dump",
]

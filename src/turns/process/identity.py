"""Which process it is: a number alone is used again by the system."""

from __future__ import annotations

import os
from pathlib import Path

from streamengine.model.base import CamelModel


class ProcessIdentity(CamelModel):
    """A process that ran, or runs. Two processes never share all three fields."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since the boot of the machine."""
    name: str


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None where none has, or where it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name is in parentheses and may hold any character, also a closing one.
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]), name=name)


def is_alive(process: ProcessIdentity) -> bool:
    """Whether that very process runs. A name may change (by an exec), a start time doesn't."""
    now = identify(process.pid)
    return now is not None and now.start_ticks == process.start_ticks


def members(group: int) -> list[int]:
    """The processes of a group that run, without zombies."""
    found: list[int] = []
    for pid in _pids():
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            continue  # it has just ended
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[2]) == group and fields[0] not in ("Z", "X"):
            found.append(pid)
    return found


def marked(mark: str) -> list[int]:
    """The processes that were started with ``mark``, a NAME=value, in their environment."""
    wanted = mark.encode()
    found: list[int] = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # it has just ended, or is not ours
        if wanted in environment.split(b"\0"):
            found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

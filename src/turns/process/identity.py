"""Which process it is: a number alone is used again by the system."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from streamengine.model.base import CamelModel

MARK_VARIABLE: Final = "FIBERSCOPE_CHILD"
"""In the environment of all that a child starts: how those are found that leave its group."""

# Random, and so nobody else's: a record that names less than that must not end what it finds.
_MARK: Final = rf"^{MARK_VARIABLE}=[0-9a-f]{{16}}$"


class ProcessIdentity(CamelModel):
    """A process that ran, or runs. Two processes never share number, start and boot."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since the boot of the machine."""
    name: str
    boot_id: str | None = None
    """Which boot that was; None in records of older versions, and where nobody can say."""
    mark: Annotated[str, Field(pattern=_MARK)] | None = None
    """NAME=value in the environment of it and of all that it has started."""


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
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]), name=name, boot_id=_boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """Whether that very process runs. A name may change (by an exec), a start time doesn't."""
    now = identify(process.pid)
    return (
        now is not None
        and now.start_ticks == process.start_ticks
        and process.boot_id in (None, now.boot_id)
    )


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


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

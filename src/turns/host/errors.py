"""What stops a root before or while it works, in one line for a person."""

from __future__ import annotations

FAILED = 1
"""Exit code of a root that could not do what it was asked."""

MISUSED = 2
"""Exit code of a command line that asks for something that doesn't exist."""


class HostError(Exception):
    """A root can't go on. The text says what is wrong and what a person can do about it."""

    exit_code = FAILED


class UsageError(HostError):
    """The command line asks for something that doesn't exist or isn't allowed."""

    exit_code = MISUSED

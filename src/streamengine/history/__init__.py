"""What conversations are kept in: rows and the partial of a running stream, durable, by workspace.

The rules stand in synchronous modules that know no event loop (directory, chatlog, partial, files,
recovery); `store` makes effects of them.
"""

from __future__ import annotations

from .directory import FsyncPolicy
from .lock import LockHolder, StateDirLock, StateDirLocked
from .memory import MemoryHistory
from .results import AppendedUser, CommitResult, Loaded, RecoveryReport
from .store import FileHistory, HistoryStore, IoMode, hold
from .usage_log import UsageEntry, UsageSource

__all__ = [
    "AppendedUser",
    "CommitResult",
    "FileHistory",
    "FsyncPolicy",
    "HistoryStore",
    "IoMode",
    "Loaded",
    "LockHolder",
    "MemoryHistory",
    "RecoveryReport",
    "StateDirLock",
    "StateDirLocked",
    "UsageEntry",
    "UsageSource",
    "hold",
]

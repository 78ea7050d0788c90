"""What the operating system refused, as a HistoryError that says what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import final

from ..model.errors import HistoryError


@final
class reported:  # read as a verb: `with reported(...)`
    """Turn an OSError of the block into a HistoryError that names the file and the way out.

    A class, and the path of ``name`` in ``path`` made only for an error: an ending does this dozens
    of times.
    """

    __slots__ = ("_action", "_name", "_path")

    def __init__(self, path: Path, action: str, name: str | None = None) -> None:
        self._path = path
        self._action = action
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, OSError):
            path = self._path if self._name is None else self._path / self._name
            raise _history_error(exc, path, self._action) from exc


def _history_error(error: OSError, path: Path, action: str) -> HistoryError:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return HistoryError(
                "disk_full",
                path,
                f"there is no room to {action} it ({reason})",
                "Free some space on its file system (or raise the quota) and try again; "
                "what was stored before is still there.",
            )
        case errno.ELOOP | errno.ENOTDIR | errno.EISDIR | errno.ENXIO:
            return HistoryError(
                "unsafe_path",
                path,
                f"will not {action} it: it is a symbolic link, or not the kind of file that "
                "belongs there",
                "Look at what it is, then move it away; links are never followed here.",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return HistoryError(
                "unwritable",
                path,
                f"not allowed to {action} it ({reason})",
                "Make the state directory readable and writable for the user of this process.",
            )
        case _:
            return HistoryError(
                "io",
                path,
                f"could not {action} it ({reason})",
                "Check the disk, then try again; what was stored before is untouched.",
            )

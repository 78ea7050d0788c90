"""What the operating system refused, as a HistoryError that says what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..model.errors import HistoryError


@contextmanager
def reported(path: Path, action: str) -> Generator[None]:
    """Turn an OSError of the block into a HistoryError that names the file and the way out."""
    try:
        yield
    except OSError as error:
        raise _history_error(error, path, action) from error


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

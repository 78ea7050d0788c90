"""Where the key of a provider comes from: the environment, or a file that only its owner may read.

Never from a request: who may send a message must not choose what it is paid with.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

from ..model.errors import SendError
from ..redact import Secret

NOT_FOUND: Final = "api_key_not_found"
"""The kind of the SendError of a start without a key; another try makes no sense."""

_FILE_SUFFIX: Final = "_FILE"
_LONGEST_KEY_BYTES: Final = 16_384


def _forget(_key: Secret) -> None:
    """Nobody else wants to know."""


@final
class KeySource:
    """Gives the key when an answer begins, so that a new one is used without a restart.

        KeySource("OPENAI_API_KEY").key()

    Looked for, in this order: ``file``; the variable; the file that the variable with ``_FILE`` at
    its end names. ``on_key`` is called with each key that was found, for who keeps it out of a log.
    """

    def __init__(
        self,
        variable: str,
        *,
        file: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        on_key: Callable[[Secret], object] = _forget,
    ) -> None:
        self.variable = variable
        self._file = file
        self._environment = environment
        self._on_key = on_key

    def key(self) -> Secret:
        """The key. Raises SendError ("api_key_not_found") that says where it was looked for."""
        key = self.find()
        if key is None:
            raise SendError(
                NOT_FOUND,
                f"there is no API key: set {self.variable}, or {self.variable}{_FILE_SUFFIX} to "
                "the path of a file with mode 0600 that holds it",
            )
        return key

    def find(self) -> Secret | None:
        """The key, or None where nobody gives one. Raises SendError for one that can't be used."""
        value, place = self._value()
        if value is None:
            return None
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            # Not as a header: it would be refused there with a message that quotes it.
            raise SendError(NOT_FOUND, f"what {place} holds is no API key: one word of ASCII is")
        key = Secret(value)
        self._on_key(key)
        return key

    def _value(self) -> tuple[str | None, str]:
        if self._file is not None:
            return _read(self._file), str(self._file)
        value = self._environment.get(self.variable, "").strip()
        if value:
            return value, self.variable
        path = self._environment.get(self.variable + _FILE_SUFFIX, "")
        if path:
            return _read(Path(path).expanduser()), path
        return None, self.variable


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # Of the open file, not of the name: nobody changes it in between.
            about = os.fstat(file.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise SendError(
                    NOT_FOUND, f"other users may read the key file {path}: run chmod 600 on it"
                )
            data = file.read(_LONGEST_KEY_BYTES + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SendError(NOT_FOUND, f"the key file {path} can't be read ({why})") from error
    if len(data) > _LONGEST_KEY_BYTES:
        raise SendError(NOT_FOUND, f"the key file {path} is far too large to hold a key")
    return data.decode("utf-8", "replace").strip()

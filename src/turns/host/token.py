"""The token that a caller has to know, and the cookie that a browser gets for it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final, final

import structlog

from .logs import keep_secret
from .state import read_private, write_private

TOKEN_FILE: Final = "token"

_TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes as base64url
_log = structlog.get_logger("turns.host.token")


@final
class AccessToken:
    """One secret a state directory. It outlives the process, so that open pages go on after it."""

    def __init__(self, token: str) -> None:
        self._token = token
        # What the browser keeps can't be used to make another one, nor as the token: cookies go
        # to every port of a host.
        self._cookie = hmac.new(token.encode(), b"fiberscope session", hashlib.sha256).hexdigest()
        keep_secret(token)
        keep_secret(self._cookie)

    def __repr__(self) -> str:
        return "AccessToken(...)"

    @property
    def secret(self) -> str:
        """The token itself: for the URL that is shown once, and for a client of this machine."""
        return self._token

    def url(self, base: str) -> str:
        """The page at ``base``, with the token in the fragment, which browsers send to nobody."""
        return f"{base}/#token={self._token}"

    @property
    def cookie(self) -> str:
        """What a browser that knew the token is known by."""
        return self._cookie

    def matches(self, token: str) -> bool:
        """In constant time."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def matches_cookie(self, cookie: str) -> bool:
        """In constant time."""
        return hmac.compare_digest(cookie.encode("utf-8", "replace"), self._cookie.encode())


def load_or_make(state: Path) -> AccessToken:
    """The token of a state directory that this process holds. Raises HostError.

    A file that others could read, or that holds something else, is replaced: its content may be
    known.
    """
    known = load(state)
    if known is not None:
        return known
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    if (state / TOKEN_FILE).exists():
        _log.warning("the token file was damaged or open to others: there is a new token")
    write_private(state, TOKEN_FILE, token + "\n")
    return AccessToken(token)


def load(state: Path) -> AccessToken | None:
    """The token of a state directory that another process holds, if there is a usable one."""
    text = (read_private(state, TOKEN_FILE) or "").strip()
    return AccessToken(text) if _TOKEN.fullmatch(text) else None

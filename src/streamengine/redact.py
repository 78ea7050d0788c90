"""Secrets: values that never show, and text from which they are taken out.

What a provider answers may hold the key that was sent to it: a 401 that quotes it, a URL with a
password, a header in a traceback. Such text is redacted where it enters, so that it never gets as
far as an event, a row, a log or a dump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Never, final

MASK: Final = "[secret]"

SHORTEST_SECRET: Final = 6
"""In characters. Something shorter stands in ordinary words, which it would garble."""

# The patterns look at each character a bounded number of times: what they search may be made by
# an adversary, on the thread of the loop.
_SHAPES: Final = re.compile(
    # The names that vendors begin their keys with, then what can be part of one.
    r"\b(?:(?:sk|pk|rk|gsk|xai|hf|ghp|gho|glpat)[-_]|AKIA|AIza)[A-Za-z0-9*_-]{8,}"
    # A value in the place where a header has one. It has a digit or is long: words are neither.
    r"|(?P<before>\b(?:bearer|basic)\s+|\b(?:x-)?api[-_ ]?key[\"']?\s*[:=]\s*[\"']?"
    r"|\bauthorization[\"']?\s*[:=]\s*[\"']?(?!bearer\b|basic\b))"
    r"(?=\S{0,19}\d|\S{20})[A-Za-z0-9+/=._~*-]{6,}",
    re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(r"_(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
# Up to the last @ before the path: a password may hold one. It begins at `://` and not at the
# scheme, which would be looked for anew at each letter of a text that has none.
_USERINFO: Final = re.compile(r"(?<=[a-z0-9+.-]://)[^\s/\"'<>]+@", re.IGNORECASE)
# Of a URL, or of a form that is sent.
_QUERY: Final = re.compile(
    r"(?<=[?&])([\w-]{0,32}(?:password|passwd|secret|token|api_?key)=)[^\s&#\"'<>]+",
    re.IGNORECASE,
)


@final
class Secret:
    """A key or a password. Only ``reveal()`` gives it; no repr, format, pickle or dump does.

    key = Secret("...")
    str(key)        # "[secret]"
    key.reveal()    # for the header of a request, and nowhere else
    """

    __slots__ = ("reveal",)

    reveal: Callable[[], str]
    """Gives the value. In a closure, as what prints the attributes of an object would find it."""

    def __init__(self, value: str) -> None:
        self.reveal = lambda: value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.reveal() == other.reveal()

    def __hash__(self) -> int:
        return hash(self.reveal())

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _memo: object) -> Secret:
        return self

    def __reduce__(self) -> Never:
        raise TypeError("a Secret isn't pickled: it would lie in clear wherever the pickle goes")


def redact(text: str, secrets: Iterable[str | Secret] = ()) -> str:
    """``text`` without ``secrets``, and without what has the shape of one.

    Shapes: keys that begin as those of known vendors do, what stands behind ``Bearer`` or
    ``api_key=``, the user and password of a URL, and what its query calls a password. A secret
    under 6 characters is left: it would be found in ordinary words.
    """
    # The longest first: one may be a part of another, and its rest would stay.
    known = {s.reveal() if isinstance(s, Secret) else s for s in secrets}
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    text = _USERINFO.sub(f"{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    return _SHAPES.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    return f"{found['before'] or ''}{MASK}"


def secrets_in(environment: Mapping[str, str]) -> tuple[Secret, ...]:
    """The values of an environment whose names say that they are secret: ``*_API_KEY`` and such."""
    return tuple(Secret(value) for name, value in environment.items() if _SECRET_NAME.search(name))

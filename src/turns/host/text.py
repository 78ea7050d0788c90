"""Text that others wrote, made harmless for a terminal and a log.

A model, a provider and a request may hold escape sequences that repaint a terminal, or line breaks
that forge a line of a log. What shows nothing by itself goes, or is spelled out.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

# These reorder the text around them: what is shown isn't what is there. The newest are the
# isolates (2066 to 2069).
_REORDERING: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)


@lru_cache(maxsize=4096)
def _is_control(character: str) -> bool:
    # Cc: C0, DEL, C1. Zl and Zp: line and paragraph separators. Cs: half of a cut emoji, which no
    # stream can encode.
    return unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") or character in _REORDERING


def for_terminal(text: str) -> str:
    """``text`` without control characters; line feeds and tabs stay, carriage returns don't (they
    would write over the line).
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or not _is_control(c))


def escaped(text: str) -> str:
    """``text`` on one line, with every control character spelled out as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if _is_control(c) else c for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")

"""LocalProvider: a small chat model on this machine, without key and account.

Importing this needs neither the model nor its engine; they are looked for when a stream begins.
"""

from __future__ import annotations

from .errors import LocalModelError
from .provider import LocalProvider

__all__ = ["LocalModelError", "LocalProvider"]

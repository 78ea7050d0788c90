"""Stands in for trustme where it isn't installed: who needs a certificate is skipped."""

from __future__ import annotations

from typing import Any

import pytest


class CA:
    """Makes no certificates."""

    def issue_cert(self, *_names: str) -> Any:
        pytest.skip("needs trustme, which is not installed")

    def configure_trust(self, _context: Any) -> None:
        pytest.skip("needs trustme, which is not installed")

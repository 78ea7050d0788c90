"""The name that tests import the type from."""

from __future__ import annotations

from . import MockerFixture

__all__ = ["MockerFixture"]

"""Stands in for pytest-mock where it isn't installed: who needs ``mocker`` is skipped."""

from __future__ import annotations

from typing import Any

import pytest

MockerFixture = Any


@pytest.fixture
def mocker() -> Any:
    """No mocker."""
    pytest.skip("needs pytest-mock, which is not installed")

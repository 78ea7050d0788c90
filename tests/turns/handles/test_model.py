"""Some lives of the manager against its model (model.py); `make chaos` plays ten thousand."""

from __future__ import annotations

import os
from typing import Final

import pytest

from .model import Turns, settings_for

EXAMPLES: Final = int(os.environ.get("FIBERSCOPE_TURN_EXAMPLES", "20"))

TurnsTest = Turns.TestCase
TurnsTest.settings = settings_for(EXAMPLES)
TurnsTest = pytest.mark.timeout(600)(
    pytest.mark.slow(pytest.mark.spec("T1", "T8", "T10")(TurnsTest))
)

"""Some lives of the manager against its models (model.py, faulty_model.py); `make chaos` plays ten
thousand of each.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from .faulty_model import FaultyTurns
from .model import Turns, settings_for

EXAMPLES: Final = int(os.environ.get("FIBERSCOPE_TURN_EXAMPLES", "20"))

TurnsTest = Turns.TestCase
TurnsTest.settings = settings_for(EXAMPLES)
TurnsTest = pytest.mark.timeout(600)(
    pytest.mark.slow(pytest.mark.spec("T1", "T8", "T10")(TurnsTest))
)

FaultyTurnsTest = FaultyTurns.TestCase
FaultyTurnsTest.settings = settings_for(3 * EXAMPLES)
FaultyTurnsTest = pytest.mark.timeout(600)(
    pytest.mark.slow(pytest.mark.spec("T8", "T9", "T16")(FaultyTurnsTest))
)

"""What a piece of code allocates, and nothing of what other tests left."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def traced() -> Generator[None]:
    """Trace allocations, without the collector: the garbage of other tests would tell of itself
    meanwhile, and a cycle of the code's own shows as growth.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()

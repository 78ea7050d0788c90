"""What a piece of code allocates, and nothing of what other tests left."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

# Other threads are traced, too: xdist's receives the numbers of a thousand tests when it likes.
# That only adds, and seldom; what the code itself allocates is in every run.
_RUNS: Final = 3


async def peak_bytes(work: Callable[[], Awaitable[object]]) -> int:
    """The most that was allocated at once while `work` ran, in the least of a few runs."""
    return min([await _measured(work, at_peak=True) for _ in range(_RUNS)])


async def kept_bytes(work: Callable[[], Awaitable[object]]) -> int:
    """What `work` left allocated, in the least of a few runs."""
    return min([await _measured(work, at_peak=False) for _ in range(_RUNS)])


async def _measured(work: Callable[[], Awaitable[object]], *, at_peak: bool) -> int:
    with _traced():
        await work()
        kept, peak = tracemalloc.get_traced_memory()
    return peak if at_peak else kept


@contextmanager
def _traced() -> Generator[None]:
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

"""Counts of fibers, for who asks for them (LY6).

Nothing is counted until then. Roots are made of the class that ``fibers.root`` says, and what they
fork is of their own; so while somebody counts, roots are of a class that does, and all others pay
nothing. Counting in the run loop was rejected: it would cost each fiber of each program.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Self, final

from fibers import root
from fibers.fiber import Fiber

if TYPE_CHECKING:
    from fibers.loop.protocol import Signal

_counting: tuple[FiberMetrics, ...] = ()


@final
class FiberMetrics:
    """Counts the fibers that begin while it is on, until each has ended.

        with fb.FiberMetrics() as metrics:
            fb.run(main())
        log.info("fibers", extra={"failed": metrics.failed})

    ``start`` and ``stop`` do the same for a whole program. A fiber counts if it was started at an
    edge meanwhile (``run``, ``run_fork``, a Runtime, ``Scope.fork``, an effect awaited in a task, a
    task of the task factory), or forked, at any depth, by one that does. Several may count at once.
    """

    __slots__ = ("failed", "interrupted", "started", "succeeded")

    def __init__(self) -> None:
        self.started: int = 0
        self.succeeded: int = 0
        """Ended with a value."""
        self.failed: int = 0
        """Ended with a Fail or a Die, whatever else is in the cause."""
        self.interrupted: int = 0
        """Ended with interrupts and nothing else."""

    @property
    def ended(self) -> int:
        """Ended in any way."""
        return self.succeeded + self.failed + self.interrupted

    @property
    def live(self) -> int:
        """Started and not ended."""
        return self.started - self.ended

    def start(self) -> None:
        """Count what begins from now on; no effect where it does already."""
        if not any(metrics is self for metrics in _counting):
            _count_with((*_counting, self))

    def stop(self) -> None:
        """Count no new fibers; those that were counted still are when they end."""
        _count_with(tuple(metrics for metrics in _counting if metrics is not self))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return (
            f"<FiberMetrics started={self.started} live={self.live} succeeded={self.succeeded} "
            f"failed={self.failed} interrupted={self.interrupted}>"
        )


def _count_with(metrics: tuple[FiberMetrics, ...]) -> None:
    global _counting
    _counting = metrics
    root.make_fibers_of(_counted if metrics else None)


@cache
def _counted(kind: type[Any]) -> type[Any]:
    """``kind``, counted, and what it forks as well."""
    named: dict[str, Any] = {"__slots__": ("_metrics",)}
    forks = getattr(kind, "_forks", None)  # of another class than its own
    if forks is not None:
        named["_forks"] = _counted(forks)
    return type(f"_Counted{kind.__name__}", (_Counted, kind), named)


class _Counted(Fiber[Any, Any]):
    """A fiber that tells those who counted when it began."""

    __slots__ = ()

    if TYPE_CHECKING:
        _metrics: tuple[FiberMetrics, ...]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._metrics = _counting
        for metrics in _counting:
            metrics.started += 1

    def _end(self, ok: bool, result: Any) -> Signal:
        if not self._children:
            # Else it is called again, with what is left to say, when they are done (WI8). Before
            # the end is told, so that who hears of it reads counts that hold it.
            for metrics in self._metrics:
                if ok:
                    metrics.succeeded += 1
                elif result.has_interrupts_only:
                    metrics.interrupted += 1
                else:
                    metrics.failed += 1
        return super()._end(ok, result)

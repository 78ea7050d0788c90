"""Regions in bodies: ``with uninterruptible() as restore`` (PD17)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, final

from fibers.cause import interrupt_error, interrupt_of
from fibers.fiber import current_fiber
from fibers.loop import hooks
from fibers.loop.inner_task import InnerTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fibers.loop.run_loop import FiberCore


Restore: TypeAlias = "Callable[[], AbstractContextManager[None]]"


def _running(what: str) -> FiberCore:
    fiber = current_fiber()
    if fiber is None:
        raise RuntimeError(
            f"{what} outside of a fiber: call it in an @effect body, or in a coroutine given to "
            "Effect.promise"
        )
    return fiber


def _set(fiber: FiberCore, mask: int, face: InnerTask) -> None:
    fiber._mask = mask
    if fiber._face is not face:
        fiber._face = face
        hooks.make_current(fiber._queue.loop, face)
    if fiber._rare.asked:
        fiber._attn = True


@final
class _Region(AbstractContextManager["Restore"]):
    """One region of one body. Used once; regions nest strictly."""

    __slots__ = (
        "_delivered",
        "_face",
        "_fiber",
        "_mark",
        "_mask",
        "_outer",
        "_restored",
        "_used",
    )

    def __init__(self) -> None:
        self._used = False
        self._fiber: FiberCore | None = None
        self._restored: _Restored | None = None

    def __enter__(self) -> Restore:
        if self._used:
            raise RuntimeError("this uninterruptible() was entered before: make a new one")
        fiber = self._fiber = _running("uninterruptible()")
        self._used = True
        self._outer: Any = fiber._rare.region
        self._mask = fiber._mask
        self._face = fiber._face
        # Only what is thrown inside comes up again (IN12, IN15).
        self._delivered = fiber._delivered
        self._mark = None
        stack = fiber._stack
        if stack and fiber.get_coro() is stack[-1]:
            self._mark = fiber._mark()
            self._mark.enter(self)
        fiber._own_rare().region = self
        _set(fiber, self._mask + 1, InnerTask(fiber, self._mask + 1))
        return self._make_restore

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        fiber = self._fiber
        if fiber is None:
            raise RuntimeError(
                "this uninterruptible() region was left already"
                if self._used
                else "this uninterruptible() was not entered: `with uninterruptible() as restore:`"
            )
        here = current_fiber()
        if here is None or here is not fiber:
            raise RuntimeError("an uninterruptible() region was left in another fiber")
        if fiber._rare.region is not self or self._restored is not None:
            raise RuntimeError("uninterruptible() regions were left out of order: nest them")
        mark = self._mark
        if mark is not None:
            mark.leave(self)
        # A failure's traceback may keep the body's locals, and restore among them: no way on from
        # there to the fiber (PD13).
        self._fiber = self._mark = None
        self._leave(fiber)
        del self._face, self._outer
        if mark and exc and interrupt_of(exc) is not None and not fiber._mask:
            # It is on its way out: thrown once, not again in the cleanup that follows.
            fiber._deliver(mark, mark.own or fiber._own_cause())
        elif fiber._pend and not fiber._mask:
            fiber._attn = True

    def force_close(self, fiber: FiberCore) -> None:
        """The body ended without leaving the region."""
        self._leave(fiber)

    def _leave(self, fiber: FiberCore) -> None:
        fiber._own_rare().region = self._outer
        inner = fiber._face
        _set(fiber, self._mask, self._face)
        if inner is not self._face:  # else a restore() of this region was left open too
            inner._part(fiber)

    def _make_restore(self) -> AbstractContextManager[None]:
        return _Restored(self)


@final
class _Restored(AbstractContextManager[None]):
    """A part of a region in which interrupts land again, if they did outside."""

    __slots__ = ("_face", "_mask", "_region")

    def __init__(self, region: _Region) -> None:
        self._region = region

    def __enter__(self) -> None:
        region = self._region
        fiber = _running("restore()")
        if region._fiber is None:
            raise RuntimeError(
                "restore() of a region that was left already: use it inside the region"
            )
        if fiber is not region._fiber:
            raise RuntimeError("restore() belongs to a region of another fiber")
        if fiber._rare.region is not region or region._restored is not None:
            raise RuntimeError("restore() of a region that is not the innermost open one")
        if fiber._pend and not region._mask:
            own = fiber._own_cause()
            exc = interrupt_error(own.reasons[0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a fiber's own cause holds interrupts only
            mark = region._mark
            if mark is not None:
                mark.exc, mark.cause, mark.own = exc, own, own
            fiber._delivered += 1
            raise exc
        self._mask = fiber._mask
        self._face = fiber._face
        region._restored = self
        _set(fiber, region._mask, region._face)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        region = self._region
        fiber = region._fiber
        if current_fiber() is not fiber or fiber is None or region._restored is not self:
            raise RuntimeError("restore() was left out of order or in another fiber")
        region._restored = None
        _set(fiber, self._mask, self._face)
        if fiber._delivered != region._delivered:
            fiber._pend = True  # thrown in here, caught or not: see __enter__ of the region
        del self._face


def uninterruptible() -> AbstractContextManager[Restore]:
    """An uninterruptible region in a body; masks this fiber only.

        with uninterruptible() as restore:
            conn = await connect()
            with restore():
                await use(conn)
            await conn.close()

    A pending interrupt never leaves the region's end: it is raised at the first suspension after
    it. ``restore()`` raises at once if one is pending. Regions nest strictly; leaving one out of
    order or in another fiber is a RuntimeError. Outside a fiber too.
    """
    return _Region()

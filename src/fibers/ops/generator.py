"""Generators as bodies: ``x = yield from effect`` instead of ``x = await effect``.

The run loop drives coroutines only. A generator runs inside one that delegates to it, so that what
holds for a body holds here as well: frames, regions, interrupts, dumps. Rejected: generators as
frames of the run loop, which would ask two questions at each step of every fiber.

What differs is who declares the errors. A coroutine's await tells a type checker nothing of an
effect's error type, so ``raises=`` says it; a generator's yield type carries it. At run time that
comes to: a failure of an awaited effect goes on as the failure that it is, and whatever else is
raised is a defect (PD4).
"""

from __future__ import annotations

from inspect import CO_ITERABLE_COROUTINE
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeGuard

from fibers.cause import Fail
from fibers.loop import hooks
from fibers.loop.marks import Declares
from fibers.ops.body import BodyOp, enter_body

if TYPE_CHECKING:
    from collections.abc import Generator

    from fibers.loop.run_loop import FiberCore


class AnyBodyOp(BodyOp):
    """A call of an @effect function that is no coroutine function: what it returns tells whether
    it is a generator's body or an awaitable's.
    """

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        body = self.f(*self.args, **self.kwargs)
        if _is_generator(body):
            if self.declares is not None:
                body.close()
                raise TypeError(RAISES_ON_A_GENERATOR)
            # Of this run alone: what it lets pass is known when something leaves it.
            declares = Declares((), self._label())
            fiber._stack.append(declares)
            enter_body(fiber, _run(body, declares))
            return None
        if not hasattr(body, "__await__") and type(body) is not GeneratorType:
            raise TypeError(
                f"{self._label()} is decorated with @effect and returned {body!r}, which can't be "
                "awaited: make it `async def`, or use Effect.sync for a plain function"
            )
        if self.declares is not None:
            fiber._stack.append(self.declares)
        enter_body(fiber, body)
        return None


RAISES_ON_A_GENERATOR = (
    "raises= is for coroutine functions: a generator's errors are those of the effects that it "
    "yields from. Drop it, and fail with `yield from Effect.fail(error)`"
)


def _is_generator(body: Any) -> TypeGuard[Generator[Any, Any, Any]]:
    """Not one made awaitable by types.coroutine."""
    return type(body) is GeneratorType and not body.gi_code.co_flags & CO_ITERABLE_COROUTINE


class _Delegate:
    """``await`` of it is ``yield from`` of the generator."""

    __slots__ = ("generator",)

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self.generator = generator

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.generator


_EVERY_FAILURE = (Exception,)


async def _run(generator: Generator[Any, Any, Any], declares: Declares) -> Any:
    try:
        return await _Delegate(generator)
    except Exception as exc:
        if isinstance(_fiber()._mark().reason_for(exc), Fail):
            declares.raises = _EVERY_FAILURE
        raise
    except BaseException:
        # The fiber's own interrupt, with the failures that it travelled with ([Fail(e), I]).
        declares.raises = _EVERY_FAILURE
        raise


def _fiber() -> FiberCore:
    fiber: FiberCore = hooks.current_task()._fiber
    return fiber

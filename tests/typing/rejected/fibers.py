"""What both checkers have to refuse about fibers, scopes and exits: the marked lines, no other."""

from __future__ import annotations

from typing import assert_never

import fibers as fb
from fibers import Effect, Exit, Fiber, Scope, Success
from tests.typing.kit import Denied, NotFound, User


async def a_fiber_gives_no_other_type(fiber: Fiber[User, NotFound]) -> None:
    number: int = await fiber  # rejected: assignment, reportAssignmentType
    number.bit_length()


def a_fiber_may_still_run(fiber: Fiber[User, NotFound]) -> Exit[User, NotFound]:
    return fiber.poll()  # rejected: return-value, reportReturnType


def an_observer_of_another_exit(fiber: Fiber[User, NotFound]) -> None:
    def observe(exit_: Exit[User, Denied]) -> None:
        raise NotImplementedError(exit_)

    fiber.add_observer(observe)  # rejected: arg-type, reportArgumentType


def effects_instead_of_fibers(loads: list[Effect[User, NotFound]]) -> None:
    Fiber.join_all(loads)  # rejected: arg-type, reportArgumentType


def a_fork_into_no_scope(load: Effect[User, NotFound]) -> None:
    load.fork_in("requests")  # rejected: arg-type, reportArgumentType


def an_unknown_mask(load: Effect[User, NotFound]) -> None:
    load.fork_child(uninterruptible="always")  # rejected: arg-type, reportArgumentType


def an_unknown_strategy() -> None:
    Scope("serial")  # rejected: arg-type, reportArgumentType


def a_finalizer_that_may_fail(last: Effect[None, NotFound]) -> None:
    fb.add_finalizer(lambda _: last)  # rejected: arg-type, reportArgumentType


def a_release_for_another_resource(connect: Effect[User, NotFound]) -> None:
    def release(resource: str, exit_: object) -> Effect[None]:
        return Effect.succeed(None)

    fb.acquire_release(connect, release)  # rejected: arg-type, reportArgumentType


def an_unknown_mode(loads: list[Effect[User, NotFound]]) -> None:
    fb.all_(loads, mode="settled")  # rejected: call-overload, reportCallIssue


def an_unknown_concurrency(loads: list[Effect[User, NotFound]]) -> None:
    fb.all_(loads, concurrency="all")  # rejected: call-overload, reportArgumentType


def a_run_of_a_coroutine() -> None:
    async def plain() -> int:
        return 1

    fb.run(plain())  # rejected: arg-type, reportArgumentType


def an_exit_without_its_failure(exit_: Exit[User, NotFound]) -> str:
    match exit_:
        case Success(user):
            return user.name
        case _:
            assert_never(exit_)  # rejected: arg-type, reportArgumentType


def the_error_of_an_exit_does_not_get_lost(
    exit_: Exit[User, NotFound | Denied],
) -> Exit[User, NotFound]:
    return exit_  # rejected: return-value, reportReturnType

"""What both checkers have to refuse about several effects at once: the marked lines, no other."""

from __future__ import annotations

import fibers as fb
from fibers import Effect, Exit
from tests.typing.kit import NotFound, User, load


def the_error_of_one_of_all_does_not_get_lost(
    loads: list[Effect[User, NotFound]],
) -> Effect[list[User]]:
    return fb.all_(loads)  # rejected: arg-type, reportReturnType


def a_mapping_gives_no_list(loads: dict[str, Effect[User, NotFound]]) -> Effect[list[User]]:
    return fb.all_(loads, mode="result")  # rejected: return-value, reportReturnType


def an_exit_is_no_value(loads: list[Effect[User, NotFound]]) -> Effect[list[User]]:
    return fb.all_(loads, mode="result")  # rejected: return-value, reportReturnType


def the_error_of_an_item_does_not_get_lost(ids: list[str]) -> Effect[list[User]]:
    return fb.for_each(ids, load)  # rejected: arg-type, reportReturnType


def an_item_of_another_type(ids: list[int]) -> None:
    fb.for_each(ids, load)  # rejected: arg-type, reportArgumentType


def an_item_to_a_plain_value(ids: list[str]) -> None:
    fb.for_each(ids, lambda name: User(name))  # rejected: arg-type, reportArgumentType


def the_error_of_a_racer_does_not_get_lost(may: Effect[User, NotFound]) -> Effect[User]:
    return fb.race(may, may)  # rejected: arg-type, reportReturnType


def a_coroutine_is_no_racer() -> None:
    async def plain() -> int:
        return 1

    fb.race(plain())  # rejected: arg-type, reportArgumentType


def exits_are_no_effects(exits: list[Exit[User, NotFound]]) -> None:
    fb.race_all(exits)  # rejected: arg-type, reportArgumentType

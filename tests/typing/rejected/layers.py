"""What both checkers have to refuse about layers: the marked lines, and no other."""

from __future__ import annotations

import fibers as fb
from fibers import Effect, Exit, Layer, Runtime, Tag
from tests.typing.kit import Denied, NotFound, User

UserTag = Tag[User]("user")


def a_service_of_another_type() -> None:
    Layer.succeed(UserTag, "ada")  # rejected: misc, reportArgumentType


def a_build_of_another_type(load: Effect[str]) -> None:
    Layer.effect(UserTag, load)  # rejected: misc, reportArgumentType


def a_coroutine_function_as_a_build() -> None:
    async def load() -> User:
        return User("ada")

    Layer.effect(UserTag, load)  # rejected: arg-type, reportArgumentType


def a_need_that_is_no_tag(load: Effect[User]) -> None:
    Layer.effect(UserTag, load, needs=["db"])  # rejected: list-item, reportArgumentType


def a_build_error_does_not_get_lost(layer: Layer[User, NotFound]) -> Layer[User]:
    return layer  # rejected: return-value, reportReturnType


def a_layer_gives_what_it_says(layer: Layer[str]) -> Layer[User]:
    return layer  # rejected: return-value, reportReturnType


def the_build_may_fail(work: Effect[int], layer: Layer[User, NotFound]) -> Effect[int]:
    return work.provide(layer)  # rejected: arg-type, reportReturnType


def a_service_is_no_layer(work: Effect[int]) -> None:
    work.provide(User("ada"))  # rejected: arg-type, reportArgumentType


def the_run_may_fail_with_the_build(
    work: Effect[int], layer: Layer[User, NotFound]
) -> Exit[int, Denied]:
    return fb.run_exit(work, layer=layer)  # rejected: arg-type, reportReturnType


def a_runtime_may_fail_with_the_build(layer: Layer[User, NotFound]) -> Runtime:
    return Runtime(layer)  # rejected: arg-type, reportReturnType


def a_span_attribute_of_no_kind(work: Effect[int]) -> None:
    work.with_span("work", {"user": User("ada")})  # rejected: dict-item, reportArgumentType

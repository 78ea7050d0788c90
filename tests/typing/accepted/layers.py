"""Layers: what they give and what their build may fail with; what a runtime adds to its runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, assert_type

import fibers as fb
from fibers import Effect, Exit, Fiber, FiberMetrics, Layer, Runtime, Tag
from fibers.testing import TestClock
from tests.typing.kit import E1, E2, Denied, NotFound, User


class Database:
    """A service."""


class Memory(Database):
    """One that satisfies it."""


class Cache:
    """Another service."""


class Repo:
    """One that needs both."""

    def __init__(self, database: Database) -> None: ...


DatabaseTag = Tag[Database]("database")
CacheTag = Tag[Cache]("cache")
RepoTag = Tag[Repo]("repo")


def made(connect: Effect[Memory, NotFound]) -> None:
    assert_type(Layer.succeed(DatabaseTag, Memory()), Layer[Database, Never])
    assert_type(Layer.effect(DatabaseTag, connect), Layer[Database, NotFound])
    assert_type(Layer.scoped(DatabaseTag, connect), Layer[Database, NotFound])
    assert_type(Layer.effect(RepoTag, DatabaseTag.map(Repo)), Layer[Repo, Never])
    assert_type(Layer.effect(RepoTag, DatabaseTag.map(Repo), needs=[CacheTag]), Layer[Repo, Never])


def merged(
    database: Layer[Database, NotFound], cache: Layer[Cache, Denied], repo: Layer[Repo]
) -> None:
    assert_type(database.merge(cache), Layer[Database | Cache, NotFound | Denied])
    assert_type(repo.merge(repo), Layer[Repo, Never])
    assert_type(Layer.merge_all(database, cache), Layer[Database | Cache, NotFound | Denied])
    assert_type(
        Layer.merge_all(database, cache, repo), Layer[Database | Cache | Repo, NotFound | Denied]
    )
    assert_type(Layer.merge_all(repo, repo), Layer[Repo, Never])
    assert_type(
        Layer.merge_all(repo, repo, cache, database),
        Layer[Repo | Cache | Database, Denied | NotFound],
    )


def merged_from_a_list(layers: list[Layer[Database, NotFound]]) -> None:
    assert_type(Layer.merge_all(*layers), Layer[Database, NotFound])


def wired(database: Layer[Database, NotFound], repo: Layer[Repo, Denied]) -> None:
    assert_type(repo.provide(database), Layer[Repo, Denied | NotFound])
    assert_type(repo.fresh(), Layer[Repo, Denied])
    assert_type(repo.launch(), Effect[Never, Denied])
    assert_type(repo.gives, frozenset[str])
    assert_type(repo.needs, frozenset[str])


def a_layer_that_cannot_fail_is_one_that_may(layer: Layer[Memory]) -> Layer[Database, NotFound]:
    return layer


def any_layer(layer: Layer[Any, Any]) -> Layer:
    assert_type(Layer.succeed(DatabaseTag, Memory()).provide(layer), Layer[Database, Any])
    return Layer.succeed(DatabaseTag, Memory())


def provided(load: Effect[User, NotFound], layer: Layer[Database, Denied]) -> None:
    assert_type(load.provide(layer), Effect[User, NotFound | Denied])
    assert_type(load.provide(layer, local=True), Effect[User, NotFound | Denied])
    assert_type(load.provide(Layer.succeed(DatabaseTag, Memory())), Effect[User, NotFound])


def runs(load: Effect[User, NotFound], layer: Layer[Database, Denied]) -> None:
    assert_type(fb.run(load, layer=layer), User)
    assert_type(fb.run_exit(load, layer=layer), Exit[User, NotFound | Denied])
    assert_type(fb.run_exit(load, layer=None), Exit[User, NotFound])


def run_main_takes_a_layer(load: Effect[User, E1], layer: Layer[Any, E2]) -> Callable[[], Never]:
    return lambda: fb.run_main(load, layer=layer, budget=1.5)


async def a_runtime_whose_build_may_fail(
    load: Effect[User, NotFound], layer: Layer[Database, Denied]
) -> Runtime[Denied]:
    runtime = Runtime(layer, clock=TestClock())
    assert_type(runtime, Runtime[Denied])
    assert_type(await runtime.run(load), User)
    assert_type(await runtime.run_exit(load), Exit[User, NotFound | Denied])
    assert_type(runtime.run_fork(load), Fiber[User, NotFound | Denied])
    return runtime


def a_runtime_whose_build_can_not(layer: Layer[Database]) -> list[Runtime]:
    assert_type(Runtime(), Runtime[Never])
    assert_type(Runtime(layer), Runtime[Never])
    return [Runtime(), Runtime(layer)]


def spans(load: Effect[User, NotFound]) -> None:
    assert_type(load.with_span("load"), Effect[User, NotFound])
    assert_type(
        load.with_span("load", attributes={"user.id": "u1", "tries": 3, "tags": ["a"]}),
        Effect[User, NotFound],
    )


def metrics() -> None:
    with FiberMetrics() as counted:
        assert_type(counted.live, int)
    assert_type(counted.failed, int)

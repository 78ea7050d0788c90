"""What `fibers` exports, that all of it is described, and that no primitive hides a method."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import fibers
from fibers.loop.protocol import Node

EXPORTED: Final = {
    # why a fiber ended
    "AsyncFiberError",
    "Cause",
    "CauseError",  # what sandbox() fails with
    "Die",
    "Exit",
    "Fail",
    "Failure",  # the two halves of an Exit, from returns
    "FiberDeadlockError",
    "FiberInterrupted",
    "Interrupt",
    "Success",
    "UnknownError",
    "interrupt_of",
    "set_unhandled_failure_hook",
    # effects
    "Clock",
    "ClockTag",
    "Duration",
    "Effect",
    "EffectGen",  # the return type of a generator body
    "Tag",
    "current_clock",
    "effect",
    "sleep",
    # fibers, scopes, regions
    "Fiber",
    "Scope",
    "acquire_release",
    "acquire_use_release",
    "add_finalizer",
    "current_fiber",
    "current_scope",
    "dump",
    "scoped",
    "task_factory",
    "uninterruptible",
    # again, on a schedule
    "CurrentMetadata",
    "Schedule",
    "ScheduleDone",
    "ScheduleMetadata",
    # async iteration
    "for_each_async",
    "from_async_iterable",
    "to_async_iterable",
    # several at once
    "all_",
    "for_each",
    "race",
    "race_all",
    "race_all_first",
    "race_first",
    # what owns fibers and resources
    "Cache",
    "ExceededCapacityError",  # what a full RcMap fails with
    "FiberHandle",
    "FiberMap",
    "FiberSet",
    "Pool",
    "RcMap",
    "RcRef",
    "Resource",
    "ScopedRef",
    # signals
    "AbortController",
    "AbortError",
    "AbortSignal",
    # what fibers tell each other with
    "Deferred",
    "Done",  # what takers of an ended queue fail with
    "Latch",
    "PubSub",
    "Queue",
    "Semaphore",
    "Subscription",
    "SubscriptionRef",
    # services that are built and released, and counts
    "FiberMetrics",
    "Layer",
    # edges
    "Runtime",
    "run",
    "run_callback",
    "run_exit",
    "run_fork",
    "run_main",
    "run_sync",
}
"""The public names. One that is added belongs here too: it is a promise to users."""

CONSTANTS: Final = {"ClockTag", "CurrentMetadata", "Duration", "EffectGen", "Exit"}
"""Names of values and of type aliases: their description is the string after the assignment."""

DESCRIBED: Final = [
    fibers.Effect,
    fibers.Fiber,
    fibers.Scope,
    fibers.Schedule,
    fibers.Layer,
    fibers.Deferred,
    fibers.Latch,
    fibers.PubSub,
    fibers.Queue,
    fibers.Semaphore,
    fibers.Subscription,
    fibers.SubscriptionRef,
]
"""Classes each of whose public methods has a docstring of its own."""


def all_modules() -> list[ModuleType]:
    """Every module of the package, imported: only then are all subclasses known."""
    found = pkgutil.walk_packages(fibers.__path__, "fibers.")
    modules = [importlib.import_module(module.name) for module in found]
    # What `make native` built has no text to read, and defines no effect of its own.
    return [module for module in modules if str(module.__file__).endswith(".py")]


MODULES: Final = all_modules()


def subclasses_of(base: type) -> list[type]:
    """All of them, at any depth, each once."""
    found: dict[type, None] = {}
    todo = [base]
    while todo:
        subclasses: list[type] = todo.pop().__subclasses__()
        for sub in subclasses:
            # A test's own class is not the package's.
            if sub not in found and sub.__module__.split(".")[0] == "fibers":
                found[sub] = None
                todo.append(sub)
    return list(found)


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties with a public name, inherited ones included, as functions."""
    for name in dir(cls):
        member: Any = inspect.getattr_static(cls, name)
        # A staticmethod and a property keep their function; any other member is taken as it is.
        function: Any = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def described_constants(module: ModuleType) -> set[str]:
    """Names that the module assigns with a string literal right after the assignment."""
    assert module.__file__ is not None
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    found: set[str] = set()
    for before, after in pairwise(body):
        match before:
            # With an annotation, or as a TypeAliasType, which takes none.
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                pass
            case _:
                continue
        if (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found.add(name)
    return found


EFFECT_METHODS: Final = {name for name, _ in public_methods(fibers.Effect)}
EFFECT_CLASSES: Final = subclasses_of(fibers.Effect)
PRIMITIVES: Final = [c for c in subclasses_of(Node) if c.__module__.startswith("fibers.ops.")]


def test_the_exported_names_are_the_public_ones() -> None:
    assert sorted(EXPORTED) == sorted(fibers.__all__)


def test_nothing_else_has_a_public_name() -> None:
    """Beside submodules, which an import of theirs puts there."""
    names = {
        name
        for name, value in vars(fibers).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }

    assert EXPORTED | {"annotations"} == names


@pytest.mark.parametrize("name", sorted(EXPORTED - CONSTANTS))
def test_an_exported_class_or_function_has_a_docstring(name: str) -> None:
    exported = getattr(fibers, name)

    assert inspect.isclass(exported) or inspect.isfunction(exported)
    assert (exported.__doc__ or "").strip()


def test_each_exported_constant_is_described() -> None:
    described: set[str] = set()
    for module in MODULES:
        described |= described_constants(module)

    assert not CONSTANTS - described


@pytest.mark.parametrize("cls", DESCRIBED, ids=lambda cls: cls.__name__)
def test_each_public_method_has_a_docstring(cls: type) -> None:
    bare = [name for name, method in public_methods(cls) if not (method.__doc__ or "").strip()]

    assert not bare


@pytest.mark.parametrize("cls", EFFECT_CLASSES, ids=lambda cls: cls.__qualname__)
def test_an_effect_class_hides_no_method_of_effect(cls: type) -> None:
    """A slot `map` in a primitive would win over Effect.map: it stands first in the bases."""
    hidden = [
        name
        for name in sorted(EFFECT_METHODS)
        if inspect.getattr_static(cls, name) is not inspect.getattr_static(fibers.Effect, name)
    ]

    assert not hidden


@pytest.mark.parametrize("cls", PRIMITIVES, ids=lambda cls: cls.__qualname__)
def test_a_primitive_has_no_name_of_an_effects_method(cls: type) -> None:
    """Also one that has no public face yet."""
    assert not EFFECT_METHODS & vars(cls).keys()


def test_the_walk_finds_effects_and_primitives() -> None:
    """The tests above would pass on nothing."""
    names = {cls.__qualname__ for cls in (*EFFECT_CLASSES, *PRIMITIVES)}

    assert {"Tag", "_Map", "_Close", "_Race", "_Join", "_TestSleep", "MapOp", "RaceOp"} <= names
    assert {"map", "catch", "fork_in", "succeed"} <= EFFECT_METHODS

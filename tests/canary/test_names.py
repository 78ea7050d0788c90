"""Canaries that need nothing but Python: the names without which fibers can't be imported."""

from __future__ import annotations

import asyncio
import sys
from asyncio import base_tasks
from typing import Any, Final

import pytest

_CURRENT: Final = "_swap_current_task" if sys.version_info >= (3, 12) else "_current_tasks"

_ANY_GROUP: Any = asyncio.TaskGroup

# Of which object, which name.
NEEDED_AT_IMPORT: Final[list[tuple[str, Any, str]]] = [
    ("asyncio", asyncio, "_get_running_loop"),
    ("asyncio.tasks", asyncio.tasks, "_register_task"),
    ("asyncio.tasks", asyncio.tasks, "_unregister_task"),
    ("asyncio.tasks", asyncio.tasks, _CURRENT),
    ("asyncio.futures", asyncio.futures, "_get_loop"),
    ("asyncio.tasks", asyncio.tasks, "_task_name_counter"),
    ("asyncio.base_tasks", base_tasks, "_task_get_stack"),
    ("asyncio.base_tasks", base_tasks, "_task_print_stack"),
    ("asyncio.base_tasks", base_tasks, "_task_repr_info"),
    ("asyncio.TaskGroup", asyncio.TaskGroup, "_on_task_done"),
    ("asyncio.TaskGroup", asyncio.TaskGroup, "__aexit__"),
    ("asyncio.Condition", asyncio.Condition, "wait"),
    ("asyncio", asyncio, "wait_for"),
]


@pytest.mark.parametrize(("where", "owner", "name"), NEEDED_AT_IMPORT)
def test_the_name_is_there(where: str, owner: Any, name: str) -> None:
    """By which fibers.loop.hooks or fibers.loop.traps binds it when it is imported."""
    assert hasattr(owner, name), (
        f"{where}.{name} is gone: src/fibers/loop/hooks.py or traps.py binds it"
    )


@pytest.mark.parametrize("owner", [_ANY_GROUP._on_task_done, asyncio.wait_for])
def test_it_is_a_function_in_python(owner: Any) -> None:
    """Whose code object tells its frame from others."""
    assert hasattr(owner, "__code__"), f"{owner} has no code object: loop/traps.py reads it"

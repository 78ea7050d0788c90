"""The task factory, as loops take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_type

import fibers as fb


def a_factory_for_a_loop(loop: asyncio.AbstractEventLoop, scope: fb.Scope) -> None:
    assert_type(fb.task_factory(scope=scope), Callable[..., Any])
    loop.set_task_factory(fb.task_factory(scope=scope))

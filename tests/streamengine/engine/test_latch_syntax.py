"""The ending latch, looked at in the syntax tree: nothing can come between check and set."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from streamengine import cancel

CLASS, FUNCTION, LATCH = "Canceller", "begin", "stop"


def faults(source: str) -> list[str]:
    """What is wrong with the latch in this module; nothing if it is checked and set at once."""
    functions = [
        node
        for owner in ast.walk(ast.parse(source))
        if isinstance(owner, ast.ClassDef) and owner.name == CLASS
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == FUNCTION
    ]
    if len(functions) != 1:
        return [f"{len(functions)} functions {CLASS}.{FUNCTION}"]
    (function,) = functions
    found: list[str] = []
    if isinstance(function, ast.AsyncFunctionDef):
        found.append(f"{FUNCTION} is a coroutine function")
    # An effect's body is one too, as are the bodies of other decorators.
    found += [f"{FUNCTION} is decorated" for _ in function.decorator_list]
    for node in ast.walk(function):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom):
            found.append(f"line {node.lineno} can suspend")
    checks = [node for node in ast.walk(function) if isinstance(node, ast.If) and _asks(node.test)]
    if len(checks) != 1:
        return [*found, f"the latch is checked {len(checks)} times"]
    if not checks[0].body or not _sets(checks[0].body[0]):
        found.append("the latch is not set first thing after its check")
    if sum(_sets(node) for node in ast.walk(ast.parse(source))) != 1:
        found.append("the latch is set elsewhere too, or nowhere")
    return found


def _is_latch(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == LATCH


def _asks(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and _is_latch(node.left)
        and isinstance(node.ops[0], ast.Is)
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
        for node in ast.walk(test)
    )


def _sets(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(_is_latch(target) for target in node.targets)


GOOD = """
class Canceller:
    def begin(self, stream, wish):
        if stream.stop is None and stream.terminal is None:
            stream.stop = wish
            run_fork(self._cancel(stream, wish))
"""

AWAITS = """
class Canceller:
    async def begin(self, stream, wish):
        if stream.stop is None:
            await stream.writer.flush()
            stream.stop = wish
            run_fork(self._cancel(stream, wish))
"""

EFFECT = GOOD.replace("    def", "    @effect\n    async def")

SET_LATE = """
class Canceller:
    def begin(self, stream, wish):
        if stream.stop is None:
            run_fork(self._cancel(stream, wish))
            stream.stop = wish
"""

SET_TWICE = (
    GOOD
    + """
    async def _cancel(self, stream, wish):
        stream.stop = wish
"""
)


@pytest.mark.spec("VI14", "E4")
def test_no_suspension_stands_between_the_check_and_the_set_of_the_latch() -> None:
    """A stop and a close of one tick could otherwise both begin a cleanup."""
    source = Path(inspect.getfile(cancel)).read_text(encoding="utf-8")

    assert faults(source) == []


@pytest.mark.parametrize("source", [AWAITS, EFFECT, SET_LATE, SET_TWICE, "class Canceller: pass"])
def test_the_look_at_the_latch_finds_what_it_looks_for(source: str) -> None:
    """An await in between, an effect, code that runs before the set, a second place, none."""
    assert faults(source) != []


def test_the_look_at_the_latch_accepts_a_right_one() -> None:
    assert faults(GOOD) == []

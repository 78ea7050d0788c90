"""The mutants of a module: small changes, each of which some test should notice.

Cosmic Ray finds the places and changes the text. Its set of operators is cut down to those whose
mutants a reader would call a bug, and statements that can be forgotten are added: what an
interrupt needs is mostly an assignment that stands somewhere.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from typing_extensions import override

_OPERATORS: Final = (
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBreakWithContinue",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ZeroIterationForLoop",
)


@dataclass(frozen=True)
class Mutant:
    """One change. ``lines``: the statement that it changes, first and last line."""

    file: str
    within: str
    operator: str
    was: str
    now: str
    lines: tuple[int, int]
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays the same when lines are added elsewhere in the file."""
        return self.file, self.within, self.was, self.now


class ForgetStatement:
    """An operator as Cosmic Ray's: an assignment or a call in a function becomes `pass`.

    `del` is left alone: what it cuts is a cycle, which only a newer Python or a collection shows.
    """

    def __init__(self) -> None:
        # Only `make mutation` installs it; what else is here works without.
        self._leaves: Any = importlib.import_module("parso.python.tree")

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Where it can change `node`."""
        if node.type != "simple_stmt" or node.children[0].type not in ("expr_stmt", "atom_expr"):
            return
        if self._leaves.search_ancestor(node, "funcdef") is not None:
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The changed node."""
        first = node.get_first_leaf()
        node.children[0] = self._leaves.Keyword("pass", first.start_pos, first.prefix)
        return node


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of one module that is neither the module itself nor one of the others."""
    trees: Any = importlib.import_module("cosmic_ray.ast")
    mutating: Any = importlib.import_module("cosmic_ray.mutating")
    plugins: Any = importlib.import_module("cosmic_ray.plugins")
    seen = {fingerprint(source)}
    spans = _Spans(source)
    tree = trees.get_ast(source)
    found: list[Mutant] = []
    operators: list[tuple[str, Any]] = [
        (name, plugins.get_operator(f"core/{name}")()) for name in _OPERATORS
    ]
    operators.append(("ForgetStatement", ForgetStatement()))
    for name, operator in operators:
        starts = [
            start
            for node in trees.ast_nodes(tree)
            for start, _ in operator.mutation_positions(node)
        ]
        for occurrence, (line, _) in enumerate(starts):
            changed: str = mutating.mutate_code(source, operator, occurrence)
            try:
                mark = fingerprint(changed)
            except SyntaxError:
                continue
            if mark in seen:
                continue
            seen.add(mark)
            was, now = _difference(source, changed)
            within, lines = spans.at(line)
            found.append(Mutant(file, within, name, was, now, lines, changed))
    return found


def diff_of(source: str, mutant: Mutant) -> str:
    """The change, for people."""
    lines = difflib.unified_diff(
        source.splitlines(), mutant.source.splitlines(), mutant.file, mutant.file, "", "", 2, ""
    )
    return "\n".join(lines)


# ------------------------------------------------------------------------- the same in other words


def fingerprint(source: str) -> int:
    """Equal where Python runs the same: `not a is b` and `a is not b`, another annotation."""
    tree = _Runs().visit(ast.parse(source))
    # Through text, so that no position differs.
    code = compile(ast.unparse(tree), "", "exec", dont_inherit=True)
    return hash(_content(code))


def _content(code: CodeType) -> tuple[object, ...]:
    constants: tuple[object, ...] = tuple(
        _content(c) if isinstance(c, CodeType) else (type(c).__name__, repr(c))
        for c in code.co_consts
    )
    return (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_exceptiontable,
        constants,
    )


class _Runs(ast.NodeTransformer):
    """Leaves what is evaluated when the program runs."""

    @override
    def visit_If(self, node: ast.If) -> ast.AST | None:
        test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)

    @override
    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    @override
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    @override
    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    @override
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))


# ------------------------------------------------------------------------------ where it stands


class _Spans:
    """Of each line: the function or class around it, and the statement that it belongs to."""

    def __init__(self, source: str) -> None:
        self._statement: dict[int, tuple[int, int]] = {}
        self._within: dict[int, str] = {}
        self._walk(ast.parse(source), "")

    def at(self, line: int) -> tuple[str, tuple[int, int]]:
        return self._within.get(line, ""), self._statement.get(line, (line, line))

    def _walk(self, node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{within}.{child.name}".lstrip(".")
            if isinstance(child, ast.stmt):
                body: list[ast.stmt] | None = getattr(child, "body", None)
                end = body[0].lineno - 1 if body else child.end_lineno or child.lineno
                # Of a compound statement only the head; what is inside comes later and wins.
                span = child.lineno, max(end, child.lineno)
                for line in range(child.lineno, (child.end_lineno or end) + 1):
                    self._within[line] = name
                    self._statement[line] = span if line <= span[1] else (line, line)
            self._walk(child, name)


def _difference(before: str, after: str) -> tuple[str, str]:
    was: list[str] = []
    now: list[str] = []
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line.startswith("- "):
            was.append(line[2:].strip())
        elif line.startswith("+ "):
            now.append(line[2:].strip())
    return "\n".join(was), "\n".join(now)

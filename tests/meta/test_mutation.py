"""`make mutation`: which mutants there are, which tests they meet, and what the outcome says."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tools.mutation import __main__ as mutation
from tools.mutation import judged
from tools.mutation.mutants import Mutant, diff_of, fingerprint, mutants_of

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
class Gate:
    def open(self, times: int) -> bool:
        self.count += times
        if times < 2 and self.ready:
            return True
        return False
"""

needs_cosmic_ray = pytest.mark.skipif(
    importlib.util.find_spec("cosmic_ray") is None, reason="`make mutation` installs it"
)


def changes(source: str) -> list[tuple[str, str]]:
    """What each mutant of ``source`` makes of which line."""
    return [(mutant.was, mutant.now) for mutant in mutants_of("gate.py", source)]


# ---- mutants


@needs_cosmic_ray
def test_each_kind_of_bug_is_a_mutant() -> None:
    found = changes(SOURCE)

    assert ("self.count += times", "pass") in found
    assert ("if times < 2 and self.ready:", "if times <= 2 and self.ready:") in found
    assert ("if times < 2 and self.ready:", "if times < 3 and self.ready:") in found
    assert ("if times < 2 and self.ready:", "if times < 2 or self.ready:") in found
    assert ("return True", "return False") in found
    assert ("return False", "return True") in found


@needs_cosmic_ray
def test_no_two_mutants_run_alike() -> None:
    """`not a is b` and `a is not b` are one bug."""
    source = "def differ(a, b):\n    return a is b\n"
    sources = [mutant.source for mutant in mutants_of("differ.py", source)]

    assert len(sources) > 0
    assert len({fingerprint(each) for each in [source, *sources]}) == len(sources) + 1


@needs_cosmic_ray
def test_a_mutant_says_where_it_stands() -> None:
    mutant = next(m for m in mutants_of("gate.py", SOURCE) if m.now == "pass")

    assert mutant.key == ("gate.py", "Gate.open", "self.count += times", "pass")
    assert mutant.lines == (3, 3)
    assert "-        self.count += times\n+        pass" in diff_of(SOURCE, mutant)


@needs_cosmic_ray
def test_a_statement_outside_of_a_function_is_not_forgotten() -> None:
    assert changes("limit = make()\n") == []


@pytest.mark.parametrize(
    "other",
    [
        "def f(a):\n    return a is not None\n",
        "def f(a: str) -> bool:\n    return a is not None\n",
        "def f(a):\n\n    return not (a is None)\n",
        "from typing import TYPE_CHECKING\n",
    ],
)
def test_annotations_and_layout_are_no_difference(other: str) -> None:
    base = "def f(a):\n    return not a is None\n"
    guarded = f"{other}if TYPE_CHECKING:\n    import json\n"

    assert fingerprint(guarded) == fingerprint(other)
    assert (fingerprint(other) == fingerprint(base)) == ("def" in other)


def test_what_runs_differently_is_a_difference() -> None:
    sources = [f"def f(a):\n    return a {how} 1\n" for how in ("<", "<=", "==", "+", "-")]

    assert len({fingerprint(source) for source in sources}) == len(sources)


# ---- tests


def a_mutant(lines: tuple[int, int], *, file: str = "gate.py", now: str = "pass") -> Mutant:
    return Mutant(file, "Gate.open", "ForgetStatement", "self.count += times", now, lines, SOURCE)


def a_reach(seconds: list[float], lines: dict[str, list[int]]) -> mutation.Reach:
    tests = [f"tests/test_a.py::test_{n}" for n in range(len(seconds))]
    return mutation.Reach(tests, seconds, {"gate.py": lines}, [])


def test_a_mutant_meets_the_tests_that_run_it_cheapest_first() -> None:
    reach = a_reach([0.3, 0.1, 0.2], {"3": [0, 1], "4": [2]})

    assert reach.tests_for(a_mutant((3, 3))) == [1, 0]
    assert reach.tests_for(a_mutant((3, 4))) == [1, 2, 0]


def test_what_only_an_import_runs_meets_every_test_and_what_nothing_runs_none() -> None:
    reach = a_reach([0.2, 0.1], {"3": []})

    assert reach.tests_for(a_mutant((3, 3))) == [1, 0]
    assert reach.tests_for(a_mutant((5, 5))) == []


def test_slow_tests_are_left_out_where_enough_others_run_it() -> None:
    quick = mutation._ENOUGH_TESTS
    reach = a_reach([*[0.1] * quick, 9.0], {"3": list(range(quick + 1)), "4": [0, quick]})

    assert quick not in reach.tests_for(a_mutant((3, 3)))
    assert reach.tests_for(a_mutant((4, 4))) == [0, quick]


def test_the_first_batch_is_small_and_of_few_files_and_nothing_is_lost() -> None:
    tests = [f"tests/test_{n % 10}.py::test_{n}" for n in range(300)]
    first, rest = mutation.batches(tests)

    assert len(first) <= mutation._FIRST_BATCH
    assert len({test.partition("::")[0] for test in first}) == mutation._FILES_IN_FIRST_BATCH
    assert sorted(first + rest) == sorted(tests)
    assert mutation.batches(tests[:1]) == [tests[:1]]


# ---- judged


ENTRY = judged.entry_for(("gate.py", "Gate.open", 'was = "x"', "pass"))
JUDGED = ENTRY.replace('why = ""', 'why = "It costs time only."')


def test_an_entry_that_is_printed_can_be_completed_and_read() -> None:
    assert judged.read(JUDGED) == {
        ("gate.py", "Gate.open", 'was = "x"', "pass"): "It costs time only."
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY, "needs"),
        (ENTRY.replace('why = ""', ""), "needs"),
        (ENTRY.replace('why = ""', 'why = " "'), "needs"),
        (ENTRY.replace('why = ""', "why = 5"), "needs"),
        (f"{JUDGED}\n{JUDGED}", "twice"),
    ],
)
def test_an_entry_without_a_reason_or_twice_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged.read(text)


def test_the_entries_of_the_tree_can_be_read() -> None:
    assert all(judged.read(judged.FILE.read_text("utf-8")).values())


# ---- the outcome


@pytest.fixture
def of_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tree with one module, whose report lies beside it."""
    (tmp_path / "gate.py").write_text(SOURCE, "utf-8")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "REPORT", tmp_path / "build" / "mutation.json")
    return tmp_path


def outcomes(killed: int, survived: int) -> list[mutation.Result]:
    """So many results, each of another mutant."""
    ends = ["killed"] * killed + ["survived"] * survived
    return [
        mutation.Result(a_mutant((3, 3), now=f"pass  # {n}"), end, "", 0.0)
        for n, end in enumerate(ends)
    ]


@pytest.mark.usefixtures("of_gate")
@pytest.mark.parametrize(("survived", "good"), [(0, True), (5, True), (6, False)])
def test_at_most_five_in_a_hundred_may_survive(
    survived: int, good: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    results = outcomes(100 - survived, survived)
    verdict = mutation.report(results, [r.mutant for r in results], {})
    said = capsys.readouterr().out

    assert verdict is good
    assert f"100 of 100 mutants tried: {100 - survived} killed" in said
    assert said.count("[[survivor]]") == survived


@pytest.mark.usefixtures("of_gate")
def test_a_judged_survivor_does_not_count() -> None:
    results = outcomes(9, 1)
    reasons = {results[-1].mutant.key: "It costs time only."}

    assert mutation.report(results, [r.mutant for r in results], reasons)


@pytest.mark.usefixtures("of_gate")
def test_a_judged_mutant_that_is_gone_fails_and_one_that_is_noticed_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = outcomes(10, 0)
    mutants: list[Any] = [r.mutant for r in results]
    key = results[0].mutant.key

    noticed = mutation.report(results, mutants, {key: "It costs time only."})
    said = capsys.readouterr().out
    gone = mutation.report(results, mutants[1:], {key: "It costs time only."})

    assert noticed
    assert "a test notices it by now" in said
    assert not gone
    assert "no such mutant any more" in capsys.readouterr().out


@pytest.mark.usefixtures("of_gate")
def test_nothing_tried_is_no_success() -> None:
    assert not mutation.report([], [a_mutant((3, 3))], {})

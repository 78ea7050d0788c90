"""The manager of turns beside its models (tests/turns/handles), by the thousand examples."""

from __future__ import annotations

import concurrent.futures
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.quiet import be_quiet
from tests.turns.handles.faulty_model import FaultyTurns
from tests.turns.handles.model import Turns, settings_for

EXAMPLES_VARIABLE: Final = "FIBERSCOPE_TURN_EXAMPLES"
BATCH_EXAMPLES: Final = 250
"""Of one seed. What a seed plays depends on how many examples it has."""
SHOWN_FAILURES: Final = 5

Part: TypeAlias = Literal["turns", "faults"]
"""Beside a model that foretells each turn; or with faults, where it says what may never be."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)
_MACHINES: Final[Mapping[Part, type[Turns | FaultyTurns]]] = {
    "turns": Turns,
    "faults": FaultyTurns,
}


@dataclass
class Tally:
    """What happened in some examples: how turns ended, by cause, how often processes did,
    and how many calls of the store met a fault, by kind.
    """

    examples: int = 0
    restarts: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])

    def merge(self, other: Tally) -> None:
        """Count ``other`` too."""
        self.examples += other.examples
        self.restarts += other.restarts
        self.ends += other.ends
        self.faults += other.faults

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ends.items()))
        turns = self.ends.total()
        faults = f", {self.faults.total()} faults of the store" if self.faults else ""
        return f"{self.examples} examples, {turns} turns ({ends}), {self.restarts} restarts{faults}"


def _counted(part: Part, tally: Tally) -> Any:
    machine = _MACHINES[part]

    def teardown(self: Any) -> None:
        machine.teardown(self)
        tally.examples += 1
        tally.restarts += self.restarts
        tally.ends.update(self.ends())
        tally.faults.update(getattr(self, "met", ()))

    # By the name that a failure is told of.
    return type(machine.__name__, (machine,), {"teardown": teardown})


def _play(part: Part, seed: int, examples: int) -> tuple[Tally, str | None]:
    """The examples of one seed: what happened, and the failure with the steps that lead to it."""
    tally = Tally()
    try:
        run_state_machine_as_test(
            seeded(seed)(_counted(part, tally)), settings=settings_for(examples)
        )
    except Exception:  # noqa: BLE001  # the other seeds shall be tried all the same
        return tally, traceback.format_exc()
    return tally, None


def _play_quietly(part: Part, seed: int, examples: int) -> tuple[Tally, str | None]:
    be_quiet()
    return _play(part, seed, examples)


def _batches(first: int, examples: int) -> Iterator[tuple[int, int]]:
    """Seed and number of examples of each batch."""
    for number, start in enumerate(range(0, examples, BATCH_EXAMPLES)):
        yield first + number, min(BATCH_EXAMPLES, examples - start)


def play(part: Part, first: int, examples: int, workers: int) -> bool:
    """Whether the manager was as its model says in all of them. ``first``: the first seed."""
    began = time.monotonic()
    total = Tally()
    failures: list[tuple[int, int, str]] = []
    batches = list(_batches(first, examples))
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        jobs = {pool.submit(_play_quietly, part, *batch): batch for batch in batches}
        for done in concurrent.futures.as_completed(jobs):
            tally, failure = done.result()
            total.merge(tally)
            if failure is not None:
                failures.append((*jobs[done], failure))
    seconds = time.monotonic() - began
    print(f"{part}: seeds {first} to {batches[-1][0]} in {seconds:.0f} s: {total}")
    for seed, number, text in sorted(failures)[:SHOWN_FAILURES]:
        again = f"--part {part} --seed {seed} --examples {number}"
        print(f'\nseed {seed} (make chaos ARGS="{again}")\n{text}')
    print(f"{len(failures)} seeds found a turn that is not as the model says", flush=True)
    return not failures


def replay(part: Part, seed: int, examples: int) -> bool:
    """One seed, here, with what it logs."""
    tally, failure = _play(part, seed, min(examples, BATCH_EXAMPLES))
    print(tally if failure is None else f"{tally}\n{failure}")
    return failure is None

"""Every way in which a turn ends, against everything that it holds."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.testing import assert_no_leaks
from turns.holds.hold import Hold
from turns.model.errors import TurnError
from turns.open_turn import TurnEnd
from turns.turn import Turn, abort_open_turn

from .kit import ENDS, HOLDS, UNCLEAN, Bench

pytestmark = pytest.mark.lifecycle


async def test_the_bench_shows_every_hold_of_an_open_turn(bench: Bench) -> None:
    turn = bench.open()
    await bench.take_all(turn)

    assert await bench.held() == set(HOLDS)
    assert {hold.name for hold in turn.holds} == set(HOLDS)


# ---- the table: each end x each hold


@pytest.mark.parametrize(("end", "hold"), list(product(ENDS, HOLDS)))
@pytest.mark.spec("O1", "O3", "O4")
async def test_an_end_gives_back_a_hold(bench: Bench, end: TurnEnd, hold: str) -> None:
    turn = bench.open()
    await bench.take_all(turn)

    await bench.close(turn, end)

    kept = end == "torn-down" and hold == "continuation flag"
    assert (hold in await bench.held()) == kept


@pytest.mark.parametrize("ends", list(permutations(ENDS, 2)), ids="-then-".join)
@pytest.mark.spec("O2", "O4", "O5")
async def test_of_two_ends_the_first_decides(bench: Bench, ends: tuple[TurnEnd, TurnEnd]) -> None:
    turn = bench.open()
    await bench.take_all(turn)

    await bench.close(turn, *ends)

    assert turn.end == ends[0]
    assert await bench.held() == ({"continuation flag"} if ends[0] == "torn-down" else set())
    assert len(bench.warnings) == (1 if ends[0] == "completed" else 0)
    assert bench.workspace.journal.steps() == ["t1"]


@pytest.mark.parametrize("order", list(permutations(("died", "errored", "torn-down"))))
@pytest.mark.spec("O5", "O2")
async def test_three_ends_of_one_exit_release_once(
    bench: Bench, order: tuple[TurnEnd, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    await bench.take_all(turn)
    released: list[str] = []
    for hold in turn.holds:
        _count(hold, released, monkeypatch)

    fibers = [bench.rt.run_fork(turn.close(end)) for end in order]
    await bench.run(fb.Fiber.join_all(fibers))

    assert sorted(released) == sorted(HOLDS)
    assert turn.end == order[0]


def _count(hold: Hold, released: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    release = hold._release

    def counted(end: TurnEnd) -> object:
        released.append(hold.name)
        return release(end)

    monkeypatch.setattr(hold, "_release", counted)


@pytest.mark.spec("O2")
async def test_an_abort_without_an_open_turn_does_nothing(bench: Bench) -> None:
    await bench.run(abort_open_turn(None, "stalled"))

    assert await bench.held() == set()


@pytest.mark.spec("O2", "O3", "O8")
async def test_an_abort_is_the_close_of_the_turn(bench: Bench) -> None:
    turn = bench.open()
    await bench.take_all(turn)

    await bench.run(abort_open_turn(turn, "torn-down"))
    await bench.run(abort_open_turn(turn, "died"))

    assert turn.scope.state == "closed"
    assert await bench.held() == {"continuation flag"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.spec("O2")
async def test_a_turn_that_holds_nothing_ends_without_a_trace(bench: Bench, end: TurnEnd) -> None:
    with capture_logs() as logs:
        await bench.close(bench.open(), end, end)

    assert await bench.held() == set()
    assert logs == []
    assert bench.workspace.journal.steps() == []


# ---- from above


@pytest.mark.spec("O1", "O8")
async def test_the_close_of_the_scope_above_is_a_teardown(bench: Bench) -> None:
    turn = bench.open()
    await bench.take_all(turn)

    await bench.run(bench.scope.close())

    assert turn.end == "torn-down"
    assert await bench.held() == {"continuation flag"}


async def test_a_turn_in_a_closed_scope_is_torn_down_from_its_beginning(bench: Bench) -> None:
    await bench.run(bench.scope.close())

    turn = bench.open()
    await bench.close(turn, "completed")

    assert turn.end == "torn-down"
    with pytest.raises(TurnError, match="ended"):
        turn.changes.begin_if_needed()


async def test_who_comes_second_waits_until_everything_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    let_go = bench.latch()
    _hang(turn.readings, let_go, monkeypatch)

    first = bench.rt.run_fork(turn.close("stalled"))
    second = bench.rt.run_fork(turn.close("completed"))
    await bench.idle()
    assert (first.poll(), second.poll()) == (None, None)
    let_go.open_unsafe()
    await bench.idle()

    assert first.poll() == second.poll() == fb.Success(None)


# ---- faults in a release


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.spec("O15")
async def test_a_release_that_fails_keeps_none_of_the_others(
    bench: Bench, hold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    await bench.take_all(turn)
    _break(turn, hold, monkeypatch)

    with capture_logs() as logs:
        await bench.close(turn, "errored")

    assert await bench.held() == {hold}
    assert [(log["hold"], log["error"]) for log in logs] == [(hold, "it is broken")]


def _hang(hold: Hold, until: fb.Latch, monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(_end: TurnEnd) -> fb.Effect[None]:
        return until.await_()

    monkeypatch.setattr(hold, "_release", hanging)


def _break(turn: Turn, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_end: TurnEnd) -> None:
        raise RuntimeError("it is broken")

    (hold,) = [hold for hold in turn.holds if hold.name == name]
    monkeypatch.setattr(hold, "_release", broken)


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.spec("O15")
async def test_a_release_that_hangs_keeps_the_others_for_a_second(
    bench: Bench, hold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    await bench.take_all(turn)
    let_go = bench.latch()
    (hanging,) = [one for one in turn.holds if one.name == hold]
    _hang(hanging, let_go, monkeypatch)

    with capture_logs() as logs:
        closing = bench.rt.run_fork(turn.close("errored"))
        await bench.pass_time(1)

    assert closing.poll() == fb.Success(None)
    assert await bench.held() == {hold}
    assert [(log["hold"], log["error"]) for log in logs] == [(hold, "it takes too long")]
    let_go.open_unsafe()


async def test_what_ignores_its_interrupt_in_the_scope_of_a_turn_keeps_no_hold(
    bench: Bench,
) -> None:
    turn = bench.open()
    await bench.take_all(turn)
    let_go = bench.latch()
    turn.scope.fork(let_go.await_().uninterruptible(), start_immediately=True)

    closing = bench.rt.run_fork(turn.close("stalled"))
    await bench.idle()

    assert await bench.held() == set()
    let_go.open_unsafe()
    await bench.run(closing.join())


# ---- nothing is left


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.spec("O1")
async def test_an_ended_turn_leaves_nothing_behind(bench: Bench, end: TurnEnd) -> None:
    await bench.close(bench.open("t0"), end)
    with assert_no_leaks("fibers", "scopes", "tasks") as check:
        turn = check.gone(bench.open())
        await bench.take_all(turn)
        await bench.close(turn, end)
        bench.verdicts.clear()
        del turn

    assert len(bench.turns) == 0
    assert bench.scope.finalizer_count == 0


@pytest.mark.parametrize("end", UNCLEAN)
@pytest.mark.spec("O1")
async def test_an_ended_turn_takes_nothing_any_more(bench: Bench, end: TurnEnd) -> None:
    turn = bench.open()
    await bench.close(turn, end)

    turn.message.begin("m2")
    turn.message.add("text", "late")
    turn.records.open("c9", "late")
    turn.readings.show(tokens=9)
    for take in (
        turn.changes.begin_if_needed,
        turn.attribution.claim,
        lambda: turn.warnings.add("shell"),
        lambda: turn.permission.show("p9", "late?", subject="late"),
    ):
        with pytest.raises(TurnError, match="the turn t1 has ended"):
            take()
    for work in (turn.continuation.mark(), turn.permission.ask("late?", subject="late")):
        with pytest.raises(TurnError, match="the turn t1 has ended"):
            await bench.run(work)

    assert await bench.held() == set()
    assert bench.workspace.message.message_id is None

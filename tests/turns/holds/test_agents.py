"""The ends of a turn, brought about by a real child process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import psutil
import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect
from fibers.testing import assert_no_leaks
from turns.client.backstop import SILENCE_SECONDS as SILENCE
from turns.client.crash_loop import DEATHS, WINDOW_SECONDS
from turns.client.hub import AgentHub
from turns.client.messages import AgentEvent, HostMessage
from turns.client.stdio import LEAVE_SECONDS
from turns.model.errors import TurnError
from turns.open_turn import TurnEnd
from turns.process.identity import identify

from .agents import BROUGHT_ABOUT, DIE, DONE, ERROR, SILENCE_SECONDS, Agents, saying, until
from .kit import HOLDS, Bench

pytestmark = pytest.mark.lifecycle

TASKS: Final = ("task-of-closed", "task-of-open")


@pytest.fixture
async def agents(bench: Bench) -> AsyncIterator[Agents]:
    made = Agents(bench)
    yield made
    await made.pump(made.hub.teardown())


# ---- each way to end, through the process


@pytest.mark.parametrize("end", BROUGHT_ABOUT)
@pytest.mark.spec("O1", "O3", "O4")
async def test_an_end_that_the_agent_brings_about_gives_everything_back(
    agents: Agents, end: TurnEnd
) -> None:
    bench = agents.bench
    turn = bench.open()
    await agents.take_all(turn)
    assert await bench.held() == set(HOLDS)
    await bench.run(bench.workspace.permissions.answer("p1", allow=True))

    await agents.bring_about(turn, end)

    assert turn.end == end
    assert await bench.held() == ({"continuation flag"} if end == "torn-down" else set())


@pytest.mark.parametrize("end", BROUGHT_ABOUT)
@pytest.mark.spec("O10")
async def test_every_block_of_the_message_is_complete_and_kept(
    agents: Agents, end: TurnEnd
) -> None:
    await agents.bring_about(agents.bench.open(), end)

    blocks = agents.bench.workspace.message.blocks
    assert [(block.text, block.is_streaming) for block in blocks] == [
        ("half a sen", False),
        ("and the other", False),
    ]


@pytest.mark.parametrize("end", BROUGHT_ABOUT)
@pytest.mark.spec("O14")
async def test_only_a_teardown_forgets_which_call_a_closed_task_belongs_to(
    agents: Agents, end: TurnEnd
) -> None:
    await agents.bring_about(agents.bench.open(), end)

    records = agents.bench.workspace.records
    known = {task: records.call_of(task) for task in TASKS}
    assert known == {
        "task-of-closed": None if end == "torn-down" else "c0",
        "task-of-open": None,
    }


@pytest.mark.parametrize("end", ["errored", "died", "torn-down"])
@pytest.mark.spec("O13")
async def test_an_end_drops_the_pending_question(agents: Agents, end: TurnEnd) -> None:
    turn = agents.bench.open()

    await agents.bring_about(turn, end)

    assert agents.bench.workspace.permissions.card is None
    assert not await agents.bench.run(agents.bench.workspace.permissions.answer("p1", allow=True))


@pytest.mark.spec("O5")
async def test_an_error_a_death_and_a_teardown_for_one_exit_release_once(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.take_all(turn)

    await agents.prompt(turn, ERROR, DIE)
    await agents.end_of(turn)
    await agents.pump(agents.hub.teardown())

    assert turn.end == "errored"
    assert await agents.bench.held() == set()
    assert agents.bench.workspace.journal.steps() == []  # the agent's own files are its own


# ---- seed 000: the stall


@pytest.mark.spec("O9")
async def test_after_a_stall_the_next_turn_begins_a_group_and_may_arm(agents: Agents) -> None:
    bench = agents.bench
    stalled = bench.open("t1")
    await agents.bring_about(stalled, "stalled")

    turn = bench.open("t2")
    await agents.prompt(turn, {"say": {"type": "tool-start", "toolCallId": "c2", "toolName": "X"}})
    await until(turn, lambda: turn.changes.is_open)

    assert bench.workspace.watcher.is_held
    assert await bench.run(bench.workspace.continuation.may_arm())


@pytest.mark.spec("O9")
async def test_a_torn_down_continuation_does_not_arm_another(agents: Agents) -> None:
    bench = agents.bench
    await agents.bring_about(bench.open("t1"), "torn-down")

    assert not await bench.run(bench.workspace.continuation.may_arm())


@pytest.mark.spec("O6")
async def test_the_warnings_of_a_stalled_turn_stay_off_the_next_one(agents: Agents) -> None:
    bench = agents.bench
    await agents.bring_about(bench.open("t1"), "stalled")

    turn = bench.open("t2")
    await agents.prompt(turn, DONE)
    await agents.end_of(turn)

    assert bench.warnings == []


@pytest.mark.spec("O6")
async def test_a_clean_end_warns_once_of_all_that_can_not_be_undone(agents: Agents) -> None:
    turn = agents.bench.open()
    run = {"type": "tool-start", "toolName": "Bash", "canBeUndone": False}

    await agents.prompt(
        turn,
        {"say": {**run, "toolCallId": "c1"}},
        {"say": {**run, "toolCallId": "c2"}},
        {"say": {**run, "toolCallId": "c3", "toolName": "Mail"}},
        DONE,
    )
    await agents.end_of(turn)

    assert [str(warning) for warning in agents.bench.warnings] == [
        "An undo does not take back what Bash, Mail did in this turn."
    ]


async def test_what_a_stalled_turn_says_late_ends_no_later_turn(agents: Agents) -> None:
    bench = agents.bench
    await agents.bring_about(bench.open("t1"), "stalled")
    turn = bench.open("t2")

    late = {"turnId": "t1", "type": "done"}
    await agents.prompt(turn, {"say": {"type": "message", "messageId": "m2"}}, {"say": late})
    await agents.prompt(turn, {"say": {"type": "text", "text": "still here"}})
    await until(turn, saying(turn, "still here"))

    assert turn.is_open


# ---- silence


async def test_a_word_just_in_time_puts_the_stall_off(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.prompt(turn, {"say": {"type": "message", "messageId": "m1"}})
    await until(turn, lambda: agents.bench.workspace.message.message_id == "m1")

    await agents.bench.pass_time(SILENCE_SECONDS * 0.9)
    await agents.prompt(turn, {"say": {"type": "text", "text": "word"}})
    await until(turn, saying(turn, "word"))
    await agents.bench.pass_time(SILENCE_SECONDS * 0.9)
    assert turn.is_open
    await agents.bench.pass_time(SILENCE_SECONDS * 0.1)

    assert turn.end == "stalled"


async def test_an_open_question_excuses_silence_until_it_is_answered(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.take_all(turn)

    await agents.bench.pass_time(SILENCE_SECONDS * 1000)
    assert turn.is_open
    await agents.bench.run(agents.bench.workspace.permissions.answer("p1", allow=False))
    await agents.bench.pass_time(SILENCE_SECONDS * 0.9)
    assert turn.is_open
    await agents.bench.pass_time(SILENCE_SECONDS * 0.1)

    assert turn.end == "stalled"


async def test_a_tool_that_says_that_it_is_alive_excuses_silence_until_it_ends(
    agents: Agents,
) -> None:
    turn = agents.bench.open()
    await agents.prompt(
        turn,
        {"say": {"type": "tool-start", "toolCallId": "c1", "toolName": "Bash"}},
        {"say": {"type": "tool-alive", "toolCallId": "c1"}},
    )
    await until(turn, lambda: turn.records.any_alive)

    await agents.bench.pass_time(SILENCE_SECONDS * 1000)
    assert turn.is_open
    await agents.prompt(turn, {"say": {"type": "tool-end", "toolCallId": "c1"}})
    await until(turn, lambda: not turn.records.any_alive)
    await agents.bench.pass_time(SILENCE_SECONDS)

    assert turn.end == "stalled"


async def test_a_stalled_agent_is_told_to_leave_the_turn(agents: Agents) -> None:
    turn = agents.bench.open("t1")
    await agents.prompt(turn, {"do": "hear"}, {"do": "die", "code": 0})
    await agents.bench.idle()

    await agents.bench.pass_time(SILENCE_SECONDS)
    child = agents.clients[-1].child
    assert child is not None

    assert await child.wait() == 0  # it heard a line, and it was no prompt
    assert turn.end == "stalled"


# ---- questions


@pytest.mark.parametrize(("allow", "heard"), [(True, "true"), (False, "false")])
@pytest.mark.spec("O12")
async def test_the_agent_hears_the_answer_to_its_live_question_only(
    agents: Agents, allow: bool, heard: str
) -> None:
    turn = agents.bench.open()
    desk = agents.bench.workspace.permissions
    asks = {"type": "permission", "question": "May I?"}
    await agents.prompt(
        turn,
        {"say": {"type": "message", "messageId": "m1"}},
        {"say": {**asks, "requestId": "p1"}},
        {"say": {**asks, "requestId": "p2"}},
        {"do": "hear"},
    )
    await until(turn, lambda: desk.card is not None and desk.card.request_id == "p2")

    stale = [
        await agents.bench.run(desk.answer(request_id, allow=not allow, remember=True))
        for request_id in ("p1", "", "p3")
    ]
    live = await agents.bench.run(desk.answer("p2", allow=allow))
    again = await agents.bench.run(desk.answer("p2", allow=not allow, remember=True))
    await until(turn, saying(turn, "p2"))

    assert (stale, live, again) == ([False] * 3, True, False)
    assert saying(turn, f'"allow": {heard}')()
    assert not (agents.bench.state / "permissions.json").exists()


@pytest.mark.spec("O12")
async def test_a_remembered_answer_is_given_to_the_agent_without_a_card(agents: Agents) -> None:
    turn = agents.bench.open()
    desk = agents.bench.workspace.permissions
    asks = {"type": "permission", "question": "May I?", "subject": "Bash"}
    await agents.prompt(turn, {"say": {**asks, "requestId": "p1"}})
    await until(turn, lambda: turn.permission.is_open)
    assert await agents.bench.run(desk.answer("p1", allow=True, remember=True))

    await agents.prompt(
        turn,
        {"say": {"type": "message", "messageId": "m1"}},
        {"say": {**asks, "requestId": "p2"}},
        {"do": "hear"},
    )
    await until(turn, saying(turn, "p2"))

    assert saying(turn, '"allow": true')()
    assert desk.card is None


# ---- deaths


async def test_an_agent_that_died_is_started_again_for_the_next_turn(agents: Agents) -> None:
    await agents.bring_about(agents.bench.open("t1"), "died")

    turn = agents.bench.open("t2")
    await agents.prompt(turn, DONE)
    await agents.end_of(turn)

    assert turn.end == "completed"
    assert len(agents.clients) == 2


@pytest.mark.spec("O3", "O4")
async def test_the_third_death_within_a_minute_suspends_the_agent(agents: Agents) -> None:
    bench = agents.bench
    ends: list[str | None] = []
    for number in range(3):
        turn = bench.open(f"t{number}")
        await agents.take_all(turn)
        await agents.prompt(turn, DIE)
        await agents.end_of(turn)
        ends.append(turn.end)
        await bench.pass_time(29)

    assert ends == ["died", "died", "suspended"]
    assert agents.hub.state == "suspended"
    assert await bench.held() == set()
    with pytest.raises(TurnError, match="died too often"):
        await agents.prompt(bench.open("t9"), DONE)
    assert len(agents.clients) == 3

    agents.hub.resume()
    turn = bench.open("t10")
    await agents.prompt(turn, DONE)
    await agents.end_of(turn)
    assert turn.end == "completed"


async def test_three_deaths_in_more_than_a_minute_are_no_crash_loop(agents: Agents) -> None:
    for number in range(3):
        turn = agents.bench.open(f"t{number}")
        await agents.prompt(turn, DIE)
        await agents.end_of(turn)
        assert turn.end == "died"
        await agents.bench.pass_time(30.1)

    assert agents.hub.state == "idle"


async def test_an_agent_that_can_not_be_started_ends_its_turn_as_errored(bench: Bench) -> None:
    agents = Agents(bench)
    agents.command = ["/no/such/agent"]
    turn = bench.open()

    with pytest.raises(TurnError, match="could not start /no/such/agent"):
        await agents.prompt(turn, DONE)

    assert turn.end == "errored"
    assert await bench.held() == set()


async def test_an_agent_that_dies_as_it_starts_ends_its_turn(bench: Bench) -> None:
    agents = Agents(bench, "--die")
    turn = bench.open()

    with suppress(TurnError):  # "gone", where it died before it was told anything
        await agents.prompt(turn, DONE)
    await agents.end_of(turn)

    assert turn.end in ("died", "errored")


# ---- misbehaviour


async def test_what_can_not_be_understood_is_named_and_left_out(agents: Agents) -> None:
    turn = agents.bench.open()

    with capture_logs() as logs:
        await agents.prompt(turn, {"do": "garbage"}, {"do": "long line", "bytes": 3 << 20}, DONE)
        await agents.end_of(turn)

    assert turn.end == "completed"
    problems = [log["event"] for log in logs]
    assert problems == ["an agent said something that can't be understood"] * len(problems)
    assert 3 <= len(problems) <= 5


@pytest.mark.parametrize("how", ["loop", "deaf"])
async def test_an_agent_that_hears_nothing_is_killed_at_the_teardown(
    agents: Agents, how: str
) -> None:
    turn = agents.bench.open()
    await agents.prompt(
        turn,
        {"do": "ignore SIGTERM"},
        {"say": {"type": "message", "messageId": "m1"}},
        {"do": how},
    )
    await until(turn, lambda: agents.bench.workspace.message.message_id == "m1")
    pid = agents.pid

    await agents.pump(agents.hub.teardown())

    assert identify(pid) is None
    assert turn.end == "torn-down"
    assert agents.bench.clock.now() < 2


@pytest.mark.parametrize("own_session", [False, True])
@pytest.mark.spec("R29")
async def test_what_the_agent_started_ends_with_it(agents: Agents, own_session: bool) -> None:
    turn = agents.bench.open()
    await agents.prompt(
        turn,
        {"say": {"type": "message", "messageId": "m1"}},
        {"do": "spawn", "in its own session": own_session},
    )
    await until(turn, saying(turn, "pid "))
    pid = int(agents.bench.workspace.message.blocks[-1].text.split()[-1])
    assert identify(pid) is not None

    await agents.pump(agents.hub.teardown())

    assert identify(pid) is None


@pytest.mark.spec("R29")
async def test_a_death_is_noticed_although_a_child_of_it_holds_its_output(bench: Bench) -> None:
    agents = Agents(bench, silence_seconds=120)
    turn = agents.bench.open()
    await agents.prompt(
        turn,
        {"say": {"type": "message", "messageId": "m1"}},
        {"do": "spawn", "holding the output": True},
        {"say": {"type": "text", "text": " and last words"}},
        DIE,
    )
    await agents.pump(agents.ending(turn))

    assert turn.end == "died"
    said = agents.bench.workspace.message.blocks[-1].text
    assert said.endswith(" and last words")
    assert identify(int(said.split()[1])) is None


async def test_an_agent_that_closes_its_output_is_as_good_as_dead(bench: Bench) -> None:
    agents = Agents(bench, silence_seconds=120)
    turn = bench.open()
    await agents.prompt(turn, {"do": "close the output"}, {"do": "deaf"})

    await agents.pump(agents.ending(turn))

    assert turn.end == "died"
    assert identify(agents.pid) is None


# ---- the teardown


class BadClient:
    """A client whose dispose raises, and that notes what was held then."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.held_at_dispose: set[str] | None = None

    def start(self) -> Effect[None, TurnError]:
        return Effect.succeed(None)

    def send(self, message: HostMessage) -> Effect[None, TurnError]:
        return Effect.succeed(None)

    def next(self) -> Effect[AgentEvent | None]:
        return Effect.never()

    @fb.effect
    async def dispose(self) -> None:
        self.held_at_dispose = await self.bench.held()
        raise RuntimeError("it can't be disposed of")


@pytest.mark.spec("O7", "O8")
async def test_a_teardown_gives_everything_back_before_a_dispose_that_raises(
    bench: Bench,
) -> None:
    client = BadClient(bench)
    hub = AgentHub(lambda: client, clock=bench.clock, scope=bench.scope)
    turn = bench.open()
    await bench.run(hub.send("x", turn))
    await bench.take_all(turn)

    with capture_logs() as logs:
        await bench.run(hub.teardown())

    assert client.held_at_dispose == {"continuation flag"}
    assert [log["event"] for log in logs] == ["an agent could not be disposed of"]


@pytest.mark.spec("O2", "O3")
async def test_a_death_after_a_teardown_keeps_the_flag(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.bring_about(turn, "torn-down")  # which ends the process as well

    assert identify(agents.pid) is None
    assert await agents.bench.held() == {"continuation flag"}


@pytest.mark.spec("O2", "O3")
async def test_a_teardown_after_a_death_finds_the_flag_cleared(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.bring_about(turn, "died")
    await agents.pump(agents.hub.teardown())

    assert turn.end == "died"
    assert await agents.bench.held() == set()


@pytest.mark.spec("O8")
async def test_the_flag_of_a_torn_down_turn_is_there_after_a_reload(
    agents: Agents, rt: fb.Runtime
) -> None:
    await agents.bring_about(agents.bench.open("t1"), "torn-down")

    reloaded = Bench(rt, agents.bench.clock, agents.bench.directory)
    flag = await reloaded.run(reloaded.workspace.continuation.read())

    assert flag is not None
    assert flag.turn_id == "t1"


async def test_a_teardown_without_an_agent_or_twice_does_nothing(agents: Agents) -> None:
    await agents.bench.run(agents.hub.teardown())
    await agents.bench.run(agents.hub.teardown())

    with pytest.raises(TurnError, match="torn down"):
        await agents.prompt(agents.bench.open(), DONE)


async def test_the_close_of_the_app_scope_tears_the_agent_down(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.take_all(turn)
    pid = agents.pid

    await agents.pump(agents.bench.scope.close())

    assert identify(pid) is None
    assert (turn.end, agents.hub.state) == ("torn-down", "closed")


async def test_a_turn_that_somebody_else_ends_sets_the_agent_free(agents: Agents) -> None:
    first = agents.bench.open("t1")
    await agents.take_all(first)
    with pytest.raises(TurnError, match="busy"):
        await agents.prompt(agents.bench.open("t2"), DONE)

    await agents.bench.close(first, "torn-down")
    await agents.bench.idle()
    turn = agents.bench.open("t3")
    await agents.prompt(turn, DONE)
    await agents.end_of(turn)

    assert turn.end == "completed"


async def test_a_turn_that_has_ended_is_refused_and_starts_no_agent(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.bench.close(turn, "completed")

    with pytest.raises(TurnError, match="t1 has ended"):
        await agents.prompt(turn, DONE)

    assert (agents.clients, agents.hub.turn) == ([], None)


def test_the_bounds_are_those_of_the_rules() -> None:
    assert (SILENCE, LEAVE_SECONDS, DEATHS, WINDOW_SECONDS) == (120, 0.5, 3, 60)


# ---- records of processes


@pytest.mark.spec("I11")
async def test_a_record_is_there_while_the_agent_lives_and_goes_with_it(agents: Agents) -> None:
    turn = agents.bench.open()
    await agents.take_all(turn)
    records = await agents.bench.run(agents.records.all())
    assert [record.pid for record in records] == [agents.pid]
    assert not await agents.bench.run(agents.records.forget(records[0]))

    await agents.pump(agents.hub.teardown())

    assert await agents.bench.run(agents.records.all()) == []


@pytest.mark.spec("R29")
async def test_agents_leave_neither_fibers_nor_zombies(bench: Bench) -> None:
    warm = Agents(bench)
    await warm.bring_about(bench.open("t0"), "torn-down")
    others = set(psutil.Process().children(recursive=True))  # of other tests
    with assert_no_leaks("fibers", "scopes", "tasks"):
        for end in ("died", "completed", "torn-down"):
            agents = Agents(bench)
            await agents.bring_about(bench.open(f"t-{end}"), end)
            await agents.pump(agents.hub.teardown())
        del agents

    assert set(psutil.Process().children(recursive=True)) <= others

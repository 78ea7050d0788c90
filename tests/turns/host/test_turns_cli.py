"""``fiberscope turns``: through the server that runs, else on the state directory itself."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog.testing
from freezegun import freeze_time

import fibers as fb
from fibers import Effect
from streamengine import HistoryError
from streamengine.history import StateDirLocked, hold
from streamengine.redact import Secret
from turns import FileTurnStore, TurnError, TurnRecord
from turns.handles.creation import new_record
from turns.host import turn_sources
from turns.host.errors import HostError
from turns.host.histories import open_history, open_turn_store
from turns.host.turn_sources import Place
from turns.host.turns_command import Wanted, interrupt_turn, list_turns, show_turn
from turns.host.turns_view import PROMPT_CHARACTERS, as_table
from turns.model.cause import (
    CorrelatedStreamEnd,
    ExplicitInterrupt,
    ManualSupersession,
    TerminalStreamError,
)
from turns.model.record import FinalMessage

from .kit import Live, a_server, a_site, heard, kept, until
from .programs import WAIT_SECONDS, Program, fiberscope, running, serving

EVERYTHING = Wanted()
NOON = "2026-03-01 12:00:00"


@pytest.fixture(autouse=True)
def no_log() -> Generator[None]:
    """What a program writes is told apart from what it logs; here both would be standard output."""
    with structlog.testing.capture_logs():
        yield


def made(
    prompt: str = "Go", *, owner: str = "w1", workspace: str = "w1", **more: Any
) -> TurnRecord:
    record = new_record(owner=owner, workspace_id=workspace, prompt=prompt)
    return record.model_copy(update=more)


async def stored(state: Path, *records: TurnRecord) -> None:
    for record in records:
        await FileTurnStore(state, fsync="off").write(record)


async def on_disk(state: Path, record: TurnRecord) -> TurnRecord:
    loaded = await FileTurnStore(state).load()
    (found,) = [each for each in loaded.records if each.handle_id == record.handle_id]
    return found


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


class Out:
    """What a command wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def of(self, command: Effect[int, Any]) -> str:
        self._capsys.readouterr()
        assert await command == 0
        self.all = self._capsys.readouterr()
        return self.all.out


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str]) -> Out:
    return Out(capsys)


# ---- the table


async def test_the_list_is_a_table_with_the_oldest_first(tmp_path: Path, out: Out) -> None:
    with freeze_time(NOON, real_asyncio=True) as clock:
        first = made("Count  them\nall", ignored_ends=2)
        clock.tick(timedelta(minutes=5))
        second = made("Look", workspace="w2", ignored_ends=1)
        second = second.settled(ExplicitInterrupt(by="ada"), None)
        clock.tick(timedelta(minutes=5))
        await stored(tmp_path, second, first)
        shown = await out.of(list_turns(Place(tmp_path), EVERYTHING, as_json=False))

    head, one, two, last = shown.splitlines()
    assert head.split() == ["HANDLE", "WORKSPACE", "STATUS", "CAUSE", "AGE", "PROMPT"]
    assert re.split(r"  +", one.strip()) == [
        first.handle_id,
        "w1",
        "queued",
        "10 min",
        "Count them all",
    ]
    assert re.split(r"  +", two.strip()) == [
        second.handle_id,
        "w2 (of w1)",
        "interrupted",
        "explicit-interrupt",
        "5 min",
        "Look",
    ]
    assert last == "2 turns. 3 ends ignored as uncorrelated."
    assert out.all.err == ""


async def test_a_list_of_nothing_says_so(tmp_path: Path, out: Out) -> None:
    shown = await out.of(list_turns(Place(tmp_path), EVERYTHING, as_json=False))

    assert shown == "0 turns. 0 ends ignored as uncorrelated.\n"


def test_a_long_or_hostile_prompt_stays_one_harmless_line() -> None:
    long = made("word " * 100)
    hostile = made("\x1b[2Jgone\u202e\n\x07")

    shown = as_table([long, hostile]).splitlines()

    assert shown[1].endswith("...")
    assert len(shown[1]) - shown[1].index("word") == PROMPT_CHARACTERS
    assert shown[2].endswith("\\x1b[2Jgone\\u202e \\x07")
    assert len(shown) == 4


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_narrow_terminal_costs_nothing_but_prompt(columns: int) -> None:
    cause = ManualSupersession(message_id="u_1")
    record = made("word " * 100, workspace="a-long-name-of-a-workspace").settled(cause, None)

    head, row, _ = as_table([record], columns=columns).splitlines()

    for name in ("HANDLE", "WORKSPACE", "STATUS", "CAUSE", "AGE", "PROMPT"):
        assert name in head
    assert record.handle_id in row
    assert "a-long-name-of-a-workspace (of w1)" in row
    assert "interrupted" in row
    assert "manual-supersession" in row
    assert re.search(r" word word word wo.*\u2026$", row)


def test_a_clock_that_was_set_back_makes_no_age_negative() -> None:
    record = made()

    assert " 0 ms " in as_table([record], at=record.created_at - timedelta(hours=1))


@pytest.mark.parametrize(
    ("wanted", "which"),
    [
        (Wanted(owner="w1"), [0, 1]),
        (Wanted(workspace="w2"), [1, 2]),
        (Wanted(owner="w1", workspace="w2"), [1]),
        (Wanted(owner="w9"), []),
    ],
)
async def test_those_of_an_owner_or_in_a_workspace(
    tmp_path: Path, out: Out, wanted: Wanted, which: list[int]
) -> None:
    records = [made(), made(workspace="w2"), made(owner="w2", workspace="w2", ignored_ends=4)]
    await stored(tmp_path, *records)

    shown = json.loads(await out.of(list_turns(Place(tmp_path), wanted, as_json=True)))

    assert {each["handleId"] for each in shown["turns"]} == {records[n].handle_id for n in which}
    assert shown["ignoredEnds"] == (4 if 2 in which else 0)
    assert shown["warnings"] == []


@pytest.mark.spec("T20")
@pytest.mark.parametrize("as_json", [False, True])
async def test_what_cannot_be_read_is_named_and_hides_nothing(
    tmp_path: Path, out: Out, as_json: bool
) -> None:
    good = made()
    await stored(tmp_path, good)
    handles = tmp_path / "workspaces" / "w1" / "task-handles"
    (handles / "wst_torn.json").write_text('{"kind": "workspace_')
    (handles / "wst_newer.json").write_text(
        good.model_copy(update={"version": 99, "handle_id": "wst_newer"}).to_json()
    )

    shown = await out.of(list_turns(Place(tmp_path), EVERYTHING, as_json=as_json))

    assert good.handle_id in shown
    lines = out.all.err.splitlines()
    assert len(lines) == 2
    assert any(str(handles / "wst_torn.json") in line and "not JSON" in line for line in lines)
    assert any("wst_newer.json" in line and "newer version" in line for line in lines)


# ---- one


@pytest.mark.spec("T7")
async def test_show_gives_all_of_a_record_its_reason_and_its_evidence(
    tmp_path: Path, out: Out
) -> None:
    cause = TerminalStreamError(message_id="a_1", error_type="network", error="re\x1bset")
    record = made("Count\nthem").settled(cause, None)
    whole = made().settled(
        CorrelatedStreamEnd(message_id="a_2"), FinalMessage(text="one\ntwo", message_id="a_2")
    )
    await stored(tmp_path, record, whole)

    shown = await out.of(show_turn(Place(tmp_path), record.handle_id, as_json=False))
    answer = await out.of(show_turn(Place(tmp_path), whole.handle_id, as_json=False))
    as_json = await out.of(show_turn(Place(tmp_path), record.handle_id, as_json=True))

    lines = shown.splitlines()
    assert f"handleId: {record.handle_id}" in lines
    assert "status: error" in lines
    assert "cause: terminal-stream-error" in lines
    assert "error: network: re\\x1bset" in lines
    assert "evidence.messageId: a_1" in lines
    assert "evidence.errorType: network" in lines
    assert lines[-4:] == ["", "prompt:", "  Count", "  them"]
    assert answer.endswith("\nprompt:\n  Go\n\nfinalMessage:\n  one\n  two\n")
    assert TurnRecord.model_validate_json(as_json) == record


async def test_a_turn_that_is_not_there_may_be_one_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handles = tmp_path / "workspaces" / "w1" / "task-handles"
    handles.mkdir(parents=True, mode=0o700)
    (handles / "wst_torn.json").write_text("{")

    for command in (
        show_turn(Place(tmp_path), "wst_torn", as_json=False),
        interrupt_turn(Place(tmp_path), "wst_torn", hard=False),
    ):
        with pytest.raises(HostError, match="there is no turn wst_torn: see fiberscope turns list"):
            await command
        assert str(handles / "wst_torn.json") in capsys.readouterr().err


# ---- to end one, where no server runs


@pytest.mark.spec("T1", "T18")
@pytest.mark.parametrize("status", ["queued", "running"])
async def test_without_a_server_a_turn_is_settled_and_nothing_begins(
    tmp_path: Path, out: Out, status: str
) -> None:
    record, other = made(status=status), made(status="queued")
    await stored(tmp_path, record, other)

    said = await out.of(interrupt_turn(Place(tmp_path), record.handle_id, hard=False))

    assert said == f"{record.handle_id} is interrupted: interrupted by user\n"
    settled = await on_disk(tmp_path, record)
    assert (settled.status, settled.cause) == ("interrupted", "explicit-interrupt")
    assert settled.evidence == {"by": "user"}
    assert await on_disk(tmp_path, other) == other


async def test_what_has_settled_stays_and_nothing_is_taken_back_without_a_server(
    tmp_path: Path,
) -> None:
    record = made().settled(ExplicitInterrupt(by="ada"), None)
    running = made(status="running")
    await stored(tmp_path, record, running)

    with pytest.raises(HostError, match="is interrupted"):
        await interrupt_turn(Place(tmp_path), record.handle_id, hard=False)
    with pytest.raises(HostError, match="without --hard"):
        await interrupt_turn(Place(tmp_path), running.handle_id, hard=True)

    assert await on_disk(tmp_path, record) == record
    assert await on_disk(tmp_path, running) == running


@pytest.mark.lifecycle
@pytest.mark.spec("I10", "T16")
@pytest.mark.parametrize("said", ["half", ""])
async def test_an_answer_of_a_turn_that_was_ended_meanwhile_is_not_taken_up(
    tmp_path: Path, out: Out, said: str
) -> None:
    async with a_site(tmp_path, auto_retry=True) as site:
        handle = await site.turns.manager.create_turn(owner="w1", workspace_id="w1", prompt="Go")
        answer = await site.provider.next_answer()
        if said:
            answer.say(said)
            await heard(site, said)
            await kept(site)

    await out.of(interrupt_turn(Place(tmp_path), handle.handle_id, hard=False))

    async with a_site(tmp_path, auto_retry=True) as site:
        assert site.root.retries is not None
        assert not site.root.retries.state("w1").pending
        record = await site.turns.manager.get(handle.handle_id)
    assert record.cause == "explicit-interrupt"


@pytest.mark.lifecycle
async def test_the_end_of_a_turn_leaves_what_somebody_else_was_asked_after_it(
    tmp_path: Path, out: Out
) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        handle = await site.turns.manager.create_turn(owner="w1", workspace_id="w1", prompt="Go")
        await site.provider.next_answer()
        await client.post("/api/workspaces/w1/messages", json={"text": "And then?"})
        await site.provider.next_answer()

    await out.of(interrupt_turn(Place(tmp_path), handle.handle_id, hard=False))

    async with a_site(tmp_path, auto_retry=True) as site:
        assert (await site.provider.next_answer()).request.text == "And then?"


async def test_records_in_a_database_are_found_there(tmp_path: Path, out: Out) -> None:
    state, database = tmp_path / "state", Secret(f"sqlite:///{tmp_path / 'history.db'}")
    state.mkdir(mode=0o700)
    record = made(status="running")
    async with fb.Scope() as scope:
        history = await scope.provide(open_history(state, database))
        store = await scope.provide(open_turn_store(state, history))
        await store.write(record)
    place = Place(state, database)

    shown = await out.of(list_turns(place, EVERYTHING, as_json=False))
    await out.of(interrupt_turn(place, record.handle_id, hard=False))
    after = await out.of(show_turn(place, record.handle_id, as_json=True))

    assert record.handle_id in shown
    assert json.loads(after)["status"] == "interrupted"


# ---- where somebody else works on the state directory


async def turn_in(live: Live, prompt: str = "Go") -> str:
    async with live.client() as client:
        response = await client.post("/api/workspaces/w1/turns", json={"prompt": prompt})
        handle_id: str = response.json()["handleId"]
        return handle_id


@pytest.mark.lifecycle
async def test_a_server_that_runs_is_asked(tmp_path: Path, out: Out) -> None:
    async with a_server(tmp_path) as live:
        handle_id = await turn_in(live, "Tell me")
        answer = await live.provider.next_answer()
        place = Place(tmp_path)

        listed = await out.of(list_turns(place, EVERYTHING, as_json=False))
        soft = await out.of(interrupt_turn(place, handle_id, hard=False))
        answer.say("half").finish()
        (await live.provider.next_answer()).say("In short.").finish()
        shown = ""
        while "completed" not in shown:
            shown = await out.of(show_turn(place, handle_id, as_json=False))
        with pytest.raises(HostError, match="is completed"):
            await interrupt_turn(place, handle_id, hard=True)
        with pytest.raises(HostError, match="there is no turn wst_none"):
            await show_turn(place, "wst_none", as_json=False)

    assert "Tell me" in listed
    assert soft == f"{handle_id} ends with one last answer\n"
    assert shown.endswith("finalMessage:\n  In short.\n")


@pytest.mark.lifecycle
async def test_a_server_takes_back_what_a_turn_has_said(tmp_path: Path, out: Out) -> None:
    async with a_server(tmp_path) as live:
        handle_id = await turn_in(live)
        (await live.provider.next_answer()).say("half")
        await until((tmp_path / "workspaces" / "w1" / "partial.json").exists)

        said = await out.of(interrupt_turn(Place(tmp_path), handle_id, hard=True))

    assert said == (
        f"{handle_id} is interrupted: ended hard by user, with what it said taken back\n"
    )
    assert (tmp_path / "workspaces" / "w1" / "chat.jsonl").read_text() == ""


@pytest.mark.lifecycle
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(404, json={"detail": "Not Found"}), "the server that runs has no turns"),
        (httpx.Response(503, json={"detail": "it ends"}), "it ends"),
        (
            httpx.Response(200, json={"turns": [{"status": "paused"}], "warnings": []}),
            "this version can't read",
        ),
        (httpx.ConnectError("refused"), "the connection to the server broke: refused"),
        (httpx.ReadTimeout(""), "the server does not answer: its log says what holds it"),
    ],
)
async def test_a_server_that_says_something_else_is_named_as_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: httpx.Response | httpx.ConnectError,
    said: str,
) -> None:
    def answered(_request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.Response):
            return answer
        raise answer

    def client_of(url: str, _access: object) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(answered))

    monkeypatch.setattr(turn_sources, "client_of", client_of)
    async with a_server(tmp_path):
        with pytest.raises(HostError, match=said):
            await list_turns(Place(tmp_path), EVERYTHING, as_json=False)


async def test_records_that_cannot_be_listed_or_written_are_one_line(tmp_path: Path) -> None:
    record = made(status="running")
    await stored(tmp_path, record)
    handles = tmp_path / "workspaces" / "w1" / "task-handles"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileTurnStore, "write", _refused)
        with pytest.raises(HostError, match=r"the disk is full\. Make room\."):
            await interrupt_turn(Place(tmp_path), record.handle_id, hard=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileTurnStore, "load", _refused)
        with pytest.raises(HostError, match=r"the disk is full\. Make room\."):
            await list_turns(Place(tmp_path), EVERYTHING, as_json=False)

    assert names_in(handles) == [f"{record.handle_id}.json"]
    assert await on_disk(tmp_path, record) == record


def _refused(*_given: object) -> Effect[Any, TurnError]:
    return Effect.fail(TurnError("store", "the disk is full", "Make room."))


async def test_records_in_a_database_of_a_newer_version_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    place = Place(tmp_path, Secret(f"sqlite:///{path}"))
    await list_turns(place, EVERYTHING, as_json=False)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE turn_schema SET version = 99")

    with pytest.raises(HistoryError, match="its tables have version 99"):
        await list_turns(place, EVERYTHING, as_json=False)


async def test_a_directory_that_is_used_by_no_server_is_left_alone(tmp_path: Path) -> None:
    async with fb.Scope() as scope:
        await scope.provide(hold(tmp_path))

        with pytest.raises(StateDirLocked, match="in use by"):
            await list_turns(Place(tmp_path), EVERYTHING, as_json=False)


async def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="there is no state directory"):
        await list_turns(Place(tmp_path / "none"), EVERYTHING, as_json=False)

    assert names_in(tmp_path) == []


# ---- the program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list", "--workspace", "../w1"], 2, "--workspace: '../w1' is not"),
        (["list", "--owner", ""], 2, "--owner: '' is not"),
        (["show", "turn_1"], 2, "'turn_1' is not a handle id"),
        (["show", "wst_none"], 1, "there is no turn wst_none"),
        (["interrupt", "wst_none"], 1, "there is no turn wst_none"),
        (["stop", "wst_none"], 2, "No such command 'stop'"),
        ([], 2, "Missing command"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    ended, output, errors = fiberscope(
        tmp_path, "turns", *arguments, FIBERSCOPE_STATE=str(tmp_path)
    )

    assert (ended, output) == (code, "")
    assert errors.startswith("fiberscope: ")
    assert said in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.slow
def test_a_reader_that_has_gone_ends_the_program_quietly(tmp_path: Path) -> None:
    with running(Program(tmp_path, "turns", "list", "--state", str(tmp_path))) as program:
        assert program.process.stdout is not None
        program.process.stdout.close()
        code = program.process.wait(WAIT_SECONDS)

    assert code == 1
    assert program.log == ""


@pytest.mark.slow
@pytest.mark.lifecycle
def test_the_program_lists_and_ends_turns_of_a_server_and_of_what_it_left(tmp_path: Path) -> None:
    state = tmp_path / "state"
    at = ("--state", str(state))
    with serving(tmp_path, state) as server, server.client() as client:
        path = "/api/workspaces/w1/turns"
        handle_id = client.post(path, json={"prompt": "stay"}).json()["handleId"]
        code, listed, errors = fiberscope(tmp_path, "turns", "list", *at)
        server.process.kill()
        server.end()
    assert (code, errors) == (0, "")
    assert handle_id in listed
    assert listed.endswith("1 turn. 0 ends ignored as uncorrelated.\n")

    ended = fiberscope(tmp_path, "turns", "interrupt", handle_id, *at)
    shown = fiberscope(tmp_path, "turns", "show", handle_id, "--json", *at)

    assert ended == (0, f"{handle_id} is interrupted: interrupted by user\n", "")
    assert json.loads(shown[1])["evidence"] == {"by": "user"}

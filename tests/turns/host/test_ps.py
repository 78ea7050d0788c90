"""``fiberscope ps`` and the call that it makes: what is alive, for this machine only."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from rich.console import Console

import fibers as fb
from fibers import Effect
from fibers.dump import as_json, report, snapshot
from fibers.dump.tree import Snapshot
from turns.host import discovery
from turns.host.errors import HostError
from turns.host.ps import PsConfig, picture, ps

from .kit import a_server, a_site, send
from .programs import WAIT_SECONDS, environment, fiberscope, serving, wait_for

FIBERS = "/api/fibers"


@pytest.fixture(autouse=True)
def no_log() -> Generator[None]:
    """What a program writes is told apart from what it logs; here both would be standard output."""
    with structlog.testing.capture_logs():
        yield


# ---- the call


async def test_the_call_tells_every_fiber_with_its_place(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        await send(client)
        answer = await site.provider.next_answer()
        answer.say("so far")
        response = await client.get(FIBERS)
        found = response.json()

    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert found["pid"] == os.getpid()
    (app,) = [scope for scope in found["scopes"] if scope["name"] == "AppScope"]
    assert app["occupants"]["streamengine"]["streams"] == ["w1/" + _message_id(app)]
    names = [fiber["name"] for fiber in app["fibers"]]
    assert any(name.startswith("supervisor of w1/") for name in names)
    assert "supervisor of w1/" in found["text"]


def _message_id(app: dict[str, Any]) -> str:
    name = next(f["name"] for f in app["fibers"] if f["name"].startswith("supervisor of"))
    return str(name).rpartition("/")[2]


async def test_the_call_asks_for_the_token(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client(token=False) as client:
        response = await client.get(FIBERS)

    assert response.status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
async def test_beyond_this_machine_there_is_no_such_call(tmp_path: Path, host: str) -> None:
    """Not even for who has the token: it names files and what the code does."""
    async with a_site(tmp_path, host=host) as site, site.client() as client:
        response = await client.get(FIBERS)

    assert response.status_code == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
async def test_on_a_loopback_address_there_is(tmp_path: Path, host: str) -> None:
    async with a_site(tmp_path, host=host) as site, site.client() as client:
        response = await client.get(FIBERS)

    assert response.status_code == 200


async def test_another_page_may_not_ask(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        response = await client.get(FIBERS, headers={"origin": "http://evil.example"})

    assert response.status_code == 403


async def test_it_is_told_also_while_the_server_shuts_down(tmp_path: Path) -> None:
    """That is when one wants to know."""
    async with a_site(tmp_path) as site, site.client() as client:
        site.shutdown.begin()
        response = await client.get(FIBERS)

    assert response.status_code == 200


async def test_the_loop_turns_while_many_fibers_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look waits for the loop: on the loop's own thread it would wait in vain."""
    looking, has_turned = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def look() -> Snapshot:
        looking.set()
        in_time.append(has_turned.wait(WAIT_SECONDS))
        return snapshot()

    monkeypatch.setattr("turns.host.api.snapshot", look)
    async with a_site(tmp_path) as site, site.client() as client:
        asking = asyncio.create_task(client.get(FIBERS))
        assert await asyncio.to_thread(looking.wait, WAIT_SECONDS)
        has_turned.set()
        found = (await asking).json()

    assert in_time == [True]
    assert "count" in found


# ---- the command


async def test_the_command_finds_the_server_and_writes_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_server(tmp_path):
        code = await ps(PsConfig(tmp_path, once=True))

    assert code == 0
    text = capsys.readouterr().out
    assert re.match(r"\d+ live fibers: ", text)
    assert "web server" in text
    assert "occupant streamengine: " in text
    assert "occupant watchdog: " in text


async def test_where_the_output_is_no_terminal_it_looks_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_server(tmp_path):
        await ps(PsConfig(tmp_path))

    assert "live fibers" in capsys.readouterr().out


async def test_json_is_the_answer_of_the_server_without_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_server(tmp_path):
        await ps(PsConfig(tmp_path, as_json=True))

    found = json.loads(capsys.readouterr().out)
    assert {"pid", "count", "states", "scopes", "unowned"} == found.keys()
    assert found["count"] > 0


async def test_a_name_cannot_reach_the_terminal_with_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_server(tmp_path), fb.Scope() as scope:
        never: Effect[None] = Effect.never()
        fiber = scope.fork(never, start_immediately=True)
        fiber.set_name("evil\x1b[2J\u202egnihton")
        await ps(PsConfig(tmp_path, once=True))
        shown = as_json(report(snapshot()))

    text = capsys.readouterr().out
    assert "evil" in text
    drawn = io.StringIO()
    Console(width=300, file=drawn).print(picture({"pid": 1, **shown}))
    for written in (text, drawn.getvalue()):
        assert "\x1b" not in written
        assert "\u202e" not in written


async def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"no server works on .*: start one with fiberscope serve"):
        await ps(PsConfig(tmp_path / "nobody was here"))

    assert not (tmp_path / "nobody was here").exists()


async def test_the_note_of_a_killed_server_is_not_followed(tmp_path: Path) -> None:
    """Somebody else may listen there now, and would get the token."""
    discovery.announce(tmp_path, "http://127.0.0.1:9")

    assert discovery.find_running(tmp_path) is None
    with pytest.raises(HostError, match="no server works on"):
        await ps(PsConfig(tmp_path))


async def test_a_server_that_listens_beyond_this_machine_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def no_loopback(_host: str) -> bool:
        return False

    monkeypatch.setattr("turns.host.config.is_loopback", no_loopback)
    async with a_server(tmp_path):
        with pytest.raises(HostError, match="it listens beyond this machine"):
            await ps(PsConfig(tmp_path))


# ---- real processes


@pytest.mark.slow
def test_the_command_shows_a_stream_of_a_real_server(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        message_id = server.send("stay")
        wait_for(state / "workspaces/w1/partial.json", "ten")
        code, output, errors = fiberscope(tmp_path, "ps", "--once", "--state", str(state))

    assert (code, errors) == (0, "")
    assert f"supervisor of w1/{message_id}" in output
    assert f"occupant streamengine: streams=['w1/{message_id}']" in output


@pytest.mark.slow
def test_no_server_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    code, output, errors = fiberscope(tmp_path, "ps", "--state", str(tmp_path / "none"))

    assert (code, output) == (1, "")
    assert errors.startswith("fiberscope: no server works on ")
    assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.lifecycle
def test_in_a_terminal_it_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    """And draws again: the picture is replaced, not repeated."""
    state = tmp_path / "state"
    with serving(tmp_path, state):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "turns.host", "ps", "--state", str(state), "--interval", "0.1"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm", COLUMNS="200", LINES="40"),
        )
        os.close(theirs)
        seen = ""
        try:
            while seen.count("web server") < 3:
                seen += os.read(ours, 65536).decode()
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    seen += os.read(ours, 65536).decode()
                except OSError:
                    break  # how a terminal says that nobody is at the other end
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
            process.wait(WAIT_SECONDS)
            os.close(ours)

    assert code == 130
    assert "WAITS FOR" in seen
    assert "\x1b[2K" in seen
    assert "Traceback" not in seen


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.skipif(not hasattr(signal, "SIGQUIT"), reason="there is no such signal here")
def test_sigquit_makes_a_server_write_a_dump_and_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        server.signal(signal.SIGQUIT)
        wait_for(server._log, "uvicorn/server.py")
        server.send("hello")
        log = server.log

    assert "SIGQUIT: what is alive\n" in log
    assert "web server, suspended" in log


@pytest.mark.slow
def test_a_wrong_token_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    """Somebody replaced the token file."""
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        assert server.token is not None
        (state / "token").write_text("x" * 43 + "\n")
        code, output, errors = fiberscope(tmp_path, "ps", "--state", str(state))

    assert (code, output) == (1, "")
    assert "send its token" in errors

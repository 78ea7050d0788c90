"""``fiberscope serve`` as a process: signals, a kill, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import httpx
import pytest
from httpx_sse import connect_sse

import fibers as fb
from fibers.app import OUTER_BUDGET_SECONDS as BUDGET_SECONDS
from turns.host import discovery
from turns.host.cli import main
from turns.host.errors import HostError
from turns.host.remote import ask_server

from .programs import (
    WORDS,
    Program,
    Server,
    fiberscope,
    running,
    said,
    script_in,
    serving,
    stored,
    wait_for,
)

pytestmark = pytest.mark.slow


def partial_of(state: Path, workspace: str = "w1") -> Path:
    return state / "workspaces" / workspace / "partial.json"


class Listener(threading.Thread):
    """Reads the event stream of a workspace to its end."""

    def __init__(self, server: Server, workspace: str = "w1") -> None:
        super().__init__(daemon=True)
        self._server = server
        self._workspace = workspace
        self.seen: list[str] = []
        self.ready = threading.Event()
        self.start()
        assert self.ready.wait(20)

    def run(self) -> None:
        path = f"/api/workspaces/{self._workspace}/events"
        with self._server.client() as client, connect_sse(client, "GET", path) as source:
            for event in source.iter_sse():
                self.seen.append(event.event)
                self.ready.set()

    def all(self) -> list[str]:
        self.join(20)
        assert not self.is_alive()
        return self.seen


# ---- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.lifecycle
def test_a_signal_ends_the_streams_first_then_the_server(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        here, there, idle = Listener(server), Listener(server, "w2"), Listener(server, "w3")
        server.send("stay")
        server.send("stay", "w2")
        wait_for(partial_of(state), "ten")
        wait_for(partial_of(state, "w2"), "ten")
        started = time.monotonic()
        server.signal(number)
        exit_code, _ = server.end()
        seconds = time.monotonic() - started

        assert exit_code == code
        assert seconds < BUDGET_SECONDS
        for listener in (here, there):
            assert listener.all()[-2:] == ["stream-abort", "shutting-down"]
        assert idle.all() == ["caught-up", "shutting-down"]
    order = re.findall(
        r"\[shutdown\] (streamManager\.abortStream|AppScope closed|server\.stop|Runtime disposed)",
        server.log,
    )
    assert order == [
        "streamManager.abortStream",
        "streamManager.abortStream",
        "AppScope closed",
        "server.stop",
        "Runtime disposed",
    ]
    for workspace in ("w1", "w2"):
        assert not partial_of(state, workspace).exists()
        user, answer = stored(state, workspace)
        assert said(user) == "stay"
        assert said(answer) == WORDS
        assert answer["metadata"]["partial"] is True
        assert answer["metadata"]["abortReason"] == "system"
    assert not (state / "server.json").exists()


@pytest.mark.lifecycle
def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "state") as server:
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        code, output = server.end()

    assert code == 143
    assert output == ""
    assert time.monotonic() - started < BUDGET_SECONDS


@pytest.mark.spec("VA9")
@pytest.mark.lifecycle
def test_a_provider_that_does_not_let_go_costs_the_bound_and_new_commands_are_refused_meanwhile(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server, server.client() as client:
        server.send("wedge")
        wait_for(partial_of(state), "ten")
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        while client.get("/healthz").json() == {"status": "ok"}:
            time.sleep(0.005)
        refused = client.post("/api/workspaces/w2/messages", json={"text": "hello"})
        note = discovery.find(state, server.process.pid)
        assert note is not None
        # As the command does it, without the time that a process needs to start.
        with pytest.raises(HostError) as told:
            fb.run(ask_server(state, note, "w2", "hello"))
        exit_code, _ = server.end()
        seconds = time.monotonic() - started

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert str(told.value) == "the server is shutting down: try again in a few seconds"
    assert exit_code == 143
    assert 1.9 < seconds < BUDGET_SECONDS
    assert "teardown timed out" in server.log
    assert said(stored(state)[1]) == WORDS


@pytest.mark.lifecycle
def test_after_a_kill_the_next_start_shows_what_was_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        server.send("stay")
        wait_for(partial_of(state), "ten")
        server.signal(signal.SIGKILL)
        server.end()

        assert partial_of(state).exists()
        assert (state / "server.json").exists()
    with serving(tmp_path, state) as server:
        user, answer = server.rows()

        assert (said(user), said(answer)) == ("stay", WORDS)
        assert answer["metadata"]["partial"] is True
        assert "an interrupted message was found" in server.log
        assert not partial_of(state).exists()
        server.send("hello")


def test_a_second_server_is_refused_and_told_who_has_the_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        code, output, errors = fiberscope(
            tmp_path,
            *("serve", "--port", "0", "--state", str(state), "--model", "local"),
            FIBERSCOPE_LOG="warning",
        )

        assert (code, output) == (1, "")
        assert errors.count("\n") == 1
        assert f"process {server.process.pid} since" in errors
        assert "Stop that process first" in errors
        server.send("hello")


@pytest.mark.lifecycle
def test_a_killed_server_names_itself_no_more(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        server.signal(signal.SIGKILL)
        server.end()

    code, output, _ = fiberscope(
        tmp_path, "chat", "hello", "--state", str(state), "--model", script_in(tmp_path)
    )

    assert (code, output) == (0, WORDS + "\n")


# ---- what keeps it from starting


def test_a_port_that_is_taken_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output, errors = fiberscope(
            tmp_path,
            *("serve", "--port", str(port), "--state", str(tmp_path / "s")),
            *("--model", script_in(tmp_path)),
            FIBERSCOPE_LOG="warning",
        )

    assert (code, output) == (1, "")
    assert errors == (
        f"fiberscope: can't listen on 127.0.0.1 port {port}: Address already in use. "
        "Use another one with --port, or 0 for any that is free\n"
    )


def test_an_address_that_is_none_is_one_line_that_names_host(tmp_path: Path) -> None:
    code, output, errors = fiberscope(
        tmp_path,
        *("serve", "--port", "0", "--host", "192.0.2.1", "--state", str(tmp_path / "s")),
        *("--model", script_in(tmp_path)),
        FIBERSCOPE_LOG="warning",
    )

    assert (code, output) == (1, "")
    assert errors.startswith("fiberscope: can't listen on 192.0.2.1 port 0: ")
    assert errors.endswith("Name an address of this machine with --host\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--model", "gpt-9"], 2, "there is no model 'gpt-9': use local"),
        (["serve", "--model", "scripted:no-such-file"], 2, "there is no file no-such-file"),
        (["serve", "--host", "192.0.2.1", "--port", "0"], 1, "can't listen on 192.0.2.1"),
        (["serve", "--state", "file"], 1, "file"),
        (["serve", "--state", "file/below"], 1, "file"),
        (["chat", "hi", "--model", "gpt-9"], 2, "there is no model 'gpt-9'"),
    ],
)
def test_what_can_not_be_done_is_one_line_with_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "file").touch()
    model = [] if "--model" in arguments else ["--model", script_in(tmp_path)]

    exit_code, output, errors = fiberscope(
        tmp_path,
        *arguments,
        *model,
        FIBERSCOPE_STATE=str(tmp_path / "state"),
        FIBERSCOPE_LOG="warning",
    )

    assert (exit_code, output) == (code, "")
    assert_one_line(errors, words)


def assert_one_line(errors: str, words: str) -> None:
    assert errors.startswith("fiberscope: ")
    assert errors.count("\n") == 1
    assert words.lower() in errors.lower()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--port", "many"], "--port"),
        (["serve", "--no-auth", "--host", "0.0.0.0"], "loopback"),
        (["serve", "--nonsense"], "--nonsense"),
        (["dance"], "dance"),
        ([], "--help"),
        (["chat"], "TEXT"),
        (["chat", ""], "the message has no text"),
        (["chat", " \n"], "the message has no text"),
        (["chat", "hi", "--workspace", "../up"], "not a valid id"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["fiberscope", *arguments])

    with pytest.raises(SystemExit) as left:
        main()

    said = capsys.readouterr()
    assert left.value.code == 2
    assert said.out == ""
    assert_one_line(said.err, words)


def test_an_unknown_log_level_is_refused(tmp_path: Path) -> None:
    code, _, errors = fiberscope(tmp_path, "serve", FIBERSCOPE_LOG="loud")

    assert code == 2
    assert (
        errors == "fiberscope: FIBERSCOPE_LOG is one of debug, info, warning, error, not 'loud'\n"
    )


def test_the_version_is_told(tmp_path: Path) -> None:
    code, output, _ = fiberscope(tmp_path, "--version")

    assert code == 0
    assert re.fullmatch(r"fiberscope \d+\.\d+\.\d+\S*\n", output)


# ---- the token and the files


def test_the_token_is_shown_once_and_is_nowhere_else(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state, FIBERSCOPE_LOG="debug") as server:
        token = server.token
        assert token is not None
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            client.get("/", params={"token": token})
            client.get("/api/workspaces/w1/history")
            client.post("/api/session", json={"token": token})
            assert client.get("/api/workspaces/w1/history").status_code == 200
            cookie = client.cookies[f"fiberscope_{server.url.rpartition(':')[2]}"]
        server.send("hello")
        argv = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        environ = Path(f"/proc/{server.process.pid}/environ").read_bytes()
        server.signal(signal.SIGTERM)
        _, output = server.end()

        assert output == ""
        assert token not in server.log
        assert cookie not in server.log
        assert token.encode() not in argv + environ
    holders = [p for p in state.rglob("*") if p.is_file() and token in p.read_text()]
    assert holders == [state / "token"]


def test_without_auth_no_token_is_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state, "--no-auth") as server:
        assert server.token is None
        server.send("hello")

    assert not (state / "token").exists()


def test_everything_in_the_state_directory_is_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server:
        server.send("stay")
        wait_for(partial_of(state), "ten")
        modes = {
            str(p.relative_to(state)): stat.S_IMODE(p.lstat().st_mode)
            for p in [state, *state.rglob("*")]
        }

    files = {name for name, mode in modes.items() if mode == 0o600}
    assert {mode for name, mode in modes.items() if name not in files} == {0o700}
    assert {"token", "server.json", "workspaces/w1/chat.jsonl"} <= files


def test_a_link_in_the_place_of_a_workspace_is_not_followed(tmp_path: Path) -> None:
    state, outside = tmp_path / "state", tmp_path / "outside"
    outside.mkdir()
    with serving(tmp_path, state) as server, server.client() as client:
        server.send("hello")
        (state / "workspaces" / "w9").symlink_to(outside)
        sent = client.post("/api/workspaces/w9/messages", json={"text": "hello"})
        read = client.get("/api/workspaces/w9/history")
        server.send("hello again")

    assert sent.status_code == 500
    assert sent.json()["errorKind"] == "unsafe_path"
    assert read.status_code == 500
    assert not list(outside.iterdir())


def test_a_model_that_writes_escapes_forges_no_line_of_the_log(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "state") as server:
        listener = Listener(server)
        server.send("break")
        while "error" not in listener.seen:
            time.sleep(0.01)
        server.signal(signal.SIGTERM)
        server.end()
        lines = server.log.splitlines()

    failed = [line for line in lines if "stream failed" in line]
    assert len(failed) == 1
    assert "broken" in failed[0]
    assert all(line.isprintable() and line[:4].isdigit() for line in lines)


def test_the_state_directory_may_be_a_link_itself(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(0o700)
    link.symlink_to(real)
    with serving(tmp_path, link) as server:
        server.send("hello")

    assert (real / "workspaces/w1/chat.jsonl").exists()


def test_an_output_that_nobody_reads_any_more_does_not_stop_the_server(tmp_path: Path) -> None:
    state = tmp_path / "state"
    arguments = ("serve", "--port", "0", "--state", str(state), "--model", script_in(tmp_path))
    with running(Program(tmp_path, *arguments)) as program:
        url = program.line().split()[1]
        assert program.process.stdout is not None
        program.process.stdout.close()
        base, _, token = url.partition("/#token=")
        answer = httpx.get(
            f"{base}/api/workspaces/w1/history", headers={"authorization": f"Bearer {token}"}
        )
        program.signal(signal.SIGTERM)
        program.process.wait(20)

    assert json.loads(answer.text)["rows"] == []
    assert program.process.returncode == 143

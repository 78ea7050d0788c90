"""``fiberscope chat``: as a root of its own, and through the server of its state directory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog.testing

import fibers as fb
from fibers import Failure
from turns.host import discovery
from turns.host.chat import Answering
from turns.host.config import Limits
from turns.host.remote import ask_server
from turns.host.root import open_root
from turns.host.terminal import Terminal

from .kit import TalkativeProvider, a_server, events_of, until
from .programs import (
    WORDS,
    Program,
    fiberscope,
    running,
    said,
    script_in,
    serving,
    stored,
    wait_for,
)

pytestmark = pytest.mark.slow

STATE = "state"


@contextmanager
def a_home(folder: Path, kind: str) -> Generator[list[str]]:
    """What a chat is told, with a server on its state directory or without one."""
    state = folder / STATE
    options = ["--state", str(state), "--workspace", "w1"]
    if kind == "server":
        # The model is the server's: that of the command is not even looked at.
        with serving(folder, state):
            yield [*options, "--model", "scripted:/no-such-file"]
    else:
        yield [*options, "--model", script_in(folder)]


both = pytest.mark.parametrize("kind", ["root", "server"])


@both
def test_it_writes_the_answer_and_keeps_both_rows(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        code, output, errors = fiberscope(tmp_path, "chat", "hello", *options)

    assert (code, output, errors) == (0, WORDS + "\n", "")
    assert [said(row) for row in stored(tmp_path / STATE)] == ["hello", WORDS]


@both
def test_control_characters_of_the_model_never_reach_the_terminal(
    tmp_path: Path, kind: str
) -> None:
    with a_home(tmp_path, kind) as options:
        code, output, _ = fiberscope(tmp_path, "chat", "escape", *options)

    assert (code, output) == (0, "[2Jred [0mover\n")
    assert "\x1b" in said(stored(tmp_path / STATE)[1])


@both
def test_an_answer_that_fails_is_one_line(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        code, output, errors = fiberscope(
            tmp_path, "chat", "break", *options, FIBERSCOPE_LOG="error"
        )
        again, _, _ = fiberscope(tmp_path, "chat", "hello", *options)

    assert (code, output) == (1, "half \n")
    assert errors == "fiberscope: the answer failed (unknown): broken\\nline \\x1b[31m\n"
    assert again == 0
    assert [said(row) for row in stored(tmp_path / STATE)] == ["break", "half ", "hello", WORDS]


@both
@pytest.mark.lifecycle
def test_ctrl_c_keeps_what_was_said(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        with running(Program(tmp_path, "chat", "stay", *options)) as chat:
            chat.read_until("ten")
            chat.signal(signal.SIGINT)
            code, output = chat.end()
        rows = stored(tmp_path / STATE)

        assert (code, output) == (130, "\n")
        assert chat.log == "fiberscope: interrupted; what was said is kept\n"
        assert [said(row) for row in rows] == ["stay", WORDS]
        assert rows[1]["metadata"]["partial"] is True
        assert rows[1]["metadata"]["abortReason"] == "user"
        assert not (tmp_path / STATE / "workspaces/w1/partial.json").exists()


@pytest.mark.lifecycle
def test_sigterm_keeps_what_was_said_as_the_system(tmp_path: Path) -> None:
    with (
        a_home(tmp_path, "root") as options,
        running(Program(tmp_path, "chat", "stay", *options)) as chat,
    ):
        chat.read_until("ten")
        chat.signal(signal.SIGTERM)
        code, _ = chat.end()
        rows = stored(tmp_path / STATE)

    assert code == 143
    assert said(rows[1]) == WORDS
    assert rows[1]["metadata"]["abortReason"] == "system"


def test_a_client_that_is_ended_leaves_the_answer_to_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / STATE) as server:
        options = ["--state", str(tmp_path / STATE), "--workspace", "w1"]
        with running(Program(tmp_path, "chat", "stay", *options)) as chat:
            chat.read_until("ten")
            chat.signal(signal.SIGTERM)
            code, _ = chat.end()
        with server.client() as client:
            first = client.stream("GET", "/api/workspaces/w1/events")
            with first as response:
                replayed: list[str] = []
                for line in response.iter_lines():
                    if "caught-up" in line:
                        break
                    if line.startswith("data: "):
                        replayed.append(json.loads(line.removeprefix("data: ")).get("delta", ""))

    assert code == 143
    assert "".join(replayed) == WORDS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.lifecycle
def test_a_server_that_ends_meanwhile_is_one_line(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, tmp_path / STATE) as server:
        options = ["--state", str(tmp_path / STATE), "--workspace", "w1"]
        with running(Program(tmp_path, "chat", "stay", *options)) as chat:
            chat.read_until("ten")
            server.signal(number)
            code, output = chat.end()

    assert (code, output) == (1, "\n" if number is signal.SIGTERM else "")
    assert chat.log.startswith("fiberscope: ")
    assert chat.log.count("\n") == 1
    assert "kept" in chat.log


def test_two_chats_do_not_share_a_state_directory(tmp_path: Path) -> None:
    with (
        a_home(tmp_path, "root") as options,
        running(Program(tmp_path, "chat", "stay", *options)) as first,
    ):
        first.read_until("ten")
        code, output, errors = fiberscope(tmp_path, "chat", "hello", *options)
        first.signal(signal.SIGINT)
        first.end()

    assert (code, output) == (1, "")
    assert errors.count("\n") == 1
    assert f"process {first.process.pid} since" in errors


@both
def test_a_message_comes_from_standard_input(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        text = "long " * 100_000
        code, output, _ = fiberscope(tmp_path, "chat", "-", *options, stdin=text.encode())

    assert (code, output) == (0, WORDS + "\n")
    assert said(stored(tmp_path / STATE)[0]) == text


@both
@pytest.mark.parametrize(
    ("text", "words"),
    [(b" \n", "no text"), (b"", "no text"), (b"x" * 10_000_000, "longer than 1000000 bytes")],
)
def test_a_message_of_no_or_too_much_text_is_refused(
    tmp_path: Path, kind: str, text: bytes, words: str
) -> None:
    with a_home(tmp_path, kind) as options:
        code, output, errors = fiberscope(tmp_path, "chat", "-", *options, stdin=text)

    assert (code, output) == (2, "")
    assert errors == f"fiberscope: the message {'has' if 'no' in words else 'is'} {words}\n"


@both
@pytest.mark.lifecycle
def test_an_output_that_is_closed_stops_the_answer_and_keeps_it(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        with running(Program(tmp_path, "chat", "flood", *options)) as chat:
            chat.read_until("xxx")
            assert chat.process.stdout is not None
            chat.process.stdout.close()
            code = chat.process.wait(20)
        rows = stored(tmp_path / STATE)

    assert code == 1
    assert rows[1]["metadata"]["abortReason"] == "user"
    assert chat.log == ""


@both
def test_ctrl_c_works_although_nobody_reads_the_output(tmp_path: Path, kind: str) -> None:
    with a_home(tmp_path, kind) as options:
        with running(Program(tmp_path, "chat", "flood", *options)) as chat:
            wait_for(tmp_path / STATE / "workspaces/w1/partial.json", "x" * 200_000)
            chat.signal(signal.SIGINT)
            # What it wrote is in the pipe, which is full: so it ends only when somebody reads, or
            # by its own bound.
            code, _ = chat.end()
        rows = stored(tmp_path / STATE)

    assert code == 130
    assert rows[1]["metadata"]["abortReason"] == "user"


def test_the_token_goes_to_no_proxy(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    with a_home(tmp_path, "server") as options:
        code, output, _ = fiberscope(
            tmp_path, "chat", "hello", *options, http_proxy=nowhere, ALL_PROXY=nowhere
        )

    assert (code, output) == (0, WORDS + "\n")


def test_a_note_of_another_process_is_not_believed(tmp_path: Path) -> None:
    with (
        a_home(tmp_path, "root") as options,
        running(Program(tmp_path, "chat", "stay", *options)) as first,
    ):
        first.read_until("ten")
        # As an ended server left it; a new process listens on its port by now.
        note = tmp_path / STATE / "server.json"
        note.write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
        note.chmod(0o600)
        code, _, errors = fiberscope(tmp_path, "chat", "hello", *options)
        first.signal(signal.SIGINT)
        first.end()

    assert code == 1
    assert "is in use by" in errors


def test_it_writes_to_a_terminal_without_an_encoding_for_it(tmp_path: Path) -> None:
    with a_home(tmp_path, "root") as options:
        code, output, errors = fiberscope(
            tmp_path, "chat", "hello", *options, PYTHONIOENCODING="ascii", LC_ALL="C"
        )

    assert (code, output, errors) == (0, WORDS + "\n", "")


# ---- the cleanup list


@pytest.mark.spec("VA11")
@pytest.mark.lifecycle
async def test_a_cleanup_step_that_raises_keeps_no_later_one_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_self: Terminal, _text: str) -> None:
        raise OSError("the terminal is gone")

    provider = TalkativeProvider()
    async with fb.Scope() as outer:
        root = await outer.provide(open_root(tmp_path, lambda: provider, Limits()))
        answering = Answering(root, "w1", Terminal())
        fiber = fb.run_fork(answering.run("hello").on_exit(answering.clean_up))
        fiber.ignore_failure()
        answer = (await provider.next_answer()).say("so far")
        await until((tmp_path / "workspaces/w1/partial.json").exists)
        monkeypatch.setattr(Terminal, "write", broken)
        with structlog.testing.capture_logs():
            await fiber.interrupt(reason="SIGINT")

        assert answer.signal.aborted
        assert root.app_scope.state == "closed"
        with pytest.raises(RuntimeError, match="disposed"):
            root.runtime.run_sync(fb.Effect.succeed(None))
    exit_ = fiber.poll()
    assert isinstance(exit_, Failure)
    assert exit_.failure().has_interrupts_only
    rows = stored(tmp_path)
    assert said(rows[1]) == "so far"
    assert rows[1]["metadata"]["abortReason"] == "user"


# ---- a client that is behind


@pytest.mark.parametrize("ends", ["after", "meanwhile"])
async def test_a_client_that_fell_behind_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The server closes its event stream; it comes again and goes on where it was."""
    written: list[str] = []
    gate = asyncio.Event()

    async def write(_self: Terminal, text: str) -> None:
        written.append(text)
        await gate.wait()

    monkeypatch.setattr(Terminal, "write", write)
    words = [f"{number} " + "x" * 50_000 for number in range(200)]
    with structlog.testing.capture_logs() as logs:
        async with (
            a_server(tmp_path, limits=Limits(subscriber_bytes=100_000)) as live,
            live.client() as client,
            events_of(client) as quick,
        ):
            note = discovery.find(tmp_path, os.getpid())
            assert note is not None
            fiber = fb.run_fork(ask_server(tmp_path, note, "w1", "hello"))
            answer = await live.provider.next_answer()
            said = ""
            for word in words:
                answer.say(word)
                said += word
                await quick.until("stream-delta")
                if any("too far behind" in entry["event"] for entry in logs):
                    break
            if ends == "meanwhile":
                answer.finish()
                await quick.until("stream-end")
            gate.set()
            if ends == "after":
                answer.say("and more").finish()
                said += "and more"
            code = await fiber.join()

    assert code == 0
    assert any("too far behind" in entry["event"] for entry in logs)
    assert "".join(written).rstrip("\n") == said

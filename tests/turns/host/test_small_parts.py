"""The small parts: text made harmless, the log, the state directory, the note of a server, names of
models, the configuration.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from fibers import AbortController, AbortSignal
from streamengine import LateUsage, StreamRequest
from streamengine.model import ProviderPart, TextDelta, Usage
from streamengine.providers.local import LocalModelError, LocalProvider
from turns.host import discovery, logs, models
from turns.host.config import ServeConfig, default_state, is_loopback
from turns.host.errors import HostError, UsageError
from turns.host.models import ImpatientProvider, provider_for
from turns.host.server import listen, port_of
from turns.host.state import prepare, read_private, write_private
from turns.host.text import escaped, for_terminal

# ---- text

HOSTILE = "\x1b[2J\x1b]0;title\x07red\rover\x9b31m\u202eesrever\u2066\u2028\x00\x7f\ud83d"


def test_a_terminal_gets_no_control_characters() -> None:
    shown = for_terminal(HOSTILE)

    assert shown == "[2J]0;titleredover31mesrever"
    shown.encode()


def test_a_terminal_gets_lines_tabs_and_every_script() -> None:
    text = "one\n\ttwo\u00a0\u00e9\u4e2d\U0001f642\u05d0"

    assert for_terminal(text) == text


def test_a_line_of_the_log_stays_one_line() -> None:
    line = escaped(HOSTILE + "\nforged: yes")

    assert line.isprintable()
    assert "\\x1b[2J" in line
    assert "\\nforged" in line
    line.encode()


# ---- the log


def test_both_kinds_of_logger_write_one_line_an_event(log: io.StringIO) -> None:
    structlog.get_logger("streamengine.x").info("told", workspaceId="w1", text="two words", ms=3)
    logging.getLogger("fibers.app").info("[shutdown] %s closed {ms: %d}", "AppScope", 7)

    first, second = log.getvalue().splitlines()
    assert (
        first.partition(" ")[2] == 'info streamengine.x told workspaceId=w1 text="two words" ms=3'
    )
    assert second.partition(" ")[2] == "info fibers.app [shutdown] AppScope closed {ms: 7}"
    assert first[:4].isdigit()
    assert first.split()[0].endswith("Z")


def test_nothing_that_is_logged_can_forge_a_line(log: io.StringIO) -> None:
    structlog.get_logger("x").warning("a\nb", error="c\x1b[31m\nd", k="\u2028")
    try:
        raise ValueError("e\nf\x00")
    except ValueError:
        logging.getLogger("y").exception("g\rh")

    lines = log.getvalue().split("\n")
    assert len(lines) == 3
    assert lines[2] == ""
    assert all(line.isprintable() for line in lines)
    assert "ValueError" in lines[1]


def test_a_secret_is_never_written(log: io.StringIO) -> None:
    logs.keep_secret("hunter2hunter2")
    structlog.get_logger("x").info("hunter2hunter2", key="say hunter2hunter2")
    try:
        raise ValueError("hunter2hunter2")
    except ValueError:
        logging.getLogger("y").exception("failed with %s", "hunter2hunter2")

    assert "hunter2" not in log.getvalue()
    assert log.getvalue().count("[secret]") >= 4


@pytest.mark.parametrize("secret", ['pass"word-7', "pass\\word-7"])
def test_a_secret_is_found_before_it_is_quoted(log: io.StringIO, secret: str) -> None:
    logs.keep_secret(secret)
    structlog.get_logger("x").info("told", error=f"not with {secret}")

    assert log.getvalue().endswith('error="not with [secret]"\n')


def test_a_secret_is_found_before_a_value_is_cut(log: io.StringIO) -> None:
    logs.keep_secret("hunter2hunter2")
    for before in range(7_986, 8_001):
        structlog.get_logger("x").info("told", error="e" * before + "hunter2hunter2")

    assert "hunter" not in log.getvalue()


def test_a_huge_value_is_cut(log: io.StringIO) -> None:
    structlog.get_logger("x").info("told", error="e" * 1_000_000)

    assert len(log.getvalue()) < 10_000


@pytest.mark.parametrize(
    ("value", "level"),
    [("", logging.INFO), ("debug", logging.DEBUG), ("WARNING", logging.WARNING)],
)
def test_the_level_comes_from_the_environment(value: str, level: int) -> None:
    assert logs.level_of({"FIBERSCOPE_LOG": value}) == level


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        logs.level_of({"FIBERSCOPE_LOG": "loud"})


# ---- the state directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_directory_is_made_private_with_its_parents(tmp_path: Path) -> None:
    state = prepare(tmp_path / "a" / "b")

    assert mode_of(state) == 0o700
    assert mode_of(state.parent) == 0o700


@pytest.mark.parametrize("name", [None, "workspaces", ".lock"])
def test_a_state_directory_that_is_open_to_others_is_closed(
    tmp_path: Path, name: str | None
) -> None:
    state = tmp_path / "state"
    state.mkdir(0o755)
    if name is not None:
        (state / name).mkdir()

    prepare(state)

    assert mode_of(state) == 0o700


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "photos"
    state.mkdir(0o755)
    (state / "cat.jpg").touch()

    with pytest.raises(HostError, match="not ours"):
        prepare(state)

    assert mode_of(state) == 0o755


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_state_directory_that_cannot_be_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(HostError, match=str(tmp_path)):
        prepare(path if kind == "a file" else path / "state")


def test_a_small_file_is_private_and_comes_back(tmp_path: Path) -> None:
    write_private(tmp_path, "note", "text")

    assert mode_of(tmp_path / "note") == 0o600
    assert read_private(tmp_path, "note") == "text"
    assert read_private(tmp_path, "other") is None
    assert read_private(tmp_path / "nowhere", "note") is None


def test_no_link_is_followed_out_of_the_state_directory(tmp_path: Path) -> None:
    state = prepare(tmp_path / "state")
    outside = tmp_path / "outside"
    outside.write_text("precious")
    outside.chmod(0o600)
    (state / "note").symlink_to(outside)

    assert read_private(state, "note") is None
    write_private(state, "note", "text")

    assert outside.read_text() == "precious"
    assert not (state / "note").is_symlink()


@pytest.mark.parametrize("content", [b"\xff", None])
def test_what_is_no_text_or_not_only_ours_is_not_read(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "note"
    path.write_bytes(content or b"text")
    path.chmod(0o600 if content else 0o640)

    assert read_private(tmp_path, "note") is None


# ---- the note of a server


def test_a_server_is_found_by_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    discovery.announce(tmp_path, "http://127.0.0.1:8642")

    note = discovery.find(tmp_path, os.getpid())
    assert note is not None
    assert note.url == "http://127.0.0.1:8642"
    assert json.loads((tmp_path / "server.json").read_text()) == {
        "url": "http://127.0.0.1:8642",
        "pid": os.getpid(),
    }
    assert mode_of(tmp_path / "server.json") == 0o600
    assert discovery.find(tmp_path, os.getpid() + 1) is None

    discovery.withdraw(tmp_path)
    discovery.withdraw(tmp_path)
    assert discovery.find(tmp_path, os.getpid()) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"url": "http://127.0.0.1:1", "pid": 0}',
        '{"url": "file:///etc/passwd", "pid": 7}',
        '{"url": "http://127.0.0.1:1/path", "pid": 7}',
    ],
)
def test_a_damaged_note_is_none(tmp_path: Path, text: str) -> None:
    write_private(tmp_path, "server.json", text)

    assert discovery.find(tmp_path, 7) is None
    assert discovery.find(tmp_path, 0) is None


# ---- models


@pytest.mark.parametrize("name", ["", "gpt-9", "scripted", "scripted:", "Local"])
def test_an_unknown_model_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="use local, scripted:FILE"):
        provider_for(name)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        provider_for(f"scripted:{tmp_path / 'none.json'}")


def test_a_script_with_a_fault_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"do": "dance"}\n')

    with pytest.raises(HostError, match=r"script\.jsonl, line 1"):
        provider_for(f"scripted:{path}")


def test_a_model_that_is_not_installed_is_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find() -> Path:
        raise LocalModelError("model_missing", "it needs the package x", "Install it.")

    monkeypatch.setattr(models, "find_model_file", find)

    with pytest.raises(HostError, match=r"it needs the package x\. Install it\. Or use --model"):
        provider_for("local")


def test_the_local_model_is_made_without_being_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "find_model_file", lambda: tmp_path / "never-opened.gguf")

    assert isinstance(provider_for("local"), LocalProvider)


@pytest.mark.spec("E22")
async def test_patience_keeps_the_promise_of_a_usage() -> None:
    cost = Usage(output_tokens=7)

    class Parts:
        def __init__(self) -> None:
            self._left: list[ProviderPart] = [TextDelta(text="one")]
            self.is_closed = False

        def __aiter__(self) -> AsyncIterator[ProviderPart]:
            return self

        async def __anext__(self) -> ProviderPart:
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop()

        async def aclose(self) -> None:
            self.is_closed = True

        async def final_usage(self) -> Usage:
            return cost

    given = Parts()

    class Late:
        def stream(self, request: StreamRequest, signal: AbortSignal) -> Parts:
            return given

    parts = ImpatientProvider(Late(), 60).stream(StreamRequest(text="hi"), AbortController().signal)

    assert isinstance(parts, LateUsage)
    assert [part.type async for part in parts] == ["text-delta"]
    assert await parts.final_usage() == cost
    assert given.is_closed


async def test_patience_closes_the_provider_that_it_gave_up() -> None:
    closed: list[bool] = []

    class Silent:
        def stream(
            self, request: StreamRequest, signal: AbortSignal
        ) -> AsyncIterator[ProviderPart]:
            return self.parts()

        async def parts(self) -> AsyncIterator[ProviderPart]:
            try:
                yield TextDelta(text="one")
                await asyncio.Event().wait()
            finally:
                closed.append(True)

    provider = ImpatientProvider(Silent(), 0.01)
    parts = provider.stream(StreamRequest(text="hi"), AbortController().signal)

    assert await anext(parts) == TextDelta(text="one")
    with pytest.raises(Exception, match=r"nothing for 0\.01 s"):
        await anext(parts)
    assert closed == [True]


# ---- the configuration


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_STATE_HOME": "/var/state"}, Path("/var/state/fiberscope")),
        ({"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state/fiberscope"),
        ({}, Path.home() / ".local/state/fiberscope"),
    ],
)
def test_the_state_has_a_place_of_its_own(environment: dict[str, str], expected: Path) -> None:
    assert default_state(environment) == expected


def test_a_name_that_others_may_resolve_is_not_loopback() -> None:
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("0.0.0.0")


def test_a_configuration_listens_at_home_unless_told_otherwise(tmp_path: Path) -> None:
    config = ServeConfig(state=tmp_path)

    assert (config.host, config.auth) == ("127.0.0.1", True)


# ---- the socket


def test_a_port_that_is_taken_is_refused_with_a_way_out() -> None:
    with listen("127.0.0.1", 0) as sock, pytest.raises(HostError, match="--port") as caught:
        listen("127.0.0.1", port_of(sock))

    assert "in use" in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 300, "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(HostError, match="can't listen"):
        listen(host, 0)

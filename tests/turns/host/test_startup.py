"""How ``serve`` and ``chat`` start: named steps with a bound, and a dispose where one fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

import fibers as fb
from fibers.app.startup import STEP_TIMEOUT_SECONDS
from streamengine import FileHistory
from streamengine.history.lock import StateDirLock
from turns.host import discovery
from turns.host.config import (
    Limits,
    ServeConfig,
    block_seconds_of,
    step_seconds_of,
)
from turns.host.errors import HostError, UsageError
from turns.host.root import open_root
from turns.host.serve import Ready, serve

from .kit import TalkativeProvider, a_server, until
from .programs import fiberscope, script_in, serving

pytestmark = pytest.mark.lifecycle

WORKSPACES = 300
STEPS = [
    "history.open",
    "engine.open",
    "turns.read",
    "history.recover",
    "turns.start",
    "http.start",
    "server.announce",
]
TOO_SLOW = re.compile(
    r"^fiberscope: Startup failed: StartupStepTimeoutError: ([a-z.]+) exceeded 1 ms$", re.MULTILINE
)


def never(_self: object) -> fb.Effect[Any]:
    return fb.Effect.never()


def not_ready(ready: Ready) -> None:
    raise AssertionError(f"it serves at {ready.url}")


def is_free(state: Path) -> bool:
    """Whether nobody holds the state directory."""
    with StateDirLock(state):
        return True


# ---- the bound


def much_to_recover(tmp_path: Path) -> Path:
    """A state with so many workspaces that looking at them takes more than a millisecond."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "workspaces").mkdir(mode=0o700)
    for number in range(WORKSPACES):
        (state / "workspaces" / f"w{number}").mkdir(mode=0o700)
    return state


@pytest.mark.slow
@pytest.mark.spec("VI13", "VI6")
def test_a_server_that_starts_too_slowly_says_which_step_disposes_and_exits_1(
    tmp_path: Path,
) -> None:
    """A bound of 1 ms is too small for any machine that has something to recover."""
    state = much_to_recover(tmp_path)

    code, output, errors = fiberscope(
        tmp_path,
        *("serve", "--port", "0", "--state", str(state), "--model", script_in(tmp_path)),
        FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS="1",
    )

    assert (code, output) == (1, "")
    told = TOO_SLOW.search(errors)
    assert told is not None, errors
    assert told[1] in STEPS
    assert f"[startup] {told[1]} " in errors
    order = re.findall(r"\[shutdown\] (begins|AppScope closed|Runtime disposed)", errors)
    assert order == ["begins", "AppScope closed", "Runtime disposed"]
    assert "Traceback" not in errors
    assert is_free(state)
    assert not (state / "server.json").exists()


@pytest.mark.slow
@pytest.mark.spec("VI13", "VI6")
def test_a_chat_that_is_its_own_root_starts_the_same_way(tmp_path: Path) -> None:
    state = much_to_recover(tmp_path)

    code, output, errors = fiberscope(
        tmp_path,
        *("chat", "hello", "--state", str(state), "--model", script_in(tmp_path)),
        FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS="1",
    )

    assert (code, output) == (1, "")
    assert TOO_SLOW.fullmatch(errors.strip()), errors
    assert is_free(state)


@pytest.mark.slow
@pytest.mark.spec("VI13")
def test_each_step_is_a_line_of_the_log_and_the_default_bound_is_generous(tmp_path: Path) -> None:
    """At least ten times the slowest step."""
    with serving(tmp_path, tmp_path / "state") as server:
        server.send("hello")
        log = server.log

    steps = re.findall(r"\[startup\] (\S+) \{ms: (\d+)\}", log)
    assert [name for name, _ in steps] == STEPS
    slowest_ms = max(int(ms) for _, ms in steps)
    assert 10 * slowest_ms <= STEP_TIMEOUT_SECONDS * 1000


@pytest.mark.spec("VI6", "VI2")
async def test_a_root_that_hangs_in_a_step_is_given_up_with_all_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state directory's lock, its provider."""
    closed = list[str]()

    class Provider(TalkativeProvider):
        def close(self) -> None:
            closed.append("provider")

    monkeypatch.setattr(FileHistory, "workspaces", never)
    config = ServeConfig(state=tmp_path, port=0, step_seconds=0.05)
    with structlog.testing.capture_logs():
        exit_ = await serve(config, not_ready, make_provider=Provider).exit()

    assert isinstance(exit_, fb.Failure)
    error = exit_.failure().squash()
    assert isinstance(error, HostError)
    assert str(error) == ("Startup failed: StartupStepTimeoutError: history.recover exceeded 50 ms")
    assert closed == ["provider"]
    assert is_free(tmp_path)


@pytest.mark.spec("VI6")
async def test_open_root_disposes_of_what_a_failed_step_leaves(tmp_path: Path) -> None:
    """Its error is the caller's."""
    error = HostError("no model")

    def no_provider() -> Any:
        raise error

    async with fb.Scope() as outer:
        with pytest.raises(HostError) as told:
            await outer.provide(open_root(tmp_path, no_provider, Limits()))

    assert told.value is error
    assert is_free(tmp_path)


async def test_a_server_that_may_not_start_leaves_the_note_of_the_one_that_runs(
    tmp_path: Path,
) -> None:
    with structlog.testing.capture_logs():
        async with a_server(tmp_path) as server:
            config = ServeConfig(state=tmp_path, port=0)
            second = await serve(config, not_ready, make_provider=TalkativeProvider).exit()
            note = discovery.find_running(tmp_path)

    assert isinstance(second, fb.Failure)
    assert note is not None
    assert note.url == server.url


# ---- what follows


@pytest.mark.spec("VI7")
async def test_temp_files_of_a_killed_process_are_swept_when_the_server_runs(
    tmp_path: Path,
) -> None:
    """Not those of others."""
    stale = tmp_path / f"server.json.tmp-{'0' * 16}"
    kept = tmp_path / "notes.tmp"
    stale.touch()
    kept.touch()
    with structlog.testing.capture_logs():
        async with a_server(tmp_path):
            await until(lambda: not stale.exists())

    assert kept.exists()


@pytest.mark.parametrize(("seconds", "watched"), [(0.5, True), (None, False)])
async def test_the_watchdog_watches_unless_it_is_off(
    tmp_path: Path, seconds: float | None, watched: bool
) -> None:
    config = ServeConfig(state=tmp_path, port=0, block_seconds=seconds)
    ready = list[Ready]()
    with structlog.testing.capture_logs():
        fiber = fb.run_fork(serve(config, ready.append, make_provider=TalkativeProvider))
        await until(lambda: ready)
        await until(lambda: not watched or "occupant watchdog" in fb.dump())
        shown = "occupant watchdog" in fb.dump()
        await fiber.interrupt(reason="SIGTERM")

    assert shown is watched


# ---- what the environment says


@pytest.mark.parametrize(
    ("value", "seconds"), [("", STEP_TIMEOUT_SECONDS), ("1", 0.001), ("90000", 90.0)]
)
def test_the_bound_of_a_step_is_in_the_environment(value: str, seconds: float) -> None:
    environment = {"FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS": value}

    assert step_seconds_of(environment) == seconds


@pytest.mark.parametrize(("value", "seconds"), [("", 1.0), ("250", 0.25), ("0", None)])
def test_the_threshold_of_the_watchdog_is_in_the_environment(
    value: str, seconds: float | None
) -> None:
    assert block_seconds_of({"FIBERSCOPE_WATCHDOG_MS": value}) == seconds


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "1e3", "\u0663", "9" * 10])
def test_a_bound_that_is_none_is_refused(value: str) -> None:
    environment: Mapping[str, str] = {"FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS": value}

    with pytest.raises(UsageError, match="FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS is"):
        step_seconds_of(environment)


@pytest.mark.slow
def test_a_bound_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    code, output, errors = fiberscope(
        tmp_path, "serve", FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS="a minute"
    )

    assert (code, output) == (2, "")
    assert errors == (
        "fiberscope: FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS is a number of milliseconds, "
        "not 'a minute'\n"
    )

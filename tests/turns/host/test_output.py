"""Standard output that takes nothing: each command says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .programs import WAIT_SECONDS, environment, fiberscope, script_in, serving, stored, wait_for

pytestmark = [
    pytest.mark.lifecycle,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full"),
]

SHELL = ("sh", "-c")
FIBERSCOPE = (sys.executable, "-m", "turns.host")
FULL = "1>/dev/full"
CLOSED = "1>&-"
REASONS = {
    FULL: "fiberscope: standard output can't be written: No space left on device\n",
    CLOSED: "fiberscope: standard output is closed: there is nowhere to write to\n",
}


def with_output(output: str, *arguments: str) -> tuple[int, str]:
    """Run a command whose standard output is this; exit code and standard error."""
    done = subprocess.run(
        [*SHELL, f'exec "$@" {output}', "sh", *FIBERSCOPE, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(FIBERSCOPE_LOG="error"),
        timeout=WAIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("output", REASONS)
def test_what_is_alive_and_which_turns_there_are_can_not_be_written(
    tmp_path: Path, output: str
) -> None:
    state = str(tmp_path / "state")
    with serving(tmp_path, tmp_path / "state") as server, server.client() as client:
        client.post("/api/workspaces/w1/turns", json={"prompt": "Go"}).raise_for_status()
        said = {
            with_output(output, *command, "--state", state)
            for command in (("turns", "list"), ("turns", "list", "--json"), ("ps", "--once"))
        }

    assert said == {(1, REASONS[output])}


@pytest.mark.parametrize("output", REASONS)
def test_an_answer_that_can_not_be_written_is_given_up_and_kept(
    tmp_path: Path, output: str
) -> None:
    state = tmp_path / "state"
    model = ("--model", script_in(tmp_path))
    alone = with_output(output, "chat", "stay", "--state", str(state), *model)
    rows = stored(state, "default")
    with serving(tmp_path, state):
        through_server = with_output(output, "chat", "Hi", "--state", str(state))

    assert alone == through_server == (1, REASONS[output])
    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[-1]["metadata"]["partial"] is True


@pytest.mark.parametrize("output", REASONS)
def test_a_server_that_can_not_say_where_it_is_serves(tmp_path: Path, output: str) -> None:
    state = tmp_path / "state"
    arguments = ("serve", "--port", "0", "--state", str(state), "--model", script_in(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*SHELL, f'exec "$@" {output}', "sh", *FIBERSCOPE, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=environment(),
        )
    try:
        wait_for(state / "server.json", "url")
        asked = fiberscope(tmp_path, "turns", "list", "--state", str(state))
        server.terminate()
        code = server.wait(WAIT_SECONDS)
    finally:
        server.kill()
        server.wait()

    assert asked == (0, "0 turns. 0 ends ignored as uncorrelated.\n", "")
    assert code == 143
    assert "the address can't be shown" in (tmp_path / "log").read_text()


def test_a_message_that_can_not_be_read_is_a_misused_command_line(tmp_path: Path) -> None:
    code, said = with_output("0<&-", "chat", "-", "--state", str(tmp_path / "state"))

    assert code == 2
    assert said == "fiberscope: standard input is closed: there is no message to read\n"


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_the_exit_code_says_what_standard_error_can_not(tmp_path: Path, errors: str) -> None:
    nowhere = str(tmp_path / "none")

    assert with_output(errors, "turns", "list", "--state", nowhere) == (1, "")
    assert with_output(errors, "turns", "show", "x") == (2, "")

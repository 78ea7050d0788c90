"""The command line with what people get wrong: one line, an exit code, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from turns.host.cli import main
from turns.host.config import ServeConfig
from turns.host.errors import HostError, UsageError
from turns.host.models import check_model
from turns.host.state import is_there, located

from .programs import WAIT_SECONDS, environment, fiberscope, script_in

LONG = "a" * 300
COMMANDS = {
    "serve": ("serve", "--port", "0", "--model"),
    "chat": ("chat", "Hi", "--model"),
    "ps": ("ps",),
    "turns list": ("turns", "list"),
    "turns show": ("turns", "show", "wst_1"),
    "turns interrupt": ("turns", "interrupt", "wst_1"),
}


def said_by(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, list[str]]:
    """Exit code and lines on standard error of a command that ends before it begins."""
    monkeypatch.setattr(sys, "argv", ["fiberscope", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    code = left.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("serve", "circle"),
        ("chat", "~no-such-user-here/x"),
        ("ps", "circle"),
        ("turns list", LONG),
        ("turns show", "~no-such-user-here/x"),
        ("turns interrupt", "file/x"),
    ],
)
def test_state_directory_that_can_not_be_is_told_in_one_line(
    tmp_path: Path, command: str, state: str
) -> None:
    """With the path that was given, and without a word of Python's."""
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").touch()
    arguments = [*COMMANDS[command]]
    if arguments[-1] == "--model":
        arguments.append(script_in(tmp_path))

    code, output, errors = fiberscope(
        tmp_path, *arguments, "--state", state, FIBERSCOPE_LOG="error"
    )

    assert (code, output) == (1, "")
    assert errors.startswith("fiberscope: ")
    assert errors.count("\n") == 1
    assert state in errors


def test_what_is_in_the_way_of_a_state_directory_is_said(tmp_path: Path) -> None:
    """Each reason names the way out; what is only missing is no error here."""
    (tmp_path / "file").touch()

    with pytest.raises(HostError) as raised:
        located(Path("~no-such-user-here/x"))
    assert str(raised.value).startswith("~no-such-user-here/x can't be the state directory: ")
    with pytest.raises(HostError) as raised:
        is_there(tmp_path / LONG)
    assert str(raised.value) == (
        f"{tmp_path / LONG} can't be the state directory: File name too long; "
        "name another one with --state"
    )
    assert is_there(located(tmp_path))
    assert not is_there(tmp_path / "file")
    assert not is_there(tmp_path / "file" / "x")
    assert not is_there(tmp_path / "missing")


@pytest.mark.parametrize("command", COMMANDS)
def test_empty_state_directory_is_not_the_current_one(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a script gives whose variable is not set."""
    arguments = [*COMMANDS[command]]
    if arguments[-1] == "--model":
        arguments.append("local")

    code, lines = said_by(capsys, monkeypatch, *arguments, "--state", "")

    assert code == 2
    assert lines == [
        "fiberscope: --state: the name is empty; leave it out for the default, or name one"
    ]


def test_empty_variable_for_the_state_directory_is_as_none(tmp_path: Path) -> None:
    home = tmp_path / "home"

    code, _, errors = fiberscope(tmp_path, "ps", FIBERSCOPE_STATE="", XDG_STATE_HOME=str(home))

    assert code == 1
    assert f"no server works on {home / 'fiberscope'}" in errors
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}


@pytest.mark.parametrize(
    "name", ["circle", LONG, "~no-such-user-here/x", "file/x", "folder", "missing"]
)
def test_script_that_is_none_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    Path("file").touch()
    Path("folder").mkdir()

    with pytest.raises(UsageError) as raised:
        check_model(f"scripted:{name}")

    assert str(raised.value).startswith(f"--model scripted:{name}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nope"), "there is no model 'nope'"),
        (("--model", "scripted:no-such-file"), "there is no file no-such-file"),
        (("--model", "local", "--base-url", "https://a.example"), "--base-url is for openai"),
    ],
    ids=["model", "script", "base url"],
)
def test_server_that_is_asked_for_nonsense_begins_nothing(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No directory is made, and the line does not come after those of a start and an end."""
    state = tmp_path / "state"

    code, lines = said_by(capsys, monkeypatch, "serve", "--state", str(state), *arguments)

    assert code == 2
    assert len(lines) == 1
    assert said in lines[0]
    assert not state.exists()


@pytest.mark.parametrize("name", ["", "a:1", "http://a", "a/b", "a b", "[::1]:8000", "*.a"])
def test_further_name_of_the_server_is_a_name_and_nothing_more(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be accepted, and no request would ever fit it."""
    code, lines = said_by(
        capsys, monkeypatch, "serve", "--state", str(tmp_path / "state"), "--allow-host", name
    )

    assert code == 2
    assert " ".join(lines) == (
        f"fiberscope: --allow-host {name!r}: that is no name of a host; "
        "give it without scheme, port and path"
    )


@pytest.mark.parametrize("name", ["a", "a.example", "my_host", "192.0.2.7", "::1", "[2001:db8::1]"])
def test_names_and_addresses_are_further_names(name: str, tmp_path: Path) -> None:
    try:
        config = ServeConfig(state=tmp_path, allowed_hosts=(name,))
    except ValidationError as error:
        raise AssertionError(name) from error

    assert config.allowed_hosts == (name,)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_text_that_can_not_be_written_is_told_in_one_line(tmp_path: Path, option: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "turns.host", option],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=tmp_path,
            timeout=WAIT_SECONDS,
            check=False,
        )

    assert (done.returncode, done.stderr.decode()) == (
        1,
        "fiberscope: standard output can't be written: No space left on device\n",
    )


def test_standard_input_that_can_not_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / "written").open("w") as only_written:
        done = subprocess.run(
            [sys.executable, "-m", "turns.host", "chat", "-"],
            stdin=only_written,
            capture_output=True,
            env=environment(),
            cwd=tmp_path,
            timeout=WAIT_SECONDS,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr.decode()) == (
        1,
        b"",
        "fiberscope: standard input can't be read: Bad file descriptor\n",
    )


# ---- Ctrl-C before anything has begun


def _slow_import(folder: Path) -> None:
    """A package in the place of ours that says when it is being imported, and takes for ever."""
    (folder / "turns").mkdir()
    (folder / "turns" / "__init__.py").write_text(
        "import signal\nprint('importing', flush=True)\nwhile True:\n    signal.pause()\n"
    )


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignored by whoever started it"])
def test_ctrl_c_while_the_program_is_loaded_leaves_without_a_word(
    tmp_path: Path, ignored: bool
) -> None:
    """Loading takes a second on a slow machine: it was a traceback, of whatever was being read."""
    _slow_import(tmp_path)
    path = os.pathsep.join([str(tmp_path), environment().get("PYTHONPATH", "")])
    shell = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if ignored else []
    with subprocess.Popen(
        [*shell, sys.executable, "-m", "fiberscope", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONPATH=path),
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stderr is not None
            assert program.stdout.readline() == b"importing\n"
            program.send_signal(signal.SIGINT)
            if ignored:
                program.send_signal(signal.SIGTERM)
            code = program.wait(WAIT_SECONDS)
            errors = program.stderr.read()
        finally:
            program.kill()

    # As a signal: a shell calls it 130, and stops a loop that this runs in.
    assert (code, errors) == (-signal.SIGTERM if ignored else -signal.SIGINT, b"")


def test_ctrl_c_while_the_message_is_read_leaves_without_a_word(tmp_path: Path) -> None:
    """`chat -` waits for its standard input."""
    with subprocess.Popen(
        [sys.executable, "-m", "fiberscope", "chat", "-", "--state", str(tmp_path / "state")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as program:
        try:
            assert program.stdin is not None
            # More than a pipe holds: written means that it reads.
            program.stdin.write(b"x" * 200_000)
            program.stdin.flush()
            program.send_signal(signal.SIGINT)
            code = program.wait(WAIT_SECONDS)
            assert program.stderr is not None
            errors = program.stderr.read()
        finally:
            program.kill()

    assert (code, errors) == (-signal.SIGINT, b"")
    assert not (tmp_path / "state").exists()


def test_program_is_a_module_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "fiberscope", "--version"],
        capture_output=True,
        env=environment(),
        cwd=tmp_path,
        timeout=WAIT_SECONDS,
        check=True,
    )

    assert done.stdout.startswith(b"fiberscope ")
    assert done.stderr == b""

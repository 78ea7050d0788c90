"""`python -m streamengine.providers.local`, and the end of a process with the model at work."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local import provider as provider_module

from .fake_model import FakeModel

COMMAND = "streamengine.providers.local"
PROCESS_BOUND_SECONDS = 30
QUESTION = "What is the capital of France?"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """The exit status of the command, run in this process."""
    before = structlog.get_config()
    monkeypatch.setattr(sys, "argv", [COMMAND, *arguments])
    try:
        runpy.run_module(f"{COMMAND}.__main__", run_name="__main__")
    except SystemExit as end:
        return end.code
    finally:
        structlog.configure(**before)
    raise AssertionError("the command ends with a status")


def test_the_answer_goes_to_stdout_and_the_figures_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(_self: LocalProvider) -> FakeModel:
        return FakeModel("It is 🦊.")

    def check(_self: LocalProvider) -> None:
        """There is no file."""

    monkeypatch.setattr(LocalProvider, "_check_file", check)
    monkeypatch.setattr(LocalProvider, "_load", load)

    status = _run(monkeypatch, "What is it?")

    out, err = capsys.readouterr()
    assert (status, out) == (0, "It is 🦊.\n")
    assert re.search(r"first token after \d+\.\d\d s .* \d+ tokens/s \(11 tokens\)\n$", err)


def test_without_the_model_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise LocalModelError("model_missing", "there is no model", "Run `make run`.")

    monkeypatch.setattr(provider_module, "find_model_file", missing)

    status = _run(monkeypatch, "Hi")

    assert (status, *capsys.readouterr()) == (1, "", "there is no model. Run `make run`.\n")


def test_a_bad_number_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "Hi", "--temperature", "-1") == 1
    assert "temperature" in capsys.readouterr().err


LEAVES_IN_THE_MIDDLE = """
import asyncio
from fibers import AbortController
from streamengine import StreamRequest
from streamengine.providers.local import LocalProvider

provider = LocalProvider()
parts = provider.stream(StreamRequest(text="Tell me a long story."), AbortController().signal)
loop = asyncio.new_event_loop()
for _ in range(3):
    part = loop.run_until_complete(anext(parts))
print(part.type)
"""


@pytest.mark.local_model
@pytest.mark.lifecycle
def test_a_process_can_end_while_the_model_is_at_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_IN_THE_MIDDLE],
        capture_output=True,
        text=True,
        timeout=PROCESS_BOUND_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("text-delta\n")


@pytest.mark.local_model
def test_the_command_answers_with_the_real_model() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", COMMAND, "--temperature", "0", QUESTION],
        capture_output=True,
        text=True,
        timeout=PROCESS_BOUND_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "tokens/s" in done.stderr

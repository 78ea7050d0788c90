"""Real processes of the command line, for tests of signals, exit codes and what is printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

WAIT_SECONDS = 30.0

FINISH = {
    "do": "give",
    "part": {"type": "finish", "finishReason": "stop", "rawFinishReason": "stop"},
}
FOR_EVER = {"do": "wait-for-ever"}

WORDS = "one two three four five six seven eight nine ten"
SCRIPT: dict[str, Any] = {
    "answers": [
        {
            # Says something, then nothing more.
            "when": {"textContains": "stay"},
            "steps": [{"do": "say", "text": WORDS, "everyMs": 1}, FOR_EVER],
        },
        {
            "when": {"textContains": "wedge"},
            "steps": [{"do": "say", "text": WORDS}, FOR_EVER],
            "onAbort": "ignore",
            "onCancel": "swallow",
            "cleanupMs": "for-ever",
        },
        {
            "when": {"textContains": "break"},
            "steps": [
                {"do": "say", "text": "half "},
                {"do": "wait", "ms": 50},
                {"do": "raise", "message": "broken\nline \u001b[31m"},
            ],
        },
        {
            "when": {"textContains": "escape"},
            "steps": [{"do": "say", "text": "\u001b[2Jred\u0007 \u001b[0m\rover\n"}, FINISH],
        },
        {
            "when": {"textContains": "flood"},
            "steps": [
                {
                    "do": "repeat",
                    "steps": [{"do": "say", "text": "x" * 2000}, {"do": "wait", "ms": 1}],
                }
            ],
        },
        {
            # In a turn: runs a command that says which process it is, and goes on.
            "when": {"textContains": "command"},
            "steps": [
                {
                    "do": "give",
                    "part": {
                        "type": "tool-call",
                        "toolCallId": "c1",
                        "toolName": "shell",
                        "input": {"command": "echo $$ > pid; exec sleep 300"},
                    },
                },
                FINISH,
            ],
        },
        {"steps": [{"do": "say", "text": WORDS}, FINISH]},
    ]
}


def script_in(folder: Path) -> str:
    """The model of these tests, as an argument of --model."""
    path = folder / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return f"scripted:{path}"


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FIBERSCOPE")}
    return {**kept, "PYTHONWARNINGS": "error", **more}


class Program:
    """One run of ``fiberscope``; its log is in a file, so that it never waits for a reader."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self._log = folder / f"log-{time.monotonic_ns()}.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "turns.host", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(**env),
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def line(self) -> str:
        """The next line of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def read_until(self, words: str) -> str:
        """Its output up to these words."""
        assert self.process.stdout is not None
        seen = b""
        while words.encode() not in seen:
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                raise AssertionError(f"it ended after {seen!r}; log:\n{self.log}")
            seen += more
        return seen.decode()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit code and the rest of its output."""
        output, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, output.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(ValueError):
            self.process.communicate()


class Server(Program):
    """A running ``fiberscope serve``."""

    def __init__(self, folder: Path, state: Path, *arguments: str, **env: str) -> None:
        model = script_in(folder)
        super().__init__(
            folder,
            *("serve", "--port", "0", "--state", str(state), "--model", model, "--no-auto-retry"),
            *arguments,
            **env,
        )
        said = self.line()
        if not said.startswith("Open "):
            self.close()
            raise AssertionError(f"it did not start; log:\n{self.log}")
        url, _, fragment = said.split()[1].partition("/#token=")
        self.url = url
        self.token = fragment or None

    def client(self) -> httpx.Client:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=WAIT_SECONDS, trust_env=False
        )

    def send(self, text: str, workspace: str = "w1") -> str:
        """Send a message; its answer's id."""
        with self.client() as client:
            response = client.post(f"/api/workspaces/{workspace}/messages", json={"text": text})
            assert response.status_code == 202, response.text
            message_id: str = response.json()["messageId"]
            return message_id

    def rows(self, workspace: str = "w1") -> list[dict[str, Any]]:
        with self.client() as client:
            response = client.get(f"/api/workspaces/{workspace}/history")
            assert response.status_code == 200, response.text
            rows: list[dict[str, Any]] = response.json()["rows"]
            return rows


@contextmanager
def running(program: Program) -> Generator[Program]:
    try:
        yield program
    finally:
        program.close()


@contextmanager
def serving(folder: Path, state: Path, *arguments: str, **env: str) -> Generator[Server]:
    server = Server(folder, state, *arguments, **env)
    try:
        yield server
    finally:
        server.close()


def fiberscope(
    folder: Path, *arguments: str, stdin: bytes = b"", **env: str
) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "turns.host", *arguments],
        input=stdin,
        capture_output=True,
        env=environment(**env),
        cwd=folder,
        timeout=WAIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def wait_for(path: Path, words: str) -> None:
    """Wait until a file of the state directory holds these words."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError):
            if words in path.read_text() + _log_beside(path):
                return
        time.sleep(0.005)
    raise AssertionError(f"{path} never held {words!r}")


def _log_beside(path: Path) -> str:
    """The text that was added to a partial since its file was written."""
    log = path.with_name("partial-log.jsonl")
    if path.name != "partial.json" or not log.exists():
        return ""
    # Its last line may be on its way.
    lines = log.read_text().split("\n")[1:-1]
    return "".join(str(json.loads(line)) for line in lines)


def stored(state: Path, workspace: str = "w1") -> list[dict[str, Any]]:
    """The rows on disk."""
    lines = (state / "workspaces" / workspace / "chat.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def said(row: dict[str, Any]) -> str:
    return "".join(part["text"] for part in row["parts"])

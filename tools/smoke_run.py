"""What a newcomer does: `make run`, a message to the local model, Ctrl-C in the middle, `make run`
again, and the interrupted message is there. Exit status 1 with one line if it is not so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

READY_SECONDS: Final = 600.0
FIRST_TOKEN_SECONDS: Final = 5.0
ENOUGH_CHARACTERS: Final = 40
END_SECONDS: Final = 20.0


class SmokeError(Exception):
    """Something that a newcomer would not understand."""


@contextmanager
def make_run(state: Path) -> Generator[tuple[str, dict[str, str]]]:
    """`make run`; gives the URL and a client's headers. Ctrl-C at the end, as in a terminal."""
    process = subprocess.Popen(
        ["make", "--no-print-directory", "run", "RUN_ARGS=--port 0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIBERSCOPE_STATE": str(state), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    # Also for a command that says nothing at all.
    patience = threading.Timer(READY_SECONDS, lambda: os.killpg(process.pid, signal.SIGKILL))
    patience.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  make run: {line.split('#')[0].rstrip()}")
            if line.startswith("Open "):
                url, _, token = line.split()[1].partition("/#token=")
                patience.cancel()
                yield url, {"authorization": f"Bearer {token}"}
                break
        else:
            raise SmokeError(f"make run gave no address within {READY_SECONDS:g} s")
        os.killpg(process.pid, signal.SIGINT)
        process.wait(END_SECONDS)
    finally:
        patience.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_some(url: str, headers: dict[str, str]) -> str:
    """Send a message and read the beginning of its answer."""
    text = ""
    api = f"{url}/api/workspaces/smoke"
    with (
        httpx.Client(headers=headers, timeout=30.0) as client,
        client.stream("GET", f"{api}/events") as events,
    ):
        asked = time.monotonic()
        sent = client.post(f"{api}/messages", json={"text": "Tell me a long story about the sea."})
        sent.raise_for_status()
        kind = ""
        for line in events.iter_lines():
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:") and kind == "stream-delta":
                if not text:
                    seconds = time.monotonic() - asked
                    print(f"first token after {seconds:.2f} s")
                    if seconds > FIRST_TOKEN_SECONDS:
                        raise SmokeError(f"first token after {seconds:.1f} s")
                delta: str = json.loads(line[5:])["delta"]
                text += delta
                if len(text) >= ENOUGH_CHARACTERS:
                    return text
            elif line.startswith("data:") and kind in ("error", "stream-end", "stream-abort"):
                raise SmokeError(f"the stream ended too early: {kind} {line}")
    raise SmokeError("the event stream ended before there was enough text")


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="smoke-") as name:
            state = Path(name) / "state"
            with make_run(state) as (url, headers):
                page = httpx.get(url + "/", timeout=10.0)
                if page.status_code != 200 or "<html" not in page.text:
                    raise SmokeError(f"the page answered {page.status_code}")
                seen = read_some(url, headers)
            if (state / "workspaces" / "smoke" / "partial.json").exists():
                raise SmokeError("partial.json is left after Ctrl-C")
            with make_run(state) as (url, headers):
                history = httpx.get(
                    f"{url}/api/workspaces/smoke/history", headers=headers, timeout=10.0
                )
                _check(history.json(), seen)
    except (SmokeError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
        print(f"smoke of make run FAILED: {error}", file=sys.stderr)
        return 1
    print("make run, message, Ctrl-C, make run again: the interrupted message is there")
    return 0


def _check(history: dict[str, Any], seen: str) -> None:
    last = history["rows"][-1]
    text = "".join(part.get("text", "") for part in last["parts"])
    if last["role"] != "assistant" or not last["metadata"].get("partial"):
        raise SmokeError("the last row is no interrupted answer")
    if not text.startswith(seen):
        raise SmokeError("the interrupted answer lacks text that was shown")


if __name__ == "__main__":
    sys.exit(main())

"""An agent that does what it is told: a child process that speaks JSON lines, well or badly.

A prompt's text is a JSON list of steps. A step is an object: ``{"say": EVENT}`` says an event of
the turn, and ``{"do": ACTION, ...}`` is one of the actions below. Standard library only, and
nothing of the project: it is what the project has to live with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


def say(event: dict[str, Any], turn_id: str) -> None:
    print(json.dumps({"turnId": turn_id, **event}), flush=True)


def do(step: dict[str, Any], turn_id: str) -> None:
    match step["do"]:
        case "stall":  # go on to hear, say nothing
            pass
        case "die":
            os._exit(step.get("code", 3))
        case "loop":  # burn the processor and hear nothing
            while True:
                pass
        case "garbage":
            print('{"type": "done"', flush=True)
            print("no JSON at all \x00", flush=True)
            print(json.dumps({"type": "of tomorrow", "turnId": turn_id}), flush=True)
        case "long line":
            print("x" * step["bytes"], flush=True)
        case "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "close the output":  # and live on
            os.close(1)
        case "deaf":  # hear neither the host nor the end of its input
            while True:
                time.sleep(3600)
        case "spawn":  # something that would go on without it
            child = subprocess.Popen(
                ["sleep", "300"],
                start_new_session=step.get("in its own session", False),
                stdout=None if step.get("holding the output") else subprocess.DEVNULL,
            )
            say({"type": "text", "text": f"pid {child.pid}"}, turn_id)
        case "hear":  # say what the next line is
            said = json.loads(sys.stdin.readline())
            say({"type": "text", "text": json.dumps(said, sort_keys=True)}, turn_id)
        case other:
            raise SystemExit(f"no such action: {other}")


def main() -> None:
    if "--die" in sys.argv:
        raise SystemExit(3)
    for line in sys.stdin:
        said = json.loads(line)
        if said["type"] != "prompt":
            continue
        for step in json.loads(said["text"]):
            if "say" in step:
                say(step["say"], said["turnId"])
            else:
                do(step, said["turnId"])


if __name__ == "__main__":
    main()

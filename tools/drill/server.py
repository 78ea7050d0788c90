"""The server of a drill row with settings that the command line doesn't have: more streams at once,
streams that nobody supervises, tools. ``python -m tools.drill.server STATE MODEL``, and options.

With ``--asked FILE`` the model has tools, and what it is asked is noted in that file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import fibers as fb
from streamengine import Provider
from turns.host import logs
from turns.host.config import Limits, ServeConfig
from turns.host.models import provider_for
from turns.host.program import run
from turns.host.serve import Ready, serve

from .held_tools import Witness, tools


def _say_ready(ready: Ready) -> None:
    print(f"Open {ready.url}", flush=True)


@fb.effect(raises=Exception)
async def _main(config: ServeConfig, asked: Path | None) -> int:
    if asked is None:
        await serve(config, _say_ready)
    else:
        await serve(
            config, _say_ready, make_provider=_witnessed(config.model, asked), tools=tools()
        )
    return 0


def _witnessed(model: str, asked: Path) -> Callable[[], Provider]:
    return lambda: Witness(provider_for(model), asked)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.drill.server")
    parser.add_argument("state", type=Path)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--unsupervised", action="store_true")
    parser.add_argument("--asked", type=Path)
    given = parser.parse_args()
    logs.configure(logs.level_of())
    config = ServeConfig(
        state=given.state,
        port=0,
        model=given.model,
        auth=False,
        limits=Limits(streams=given.streams),
        supervised=not given.unsupervised,
        auto_retry=False,  # it counts what a start finds, not what it takes up
    )
    run(_main(config, given.asked))


if __name__ == "__main__":
    main()

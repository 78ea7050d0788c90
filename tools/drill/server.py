"""The server of a drill row with settings that the command line doesn't have: more streams at once,
or streams that nobody supervises. ``python -m tools.drill.server STATE MODEL STREAMS SUPERVISED``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fibers as fb
from turns.host import logs
from turns.host.config import Limits, ServeConfig
from turns.host.program import run
from turns.host.serve import Ready, serve


def _say_ready(ready: Ready) -> None:
    print(f"Open {ready.url}", flush=True)


@fb.effect(raises=Exception)
async def _main(config: ServeConfig) -> int:
    await serve(config, _say_ready)
    return 0


def main() -> None:
    state, model, streams, supervised = sys.argv[1:5]
    logs.configure(logs.level_of())
    run(
        _main(
            ServeConfig(
                state=Path(state),
                port=0,
                model=model,
                auth=False,
                limits=Limits(streams=int(streams)),
                supervised=supervised == "yes",
                auto_retry=False,  # it counts what a start finds, not what it takes up
            )
        )
    )


if __name__ == "__main__":
    main()

"""`python -m streamengine.providers.local "text"`: an answer of the local model, and how fast.

The answer goes to stdout as it is made, the figures to stderr.
"""

from __future__ import annotations

import argparse
import sys
import time

import structlog

import fibers as fb
from fibers import AbortController

from ...model.parts import FinishStep, TextDelta
from ...model.request import StreamRequest
from .errors import LocalModelError
from .provider import LocalProvider


def main() -> int:
    """The command; gives its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m streamengine.providers.local",
        description="Stream an answer of the local model to stdout, and its speed to stderr.",
    )
    parser.add_argument("text", help="the message")
    parser.add_argument("--temperature", type=float, default=0.2, help="0 is repeatable")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer, in tokens")
    parser.add_argument("--seed", type=int, help="makes an answer repeatable")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        provider = LocalProvider(
            temperature=options.temperature, max_new_tokens=options.max_tokens, seed=options.seed
        )
        fb.run(_answer(provider, options.text))
    except (LocalModelError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@fb.effect(raises=LocalModelError)
async def _answer(provider: LocalProvider, text: str) -> None:
    started = time.perf_counter()
    first = None
    tokens = prompt_tokens = 0
    async for part in provider.stream(StreamRequest(text=text), AbortController().signal):
        if isinstance(part, TextDelta):
            first = first or time.perf_counter()
            sys.stdout.write(part.text)
            sys.stdout.flush()
        elif isinstance(part, FinishStep) and part.usage is not None:
            tokens = part.usage.output_tokens or 0
            prompt_tokens = part.usage.input_tokens or 0
    ended = time.perf_counter()
    sys.stdout.write("\n")
    if first is not None and tokens > 1:
        rate = (tokens - 1) / (ended - first)
        sys.stderr.write(
            f"first token after {first - started:.2f} s (model loaded, {prompt_tokens} tokens of "
            f"prompt read), then {rate:.0f} tokens/s ({tokens} tokens)\n"
        )


if __name__ == "__main__":
    sys.exit(main())

"""One answer, step by step, on a fake model."""

from __future__ import annotations

from random import Random

import pytest

from streamengine.providers.local.generation import PROMPT_STEP_TOKENS, Ended, Generation, Lane
from streamengine.providers.local.model import Sampling

from .fake_model import FakeContext, FakeModel


def _generation(
    model: FakeModel, prompt: str, *, lane: Lane | None = None, limit: int = 100
) -> Generation:
    return Generation(
        model,
        lane or Lane(model.new_context()),
        model.tokens_of(prompt),
        limit_tokens=limit,
        sampling=Sampling(temperature=0),
        random=Random(0),
    )


def _all(generation: Generation) -> tuple[bytes, Ended]:
    said = b""
    while not isinstance(result := generation.step(), Ended):
        said += result or b""
    return said, result


def test_a_prompt_is_read_in_small_steps_then_a_token_a_step() -> None:
    model = FakeModel("ab")
    generation = _generation(model, "p" * (2 * PROMPT_STEP_TOKENS + 5))

    steps = [generation.step() for _ in range(5)]

    assert steps[:4] == [None, None, b"a", b"b"]
    assert steps[4] == Ended("stop", 2 * PROMPT_STEP_TOKENS + 5, 0, 2)
    assert model.contexts[0].reads == [PROMPT_STEP_TOKENS, PROMPT_STEP_TOKENS, 5, 1, 1]


def test_the_longest_answer_is_bounded() -> None:
    said, ended = _all(_generation(FakeModel("x" * 50), "hello", limit=7))

    assert (said, ended.reason, ended.new_tokens) == (b"x" * 7, "length", 7)


def test_an_answer_never_outgrows_the_context() -> None:
    said, ended = _all(_generation(FakeModel("x" * 50, context_tokens=12), "hello"))

    assert (said, ended.reason) == (b"x" * 7, "length")


def test_what_the_lane_has_read_is_not_read_again() -> None:
    model = FakeModel("ok")
    lane = Lane(model.new_context())
    _all(_generation(model, "hello", lane=lane))

    _, ended = _all(_generation(model, "hellook, and more", lane=lane))

    assert ended.remembered_tokens == 7
    assert bytes(model.contexts[0].tokens) == b"hellook, and more" + b"ok"


def test_the_last_token_of_a_prompt_is_always_read() -> None:
    model = FakeModel("ok")
    lane = Lane(model.new_context())
    _all(_generation(model, "hello", lane=lane))

    said, ended = _all(_generation(model, "hello", lane=lane))

    assert (said, ended.remembered_tokens) == (b"ok", 4)


def test_after_a_failure_the_lane_relies_on_nothing() -> None:
    def fail(context: FakeContext) -> None:
        if len(context.tokens) > 6:
            raise OSError("out of memory")

    model = FakeModel("a long one", before_read=fail)
    lane = Lane(model.new_context())
    with pytest.raises(OSError, match="out of memory"):
        _all(_generation(model, "hello", lane=lane))
    model.before_read = None

    said, ended = _all(_generation(model, "hello", lane=lane))

    assert (said, ended.remembered_tokens) == (b"a long one", 0)

"""What OpenAI's APIs say of tokens. The two name the same things differently."""

from __future__ import annotations

from ...model.usage import Usage
from .. import loose


def usage_of(value: object) -> Usage | None:
    """None where it says nothing."""
    said = loose.fields(value)
    if not said:
        return None
    given = loose.fields(said.get("prompt_tokens_details") or said.get("input_tokens_details"))
    made = loose.fields(said.get("completion_tokens_details") or said.get("output_tokens_details"))
    return Usage(
        input_tokens=loose.count(said.get("prompt_tokens", said.get("input_tokens"))),
        output_tokens=loose.count(said.get("completion_tokens", said.get("output_tokens"))),
        total_tokens=loose.count(said.get("total_tokens")),
        reasoning_tokens=loose.count(made.get("reasoning_tokens")),
        cached_input_tokens=loose.count(given.get("cached_tokens")),
    )

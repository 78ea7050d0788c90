"""What a provider says a step cost, in tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import CamelModel

TokenCount = Annotated[int, Field(ge=0)]


class Usage(CamelModel):
    """Tokens of one step or of a whole stream; None where the provider didn't say."""

    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    total_tokens: TokenCount | None = None
    reasoning_tokens: TokenCount | None = None
    cached_input_tokens: TokenCount | None = None

    def plus(self, other: Usage) -> Usage:
        """The sum, field by field. What neither says stays None."""
        return Usage(
            input_tokens=_sum(self.input_tokens, other.input_tokens),
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            total_tokens=_sum(self.total_tokens, other.total_tokens),
            reasoning_tokens=_sum(self.reasoning_tokens, other.reasoning_tokens),
            cached_input_tokens=_sum(self.cached_input_tokens, other.cached_input_tokens),
        )

    @property
    def is_spent(self) -> bool:
        """Whether it says of any token at all that it was used."""
        return any(
            (
                self.input_tokens,
                self.output_tokens,
                self.total_tokens,
                self.reasoning_tokens,
                self.cached_input_tokens,
            )
        )


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    return one if other is None else one + other

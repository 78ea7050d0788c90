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

"""What somebody else asks for as a subturn, read from plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, ValidationError

from streamengine.model.base import CamelModel

from ..model.errors import TurnError
from .config import SpawnRequest, TokenBudget


class _Asked(CamelModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    prompt: str
    model: str | None = None
    agent: str | None = None
    system: str | None = None
    delivers: bool = False
    critical: bool = False
    timeout_seconds: float | None = Field(default=None, allow_inf_nan=False)
    token_budget: int | None = None


def spawn_request(fields: Mapping[str, Any]) -> SpawnRequest:
    """The request that these fields are (camelCase). Raises TurnError ("invalid_subturn")."""
    try:
        asked = _Asked.model_validate(dict(fields))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False)
        )
        raise TurnError("invalid_subturn", problems, "Correct the fields.") from error
    if not asked.prompt.strip():
        raise TurnError("invalid_subturn", "the prompt has no text", "Say what is to be done.")
    budget = asked.token_budget
    return SpawnRequest(
        prompt=asked.prompt,
        model=asked.model,
        agent=asked.agent,
        system=asked.system,
        delivers=asked.delivers,
        critical=asked.critical,
        timeout_seconds=asked.timeout_seconds,
        token_budget=TokenBudget(budget) if budget is not None and budget > 0 else None,
    )

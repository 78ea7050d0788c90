"""What a model is told of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from .base import CamelModel


class ToolSpec(CamelModel):
    """A tool as the model sees it. `parameters` is the JSON schema of its input object."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: Mapping[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )

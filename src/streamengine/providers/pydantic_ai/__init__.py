"""The provider that answers with any model of pydantic-ai (the extra ``pydantic-ai``)."""

from __future__ import annotations

from .provider import PydanticAIProvider

__all__ = ["PydanticAIProvider"]

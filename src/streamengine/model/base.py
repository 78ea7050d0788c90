"""The base of everything that is stored or sent: camelCase in JSON, snake_case in Python."""

from __future__ import annotations

import json
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError


class CamelModel(BaseModel):
    """A frozen record with camelCase JSON.

    Fields that this version doesn't know are kept and written back, so that a row of a newer
    version survives being read and rewritten by an older one. A field that is None is left out of
    the JSON; a None inside a free value (a tool's output, say) stays.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        # `model` and `model_...` are plain field names here.
        protected_namespaces=(),
    )

    def to_json(self, *, indent_spaces: int | None = None) -> str:
        """This record as JSON text.

        Raises ValueError when it can't be JSON at all (a list that holds itself).
        """
        try:
            return self.model_dump_json(
                by_alias=True, exclude_none=True, indent=indent_spaces, fallback=str
            )
        except PydanticSerializationError:
            # A provider may cut an emoji in two, and half of one (a lone surrogate) has no UTF-8.
            # The slower encoder writes it as an escape, which every JSON reader accepts.
            fields = self.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
            return json.dumps(fields, indent=indent_spaces, allow_nan=False)

    def to_mapping(self) -> dict[str, Any]:
        """This record as what `json.loads` would give for its JSON text. Raises as to_json()."""
        return cast("dict[str, Any]", json.loads(self.to_json()))

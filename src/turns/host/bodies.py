"""What callers of the API say: bodies and ids, read and checked."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from streamengine.model import check_id

from .problems import Problem

MOST_ERRORS: Final = 10
"""How many of the faults of a body are told: it may have as many as it has bytes."""
FIELD_CHARACTERS: Final = 80

B = TypeVar("B", bound=BaseModel)

ClientId = Annotated[str, Field(min_length=1, max_length=255)]
"""What a client calls what it asks for: asked for again by that name, it is the same."""


class Body(BaseModel):
    """What a call may say; a field that nobody knows is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, validate_by_name=False, validate_by_alias=True, extra="forbid"
    )


def workspace_id_in(request: HTTPConnection) -> str:
    """The workspace of the path. Raises Problem."""
    # Decoded once, by the server. What is still encoded then has a percent sign, which is no id.
    value: str = request.path_params["workspace_id"]
    try:
        return check_id(value)
    except ValueError as error:
        raise Problem(400, "invalid-id", f"workspace id {error}") from error


async def read_body(request: Request, kind: type[B]) -> B:
    """The body as what it has to be. Raises Problem."""
    try:
        data = await request.body()
    except ClientDisconnect as error:
        raise Problem(400, "disconnected", "the client left before the end of the body") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _invalid(error) from error


def _invalid(error: ValidationError) -> Problem:
    # Without the input: it holds what people wrote, and this goes to the log.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "invalid-json", f"the body is not JSON: {found[0]['msg']}")
    fields = [
        {
            "field": ".".join(str(step) for step in item["loc"])[:FIELD_CHARACTERS],
            "problem": item["msg"].removeprefix("Value error, "),
        }
        for item in found[:MOST_ERRORS]
    ]
    said = [f"{item['field'] or 'the body'}: {item['problem']}" for item in fields]
    if len(found) > MOST_ERRORS:
        said.append(f"and {len(found) - MOST_ERRORS} more")
    detail = "; ".join(said)
    extra: dict[str, Any] = {"errors": fields}
    return Problem(422, "invalid-body", detail, extra=extra)

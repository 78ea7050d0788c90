"""The ASGI application: the API and the page, behind the rules of security.py."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from .api import Api
from .problems import Problem, on_defect, on_http_exception, on_problem

WEB: Final = Path(__file__).parent / "web"


class Page(StaticFiles):
    """The page and what it loads. A browser asks each time whether it has changed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def make_app(api: Api) -> ASGIApp:
    """The application without its rules."""
    return Starlette(
        routes=[*api.routes(), Mount("/", Page(directory=WEB, html=True))],
        exception_handlers={
            Problem: on_problem,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )

"""The ASGI application: the API and the page, behind the rules of security.py."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .api import Api
from .problems import Problem, on_defect, on_http_exception, on_problem

WEB: Final = Path(__file__).parent / "web"

_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/api.js": ("api.js", "text/javascript"),
    "/dom.js": ("dom.js", "text/javascript"),
    "/message.js": ("message.js", "text/javascript"),
    "/turns.js": ("turns.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def make_app(api: Api) -> ASGIApp:
    """The application without its rules."""
    return Starlette(
        routes=[*api.routes(), *_page_routes()],
        exception_handlers={
            Problem: on_problem,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )


def _page_routes() -> list[Route]:
    """A fixed list of files, read once: no path of a request ever names a file."""
    return [
        _file_route(path, (WEB / name).read_bytes(), media_type)
        for path, (name, media_type) in _PAGE.items()
    ]


def _file_route(path: str, content: bytes, media_type: str) -> Route:
    async def give(_request: Request) -> Response:
        # A browser asks each time, so that page and API are of one version.
        return Response(content, headers={"cache-control": "no-cache"}, media_type=media_type)

    return Route(path, give, methods=["GET"])

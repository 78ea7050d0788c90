"""The page: what it is made of, and that nothing a model says can be more than text there.

A browser is not part of the suite; these tests read what it would get.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from streamengine.events import BridgeMessage
from streamengine.model import Event
from turns.events import TurnEvent
from turns.host.app import WEB
from turns.host.turn_messages import TurnMessage

from .kit import Site, a_server, a_site, events_of, rows_of, send

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    async with a_site(tmp_path) as site:
        yield site


class Page(HTMLParser):
    """The elements of index.html with their attributes, and the text inside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.feed((WEB / "index.html").read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)

    def ids(self) -> set[str | None]:
        return {attributes["id"] for _, attributes in self.elements if "id" in attributes}


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/turns.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ],
)
async def test_each_file_of_the_page_is_served(site: Site, path: str, media_type: str) -> None:
    async with site.client(token=False) as client:
        response = await client.get(path)

    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/index.html", "/app.py", "/../app.py", "/%2e%2e/app.py", "/web/app.js"]
)
async def test_no_other_file_is(site: Site, path: str) -> None:
    async with site.client(token=False) as client:
        response = await client.get(path)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


SCRIPTS = {"app.js", "api.js", "dom.js", "message.js", "turns.js"}


async def test_every_file_of_the_page_belongs_to_it_and_is_served(site: Site) -> None:
    files = {path.name for path in WEB.iterdir()}
    async with site.client(token=False) as client:
        answers = {name: await client.get(f"/{name}") for name in files - {"index.html"}}

    assert files == {"index.html", "style.css", "icon.svg"} | SCRIPTS
    assert {name for name, answer in answers.items() if answer.status_code != 200} == set()
    for name, answer in answers.items():
        assert answer.content == (WEB / name).read_bytes()


def scripts() -> str:
    return "\n".join((WEB / name).read_text() for name in sorted(SCRIPTS))


def test_the_scripts_import_each_other_and_nothing_else() -> None:
    imported = set(re.findall(r'\bfrom "([^"]+)"', scripts()))

    assert imported == {f"./{name}" for name in SCRIPTS - {"app.js"}}
    assert not re.search(r"\bimport\s*\(|importScripts|\bimport \"", scripts())


def test_nothing_in_the_page_is_inline_or_from_elsewhere() -> None:
    page = Page()

    assert page.inline == []
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href"):
            assert not re.match(r"[a-z]+:|//", attributes.get(name) or ""), tag


def test_text_gets_into_the_page_as_text_only() -> None:
    script = scripts()

    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert not re.search(rf"{forbidden}|createContextualFragment|DOMParser|setHTML", script)
    assert script.count("textContent") > 5


def test_the_script_and_the_page_agree_on_their_elements() -> None:
    asked_for = set(re.findall(r'byId\("([^"]+)"\)', scripts()))

    assert asked_for
    assert asked_for <= Page().ids()


NOT_DRAWN = {
    "reasoning-end",  # the next block shows it
    "tool-call-delta",  # the whole input comes with the call
    "stream-lifecycle",  # the other events say it
    # What these change is told as `turns.changed`.
    "turn.record",
    "turn.start",
    "steering.injected",
    "interrupt.received",
    "subturn.spawn",
    "subturn.end",
    "subturn.result_delivered",
    "subturn.orphan",
    "permission.asked",
    "permission.answered",
    "permission.dropped",
    # The stream shows them.
    "llm.request",
    "llm.response",
    "llm.retry",
    "tool.start",
    "tool.end",
    "tool.skipped",
}


def test_the_page_hears_every_message_that_there_is() -> None:
    heard = set(re.findall(r'\bon(?:Live)?\("([^"]+)"', scripts()))
    unions: list[Any] = [Event, BridgeMessage, TurnEvent, TurnMessage]
    kinds = [kind for union in unions for kind in get_args(get_args(union)[0])]

    assert heard == {kind.model_fields["type"].default for kind in kinds} - NOT_DRAWN


def test_every_control_has_a_label_and_news_is_announced() -> None:
    page = Page()
    labelled = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}

    controls = [a.get("id") for tag, a in page.elements if tag in ("input", "textarea")]
    assert controls
    assert set(controls) <= labelled
    assert any(attributes.get("aria-live") for _, attributes in page.elements)
    assert any(attributes.get("role") == "alert" for _, attributes in page.elements)


async def test_a_model_that_writes_markup_is_quoted_as_json(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        await send(client, EVIL)
        (await live.provider.next_answer()).say(EVIL).finish()
        told = await events.until("stream-end")
        response = await client.get("/api/workspaces/w1/history")
        rows = await rows_of(client)

    assert told[1].data["delta"] == EVIL
    assert [row["parts"][0]["text"] for row in rows] == [EVIL, EVIL]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"

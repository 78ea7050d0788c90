"""Who may ask, from where, and how much."""

from __future__ import annotations

import asyncio
import hmac
import re
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog.testing

from turns.host.config import Limits, ServeConfig
from turns.host.serve import names_of
from turns.host.token import AccessToken, load, load_or_make

from .kit import AUTHORITY, BOUND_SECONDS, PORT, Answer, Site, a_site, send, settle

MESSAGES = "/api/workspaces/w1/messages"
HISTORY = "/api/workspaces/w1/history"
JSON = {"content-type": "application/json"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    async with a_site(tmp_path) as site:
        yield site


def problem_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    fields: dict[str, Any] = response.json()
    assert fields["status"] == response.status_code
    assert fields["detail"]
    return fields


# ---- the token


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", HISTORY),
        ("GET", "/api/workspaces/w1/events"),
        ("POST", MESSAGES),
        ("POST", "/api/workspaces/w1/stop"),
        ("POST", "/api/workspaces/w1/turns"),
        ("GET", "/api/workspaces/w1/turns"),
        ("GET", "/api/turns"),
        ("GET", "/api/turns/wst_1"),
        ("POST", "/api/turns/wst_1/steer"),
        ("POST", "/api/turns/wst_1/subturns"),
        ("POST", "/api/turns/wst_1/interrupt"),
        ("POST", "/api/turns/wst_1/permissions/p_1"),
        ("GET", "/api/no-such-thing"),
    ],
)
async def test_no_call_of_the_api_is_answered_without_the_token(
    site: Site, method: str, path: str
) -> None:
    async with site.client(token=False) as client:
        response = await client.request(method, path, json={"text": "hi"})

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert problem_of(response)["kind"] == "not-logged-in"


@pytest.mark.parametrize("credentials", ["Bearer wrong", "Bearer", "Basic {token}", "Bearer \xe9"])
async def test_other_credentials_are_refused(site: Site, credentials: str) -> None:
    assert site.access is not None
    value = credentials.replace("{token}", site.access.secret)
    async with site.client(token=False) as client:
        response = await client.get(HISTORY, headers=[(b"authorization", value.encode("latin-1"))])

    assert response.status_code == 401


async def test_the_token_as_a_query_opens_nothing(site: Site) -> None:
    assert site.access is not None
    async with site.client(token=False) as client:
        response = await client.get(HISTORY, params={"token": site.access.secret})

    assert response.status_code == 401


async def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_never_get(
    site: Site,
) -> None:
    assert site.access is not None
    async with site.client(token=False) as client:
        login = await client.post("/api/session", json={"token": site.access.secret})
        cookie = login.headers["set-cookie"]
        after = await client.get(HISTORY)

    assert login.status_code == 204
    assert after.status_code == 200
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert cookie.startswith(f"fiberscope_{PORT}=")
    assert site.access.secret not in cookie


async def test_a_wrong_token_gets_no_cookie(site: Site) -> None:
    async with site.client(token=False) as client:
        response = await client.post("/api/session", json={"token": "x" * 43})

    assert response.status_code == 401
    assert "set-cookie" not in response.headers


async def test_a_cookie_of_another_token_is_worth_nothing(site: Site) -> None:
    other = AccessToken("y" * 43)
    async with site.client(token=False) as client:
        client.cookies.set(f"fiberscope_{PORT}", other.cookie)
        response = await client.get(HISTORY)

    assert response.status_code == 401


async def test_the_page_itself_and_the_health_need_no_token(site: Site) -> None:
    async with site.client(token=False) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/app.js")).status_code == 200
        health = await client.get("/healthz")

    assert health.json() == {"status": "ok"}


def test_tokens_and_cookies_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    really = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return really(a, b)

    access = AccessToken("t" * 43)
    monkeypatch.setattr("hmac.compare_digest", compare)

    assert access.matches("t" * 43)
    assert not access.matches("t\u00e9")
    assert access.matches_cookie(access.cookie)
    assert not access.matches_cookie("")
    assert len(compared) == 4


def test_the_token_file_is_private_and_outlives_the_process(tmp_path: Path) -> None:
    first = load_or_make(tmp_path)

    path = tmp_path / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() == first.secret
    assert load_or_make(tmp_path).secret == first.secret
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", first.secret)
    assert first.secret not in repr(first)


@pytest.mark.parametrize("damage", ["open", "cut", "link"])
def test_a_token_that_may_be_known_is_replaced(tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state"
    state.mkdir(0o700)
    first = load_or_make(state)
    path = state / "token"
    if damage == "open":
        path.chmod(0o644)
    elif damage == "cut":
        path.write_text(first.secret[:10])
    else:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text(first.secret)
        elsewhere.chmod(0o600)
        path.unlink()
        path.symlink_to(elsewhere)

    assert load(state) is None
    second = load_or_make(state)

    assert second.secret != first.secret
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_without_auth_the_api_is_open_and_the_login_succeeds_without_a_cookie(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path, auth=False) as site, site.client() as client:
        assert (await client.get(HISTORY)).status_code == 200
        login = await client.post("/api/session", json={"token": "anything"})

    assert login.status_code == 204
    assert "set-cookie" not in login.headers
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_no_auth_is_refused_where_others_can_reach_it(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        ServeConfig(state=tmp_path, host=host, auth=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_no_auth_is_possible_on_loopback(tmp_path: Path, host: str) -> None:
    assert not ServeConfig(state=tmp_path, host=host, auth=False).auth


# ---- names


@pytest.mark.parametrize(
    "host",
    [
        AUTHORITY,
        f"localhost:{PORT}",
        f"LOCALHOST:{PORT}",
        f"[::1]:{PORT}",
    ],
)
async def test_it_answers_under_its_own_names(site: Site, host: str) -> None:
    async with site.client() as client:
        response = await client.get("/healthz", headers={"host": host})

    assert response.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{PORT}",
        f"localhost:{PORT}.evil.example",
        f"[::1]:{PORT}x",
        "[::1]",
        f"user@127.0.0.1:{PORT}",
        "",
    ],
)
async def test_it_does_not_answer_under_other_names(site: Site, host: str) -> None:
    async with site.client() as client:
        for path in ("/", "/healthz", HISTORY):
            response = await client.get(path, headers={"host": host})

            assert response.status_code == 421
            assert problem_of(response)["kind"] == "unknown-host"


async def test_two_hosts_are_one_too_many(site: Site) -> None:
    async with site.client() as client:
        headers = [("host", AUTHORITY), ("host", AUTHORITY)]
        response = await client.get("/healthz", headers=headers)

    assert response.status_code == 421


def test_the_default_port_may_be_left_out_of_the_name(tmp_path: Path) -> None:
    config = ServeConfig(state=tmp_path, port=80, allowed_hosts=("box.lan", "fd00::7"))

    assert names_of(config, 80) == [
        "127.0.0.1:80",
        "localhost:80",
        "[::1]:80",
        "box.lan:80",
        "[fd00::7]:80",
        "127.0.0.1:80",
    ]


# ---- origins and content


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        f"https://{AUTHORITY}",
        "http://127.0.0.1",
        "http://127.0.0.1:3000",
        f"http://localhost:{PORT}",
        "",
    ],
)
async def test_another_origin_may_not_use_the_api(site: Site, origin: str) -> None:
    async with site.client(origin=origin) as client:
        write = await send(client)
        read = await client.get(HISTORY)

    assert (write.status_code, read.status_code) == (403, 403)
    assert problem_of(write)["kind"] == "foreign-origin"
    assert site.provider.answers.empty()


async def test_a_foreign_origin_beside_the_own_one_is_foreign(site: Site) -> None:
    origins = [("origin", f"http://{AUTHORITY}"), ("origin", "http://evil.example"), *JSON.items()]
    async with site.client() as client:
        response = await client.post(MESSAGES, headers=origins, content=b'{"text":"hi"}')

    assert response.status_code == 403


@pytest.mark.parametrize("origin", [f"http://{AUTHORITY}", None])
async def test_the_own_origin_or_none_may(site: Site, origin: str | None) -> None:
    async with site.client() as client:
        if origin is not None:
            client.headers["origin"] = origin
        response = await send(client)

    assert response.status_code == 202


@pytest.mark.parametrize("relation", ["cross-site", "same-site"])
async def test_what_the_browser_calls_another_site_is_refused(site: Site, relation: str) -> None:
    async with site.client() as client:
        headers = {"sec-fetch-site": relation}
        write = await client.post(MESSAGES, json={"text": "hi"}, headers=headers)
        read = await client.get(HISTORY, headers=headers)
        page = await client.get("/", headers=headers)

    assert (write.status_code, read.status_code) == (403, 403)
    assert page.status_code == 200  # a link on another page may lead here


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        None,
    ],
)
async def test_a_write_that_is_no_json_is_refused(site: Site, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    async with site.client() as client:
        response = await client.post(MESSAGES, content=b'{"text":"hi"}', headers=headers)

    assert response.status_code == 415
    assert problem_of(response)["kind"] == "not-json"


async def test_json_with_a_charset_is_json(site: Site) -> None:
    headers = {"content-type": "application/JSON; charset=utf-8"}
    async with site.client() as client:
        response = await client.post(MESSAGES, content=b'{"text":"hi"}', headers=headers)

    assert response.status_code == 202


async def test_no_answer_allows_another_origin_to_read_it(site: Site) -> None:
    async with site.client() as client:
        asked = {
            "origin": "http://evil.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        for response in (
            await client.options(MESSAGES, headers=asked),
            await client.get("/", headers=asked),
            await client.get("/healthz", headers=asked),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]


# ---- what every answer carries


async def test_every_answer_carries_the_safe_headers(site: Site) -> None:
    async with site.client() as client:
        answers = [
            await client.get("/"),
            await client.get("/nothing-here"),
            await client.get(HISTORY),
            await client.get("/healthz", headers={"host": "evil.example"}),
            await send(client, " "),
        ]

    assert [a.status_code for a in answers] == [200, 404, 200, 421, 422]
    for answer in answers:
        policy = answer.headers["content-security-policy"].split("; ")
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


# ---- sizes and ids


async def test_a_body_that_says_it_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(body_bytes=100)) as site,
        site.client() as client,
    ):
        response = await send(client, "x" * 200)

    assert response.status_code == 413
    assert "100 bytes" in problem_of(response)["detail"]


async def test_a_body_that_grows_too_large_is_refused(tmp_path: Path) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b"x" * 10

    async with (
        a_site(tmp_path, limits=Limits(body_bytes=100)) as site,
        site.client() as client,
    ):
        response = await client.post(MESSAGES, content=pieces(), headers=JSON)
        next_one = await send(client, "short")

    assert response.status_code == 413
    assert next_one.status_code == 202


async def test_a_body_as_large_as_allowed_is_taken(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(body_bytes=100)) as site,
        site.client() as client,
    ):
        content = b'{"text":"' + b"x" * 89 + b'"}'
        response = await client.post(MESSAGES, content=content, headers=JSON)

    assert len(content) == 100
    assert response.status_code == 202


@pytest.mark.parametrize(
    "encoded",
    [
        "W1",
        "%57",
        "-x",
        "_x",
        ".",
        "%2e%2e",
        "a.b",
        "a%20b",
        "a%00",
        "%c3%a9",
        "a%0a",
        "%2577",
        "a%252fb",
        "x" * 65,
    ],
)
async def test_an_id_that_names_no_workspace_is_refused_after_one_decoding(
    site: Site, encoded: str
) -> None:
    async with site.client() as client:
        response = await client.get(
            httpx.URL(f"http://{AUTHORITY}/api/workspaces/{encoded}/history")
        )

    # Some clients shorten the dots before they send them: then there is no such path.
    assert response.status_code in (400, 404)
    assert not [p.name for p in (site.root.state / "workspaces").glob("*")]


async def test_an_encoded_id_is_decoded_once(site: Site) -> None:
    async with site.client() as client:
        response = await client.get("/api/workspaces/%77%31/history")

    assert response.json()["workspaceId"] == "w1"


@pytest.mark.parametrize("path", ["a%2fb", "..%2f..", "%2fetc"])
async def test_a_slash_in_an_id_leads_nowhere(site: Site, path: str) -> None:
    async with site.client() as client:
        response = await client.get(f"/api/workspaces/{path}/history")

    assert response.status_code == 404


async def test_the_message_id_of_a_stop_is_checked_too(site: Site) -> None:
    async with site.client() as client:
        response = await client.post(
            "/api/workspaces/w1/stop", json={"messageId": "../../etc/passwd"}
        )

    assert response.status_code == 422


async def test_more_workspaces_at_a_time_than_allowed_are_refused(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(streams=2)) as site,
        site.client() as client,
    ):
        answers: list[Answer] = []
        for workspace in ("w1", "w2"):
            assert (await send(client, workspace=workspace)).status_code == 202
            answers.append(await site.provider.next_answer())
        refused = await send(client, workspace="w3")
        again = await send(client, workspace="w2")
        answers[0].say("done").finish()
        await settle(site, "w1")
        # Its place is given back a moment after its end. The application runs in this task: without
        # the sleep the loop would never get a turn.
        async with asyncio.timeout(BOUND_SECONDS):
            while (after := await send(client, workspace="w3")).status_code == 503:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.001)

    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert problem_of(refused)["kind"] == "too-many-streams"
    assert again.status_code == 202
    assert after.status_code == 202


async def test_more_subscribers_than_allowed_are_refused(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(subscribers=1)) as site,
        site.client() as client,
    ):
        first = site.hub.subscribe("w1")
        refused = await client.get("/api/workspaces/w1/events")
        site.hub.subscribe("w2").close()
        first.close()

        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert site.hub.subscriber_count == 0


# ---- refusals are logged, without what they must not hold


async def test_a_refusal_is_logged_without_the_token(site: Site) -> None:
    assert site.access is not None
    with structlog.testing.capture_logs() as logs:
        async with site.client(token=False) as client:
            await client.get(HISTORY, params={"token": site.access.secret})
            await client.post("/api/session", json={"token": site.access.secret, "x": 1})

    assert [entry["status"] for entry in logs] == [401, 422]
    assert site.access.secret not in repr(logs)

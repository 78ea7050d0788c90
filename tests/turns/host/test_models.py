"""Which provider a name on the command line stands for, and ``chat`` with one over HTTP."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from pathlib import Path

import pytest
import structlog

from streamengine.providers.api import HttpProvider
from streamengine.providers.pydantic_ai import PydanticAIProvider
from tests.streamengine.providers.conformance.dialects import (
    AnthropicDialect,
    ChatDialect,
    Dialect,
    ResponsesDialect,
)
from tests.streamengine.providers.conformance.hostile_server import (
    HostileServer,
    a_server,
    answers,
    refuses,
)
from tests.streamengine.providers.conformance.kit import all_parts
from turns.host import logs
from turns.host.errors import HostError, UsageError
from turns.host.models import provider_for

from .programs import WAIT_SECONDS, environment

KEY = "sk-host-0123456789abcdefghij"
APIS: list[tuple[str, str, Dialect]] = [
    ("openai", "OPENAI_API_KEY", ChatDialect()),
    ("openai-responses", "OPENAI_API_KEY", ResponsesDialect()),
    ("anthropic", "ANTHROPIC_API_KEY", AnthropicDialect()),
]

every_api = pytest.mark.parametrize(("kind", "variable", "dialect"), APIS)


@pytest.fixture(autouse=True)
def _forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set[str]())


@every_api
async def test_a_name_is_asked_for_at_its_base_url(
    kind: str, variable: str, dialect: Dialect
) -> None:
    async with a_server() as server:
        server.plan = answers(*dialect.answer("Hello."))
        provider = provider_for(
            f"{kind}:m:with-colon", base_url=server.url, environment={variable: KEY}
        )

        await all_parts(provider)

        (asked,) = server.asked
        assert asked.body["model"] == "m:with-colon"
        assert asked.headers[dialect.key_header].endswith(KEY)


@every_api
def test_a_missing_key_stops_the_start(kind: str, variable: str, dialect: Dialect) -> None:
    with pytest.raises(HostError, match=f"--model {kind}: there is no API key: set {variable}"):
        provider_for(f"{kind}:m", environment={})

    assert isinstance(provider_for(f"{kind}:m", environment={variable: KEY}), HttpProvider)


def test_a_server_on_this_machine_needs_no_key() -> None:
    provider = provider_for("openai:m", base_url="http://localhost:9/v1", environment={})

    assert isinstance(provider, HttpProvider)


@pytest.mark.parametrize("name", ["openai", "openai:", "anthropic:", "pydantic-ai:", "OpenAI:m"])
def test_half_a_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="openai:NAME"):
        provider_for(name, environment={"OPENAI_API_KEY": KEY})


@pytest.mark.parametrize("name", ["openai", "openai:", "openai-responses", "anthropic:"])
def test_an_api_without_a_name_is_not_told_that_it_has_no_base_url(name: str) -> None:
    with pytest.raises(UsageError, match=f"there is no model '{name}': use .*openai:NAME"):
        provider_for(name, base_url="http://localhost:9/v1", environment={})


@pytest.mark.parametrize("model", ["local", "scripted:x.json", "pydantic-ai:test"])
def test_a_base_url_is_for_an_api(model: str) -> None:
    with pytest.raises(UsageError, match="--base-url is for openai, "):
        provider_for(model, base_url="https://example.test")


def test_a_base_url_in_clear_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--base-url: the base URL of example\.test isn't https"):
        provider_for("openai:m", base_url="http://example.test", environment={})


def test_pydantic_ai_has_names_of_its_own() -> None:
    assert isinstance(provider_for("pydantic-ai:test", environment={}), PydanticAIProvider)
    with pytest.raises(HostError, match="Unknown model: nobody:m"):
        provider_for("pydantic-ai:nobody:m", environment={})


def test_pydantic_ai_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "streamengine.providers.pydantic_ai", None)

    with pytest.raises(HostError, match=r"pip install 'fiberscope\[pydantic-ai\]'"):
        provider_for("pydantic-ai:test", environment={})


def test_no_log_shows_a_key_that_was_read(log: io.StringIO) -> None:
    odd = "no-known-shape-77"
    provider_for("openai:m", environment={"OPENAI_API_KEY": odd})
    provider_for("pydantic-ai:test", environment={"X_TOKEN": "another-shape-78"})

    structlog.get_logger("x").info("said", what=f"<{odd}>", error=ValueError("another-shape-78"))
    logging.getLogger("y").warning("Bearer %s", "abcdef123456")

    assert log.getvalue().count("[secret]") == 3
    assert "shape" not in log.getvalue()
    assert "abcdef123456" not in log.getvalue()


# ---- the whole program


async def chat(server: HostileServer, state: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code, and all that it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "turns.host", "chat", "Hi", "--state", str(state)),
        *("--base-url", server.url, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(**env),
    )
    output, _ = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    assert process.returncode is not None
    return process.returncode, output.decode()


def files_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


@every_api
async def test_chat_writes_the_answer(
    kind: str, variable: str, dialect: Dialect, tmp_path: Path
) -> None:
    async with a_server() as server:
        server.plan = answers(*dialect.answer("It rains ", "in Bergen."))

        code, output = await chat(server, tmp_path, "--model", f"{kind}:m", **{variable: KEY})

        assert (code, output) == (0, "It rains in Bergen.\n")
        await server.none_left()


async def test_chat_says_what_is_wrong_without_the_key(tmp_path: Path) -> None:
    async with a_server() as server:
        server.plan = refuses(401, f'{{"error": {{"message": "wrong key: {KEY}"}}}}')

        code, output = await chat(
            server, tmp_path, "--model", "openai:m", OPENAI_API_KEY=KEY, FIBERSCOPE_LOG="debug"
        )

        assert code == 1
        assert "wrong key: [secret]. Check the key in OPENAI_API_KEY" in output
        assert "Traceback" not in output
        assert KEY not in output
        assert KEY not in files_in(tmp_path)

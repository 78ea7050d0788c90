"""Where the key of a provider comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fibers import AbortController
from streamengine import SendError, StreamRequest
from streamengine.providers.anthropic import anthropic
from streamengine.providers.keys import KeySource
from streamengine.providers.openai import openai_chat
from streamengine.redact import Secret

SIGNAL = AbortController().signal


def key_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


def source(file: Path | None = None, **environment: str) -> KeySource:
    return KeySource("A_API_KEY", file=file, environment=environment)


def problem(keys: KeySource) -> str:
    with pytest.raises(SendError) as raised:
        keys.key()
    assert raised.value.kind == "api_key_not_found"
    return raised.value.message


def test_the_variable_gives_it() -> None:
    assert source(A_API_KEY=" k-123 ").key() == Secret("k-123")


def test_the_file_that_a_variable_names_gives_it(tmp_path: Path) -> None:
    path = key_file(tmp_path, "k-123\n")

    assert source(A_API_KEY_FILE=str(path)).key() == Secret("k-123")
    assert source(A_API_KEY_FILE=str(path), A_API_KEY="k-9").key() == Secret("k-9")


def test_a_file_that_is_given_wins(tmp_path: Path) -> None:
    assert source(key_file(tmp_path, "k-123"), A_API_KEY="k-9").key() == Secret("k-123")


def test_a_new_key_is_used_at_once(tmp_path: Path) -> None:
    keys = source(key_file(tmp_path, "k-123"))
    keys.key()
    key_file(tmp_path, "k-456")

    assert keys.key() == Secret("k-456")


def test_whoever_keeps_secrets_is_told_of_it() -> None:
    told: list[Secret] = []
    keys = KeySource("A_API_KEY", environment={"A_API_KEY": "k-123"}, on_key=told.append)

    keys.key()

    assert told == [Secret("k-123")]


def test_without_one_the_way_to_give_one_is_named() -> None:
    message = problem(source())

    assert "set A_API_KEY, or A_API_KEY_FILE" in message
    assert source().find() is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, "k-123", mode)

    assert problem(source(path)) == f"other users may read the key file {path}: run chmod 600 on it"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none"

    assert problem(source(path)) == f"the key file {path} can't be read (No such file or directory)"
    assert "can't be read" in problem(source(tmp_path))


@pytest.mark.parametrize("text", ["", "  \n", "two words", "k\x00k", "schlüssel", "a\nb"])
def test_what_can_be_no_key_is_refused_without_being_quoted(tmp_path: Path, text: str) -> None:
    message = problem(source(key_file(tmp_path, text)))

    assert message.endswith("is no API key: one word of ASCII is")
    assert not text.strip() or text not in message


def test_a_file_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    assert "far too large" in problem(source(key_file(tmp_path, "x" * 20_000)))


def test_a_stream_without_a_key_raises_at_once() -> None:
    with pytest.raises(SendError) as raised:
        anthropic("m", keys=source()).stream(StreamRequest(text="Hi"), SIGNAL)

    assert raised.value.kind == "api_key_not_found"


def test_a_server_on_this_machine_needs_none() -> None:
    provider = openai_chat("m", base_url="http://127.0.0.1:9/v1", keys=source())

    assert provider.check_key() is None


@pytest.mark.parametrize(
    ("base_url", "problem"),
    [
        ("http://example.test/v1", "of example.test isn't https"),
        ("https://me:pw-12345@example.test", "holds a user or a password"),
        ("ftp://example.test", "begins with https://"),
        ("example.test/v1", "begins with https://"),
        ("https://", "begins with https://"),
        ("https://example.test:port/", "is no URL"),
        ("http://localhost:70000/v1", "port 70000"),
        ("https://example.test:0/v1", "port 0"),
        ("https://example.test/v1?key=pw-12345", "ends with its path"),
        ("https://example.test/v1#pw-12345", "ends with its path"),
    ],
)
def test_a_base_url_that_cannot_be_asked_safely_is_refused(base_url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        openai_chat("m", base_url=base_url, keys=source())

    assert "pw-12345" not in str(raised.value)

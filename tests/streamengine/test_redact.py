"""Secrets that never show, and texts that they are taken out of."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamengine.redact import MASK, Secret, redact, secrets_in

VALUE = "tr0ub4dor-and-3"


def _in_containers(secret: object) -> str:
    return repr([secret, {"key": secret}])


def _in_json(secret: object) -> str:
    return json.dumps({"key": secret}, default=str)


def _in_a_sentence(secret: object) -> str:
    return f"{secret} and {secret!r:>40}"


def _copied(secret: object) -> str:
    return repr(copy.deepcopy([secret]))


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        ascii,
        _in_containers,
        _in_json,
        _in_a_sentence,
        _copied,
    ],
)
def test_a_secret_shows_in_no_form(show: Callable[[object], str]) -> None:
    shown = show(Secret(VALUE))

    assert VALUE not in shown
    assert MASK in shown


def test_a_secret_is_revealed_on_request_only() -> None:
    assert Secret(VALUE).reveal() == VALUE
    assert Secret(VALUE) == Secret(VALUE) != Secret("another")
    assert len({Secret(VALUE), Secret(VALUE)}) == 1


def test_a_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="isn't pickled"):
        pickle.dumps(Secret(VALUE))


@given(st.text(max_size=30), st.text(max_size=30), st.text(min_size=6, max_size=30))
def test_a_known_secret_stands_nowhere(before: str, after: str, secret: str) -> None:
    if secret in MASK or MASK in secret:
        return

    assert secret not in redact(f"{before}{secret}{after}", [secret]).replace(MASK, "")


def test_of_two_secrets_that_share_text_nothing_is_left() -> None:
    text = redact("a token-12345 and a token-12345-long", ["token-12345", "token-12345-long"])

    assert text == f"a {MASK} and a {MASK}"


def test_a_short_secret_does_not_garble_words() -> None:
    assert redact("a catalogue", ["cat"]) == "a catalogue"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key sk-proj-abcdefgh12345678 is wrong", f"key {MASK} is wrong"),
        ("provided: sk-abcd********wxyz.", f"provided: {MASK}."),
        ("sk-ant-api03-ABCdef_12345678", MASK),
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MASK}"),
        ('{"x-api-key": "abcdef123456"}', f'{{"x-api-key": "{MASK}"}}'),
        ("api_key=abcdef123456&x=1", f"api_key={MASK}&x=1"),
        ("Authorization: abcdef123456", f"Authorization: {MASK}"),
        ("https://me:pass@host/path", f"https://{MASK}@host/path"),
        ("postgres://admin@db:5432/x", f"postgres://{MASK}@db:5432/x"),
        ("postgresql://db/x?a=1&password=p", f"postgresql://db/x?a=1&password={MASK}"),
        ("/x?access_token=t.1&b=2#c", f"/x?access_token={MASK}&b=2#c"),
    ],
)
def test_what_has_the_shape_of_a_secret_is_taken_out(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "basic authentication failed",
        "the bearer of bad news",
        "API key: missing",
        "set OPENAI_API_KEY, or ask somebody@example.test",
        "risk-based asking: task-oriented",
        "https://example.test/a?b=c@d",
        "is it a token? token=5 of them, /list?tokens=all",
        "",
    ],
)
def test_words_stay(text: str) -> None:
    assert redact(text) == text


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact("Bearer abcdef123456 https://a:b@c sk-abcdefgh12345678", [VALUE])

    assert redact(once, [VALUE]) == once


def test_the_secrets_of_an_environment_are_known_by_their_names() -> None:
    environment = {"A_API_KEY": "k-1", "B_TOKEN": "t-1", "PATH": "/bin", "KEYBOARD": "us"}

    assert set(secrets_in(environment)) == {Secret("k-1"), Secret("t-1")}


@pytest.mark.parametrize(
    "hostile", ["a-", "api_key:", "authorization:", "a://b:", "sk-", "@", "://", "?a", "&token"]
)
def test_no_text_of_the_other_side_holds_up_the_loop(hostile: str) -> None:
    # The size of the largest error body that is read. In proportion to it a search needs
    # milliseconds; trying again at each place what it has tried before, it needed 20 seconds.
    began = time.process_time()

    redact(hostile * (65_536 // len(hostile)))

    assert time.process_time() - began < 1


def test_a_password_with_an_at_sign_goes_as_a_whole() -> None:
    assert redact("http://me:p@ss-w0rd@host/x") == f"http://{MASK}@host/x"

"""Server-sent events out of bytes."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from streamengine.providers.sse import EventTooLarge, SseDecoder, SseEvent

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data: ",
        b"event: x",
        b"event",
        b": c",
        b"",
        b"id: 1",
        b"retry: 3",
        b"other: d",
        b"data: \xc3\xbc",
        b"data: \xff",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=14).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def events_of(data: bytes, cuts: list[int] | None = None) -> list[SseEvent]:
    decoder = SseDecoder(limit_bytes=1000)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]
    return [event for piece in pieces for event in decoder.feed(piece)]


@given(STREAMS, st.lists(st.integers(0, 500), max_size=20))
def test_the_cuts_do_not_matter(data: bytes, cuts: list[int]) -> None:
    assert events_of(data, cuts) == events_of(data)


@given(STREAMS)
def test_it_reads_what_httpx_sse_reads(data: bytes) -> None:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    theirs = [
        SseEvent(e.event if e.event != "message" else "", e.data)
        for e in EventSource(response).iter_sse()
    ]

    # An event without data is none, by the standard; that one gives it.
    assert [e for e in events_of(data) if e.data] == [e for e in theirs if e.data]


def test_a_byte_order_mark_is_passed_over() -> None:
    assert events_of(b"\xef\xbb\xbfdata: a\n\n") == [SseEvent("", "a")]


def test_lines_of_data_are_put_together() -> None:
    assert events_of(b"event: x\ndata: a\ndata: b\n\ndata: c\n\n") == [
        SseEvent("x", "a\nb"),
        SseEvent("", "c"),
    ]


def test_what_was_cut_off_is_no_event() -> None:
    assert events_of(b"data: a\n\ndata: b\n") == [SseEvent("", "a")]
    assert events_of(b"data: a\n\ndata: b") == [SseEvent("", "a")]


@pytest.mark.parametrize(
    "pieces",
    [[b"data: " + b"x" * 101], [b"data: xxxxxxxxx\n"] * 12, [b"x" * 30] * 4, [b": " + b"x" * 200]],
    ids=["a line", "many lines", "pieces of a line", "a comment"],
)
def test_an_event_has_a_bound(pieces: list[bytes]) -> None:
    decoder = SseDecoder(limit_bytes=100)

    with pytest.raises(EventTooLarge):
        _ = [decoder.feed(piece) for piece in pieces]


def test_the_bound_is_of_each_event() -> None:
    decoder = SseDecoder(limit_bytes=100)

    events = [event for _ in range(100) for event in decoder.feed(b"data: 0123456789\n\n")]

    assert len(events) == 100


def test_what_was_complete_before_an_event_that_is_too_large_is_not_lost() -> None:
    decoder = SseDecoder(limit_bytes=10)

    with pytest.raises(EventTooLarge) as raised:
        decoder.feed(b"data: one\n\ndata: two\n\ndata: far too large\n\n")

    assert [event.data for event in raised.value.before] == ["one", "two"]

"""The measure of memory that tests of flatness stand on."""

from __future__ import annotations

from tests.memory import kept_bytes, peak_bytes

LARGE_BYTES = 1_000_000


async def test_what_another_thread_allocates_once_is_not_counted() -> None:
    others = list[bytearray]()

    async def work() -> None:
        if not others:
            others.append(bytearray(LARGE_BYTES))

    assert await kept_bytes(work) < LARGE_BYTES
    others.clear()
    assert await peak_bytes(work) < LARGE_BYTES


async def test_what_the_code_itself_keeps_is_counted() -> None:
    kept = list[bytearray]()

    async def work() -> None:
        kept.append(bytearray(LARGE_BYTES))

    assert await kept_bytes(work) >= LARGE_BYTES


async def test_what_is_alive_for_a_moment_counts_for_the_peak_alone() -> None:
    async def work() -> None:
        bytearray(LARGE_BYTES)

    assert await peak_bytes(work) >= LARGE_BYTES
    assert await kept_bytes(work) < LARGE_BYTES

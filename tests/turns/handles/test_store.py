"""The stores of records, on files, SQLite and PostgreSQL: one record a turn, and what is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from turns import LoadedRecords, TurnError, TurnRecord, TurnStore
from turns.model.cause import ManualSupersession
from turns.model.record import now

from .backends import OWNER, Backend
from .conftest import MakeProcess

Spoil = Callable[[bytes], bytes]
"""Makes bad content of good."""


def record(number: int = 1, **fields: Any) -> TurnRecord:
    created = now()
    plain = TurnRecord(
        handle_id=f"wst_{number}",
        owner_workspace_id=OWNER,
        workspace_id="w1",
        turn_id=f"turn_{number}",
        created_at=created,
        updated_at=created,
        prompt="Count them",
    )
    return plain.model_copy(update=fields)


async def load(store: TurnStore) -> LoadedRecords:
    with capture_logs():
        return await store.load()


async def fields_in(backend: Backend, handle_id: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(await backend.get(handle_id))
    return fields


@pytest.mark.spec("T7")
async def test_a_record_is_read_as_it_was_written(backend: Backend) -> None:
    store = await backend.store()
    first = record(1)
    settled = record(2).settled(ManualSupersession(message_id="u_9"), None)
    await store.write(settled)
    await store.write(first)

    for reader in (store, await backend.store()):
        loaded = await load(reader)

        assert [r.handle_id for r in loaded.records] == ["wst_1", "wst_2"]
        assert loaded.records == (first, settled)
        assert loaded.records[1].settled_for == ManualSupersession(message_id="u_9")
        assert loaded.warnings == ()


async def test_records_are_in_the_order_of_their_creation_those_of_older_versions_first(
    backend: Backend,
) -> None:
    """The wall clock may have been set back between any two."""
    store = await backend.store()
    late, early = now(), now() - timedelta(hours=1)
    await store.write(record(1, sequence=1, created_at=early))
    await store.write(record(2, sequence=0, created_at=late))
    await store.write(record(3, created_at=late))
    await store.write(record(4, created_at=early))

    loaded = await load(store)

    assert [r.handle_id for r in loaded.records] == ["wst_4", "wst_3", "wst_2", "wst_1"]


async def test_a_record_takes_the_place_of_the_one_before(backend: Backend) -> None:
    store = await backend.store()
    await store.write(record(prompt="x" * 100_000))
    await store.write(record(prompt="then"))
    await store.write(record(2))

    assert [r.prompt for r in (await load(store)).records] == ["then", "Count them"]


async def test_of_many_writes_of_one_record_the_last_stays(backend: Backend) -> None:
    store = await backend.store()
    writes = [store.write(record(n % 3, ignored_ends=n)) for n in range(30)]

    await fb.for_each(writes, lambda write: write, concurrency="unbounded", discard=True)

    loaded = await load(store)
    assert [(r.handle_id, r.ignored_ends) for r in loaded.records] == [
        ("wst_0", 27),
        ("wst_1", 28),
        ("wst_2", 29),
    ]


@pytest.mark.spec("T7")
async def test_an_older_record_without_a_cause_is_read(backend: Backend) -> None:
    store = await backend.store()
    await store.write(record(status="interrupted"))

    [loaded] = (await load(store)).records

    assert (loaded.status, loaded.cause, loaded.evidence) == ("interrupted", None, None)
    assert loaded.settled_for is None


@pytest.mark.spec("T7")
async def test_a_cause_and_a_field_of_a_newer_version_survive(backend: Backend) -> None:
    store = await backend.store()
    await store.write(record(status="error", cause="solar-flare", evidence={"size": 3}))
    stored = await fields_in(backend, "wst_1")
    await backend.put("wst_1", json.dumps({**stored, "shownAs": "card"}).encode())

    [loaded] = (await load(store)).records
    assert (loaded.cause, loaded.settled_for) == ("solar-flare", None)
    await store.write(loaded.changed())

    stored = await fields_in(backend, "wst_1")
    assert (stored["shownAs"], stored["evidence"]) == ("card", {"size": 3})


def _changed(**fields: Any) -> Spoil:
    return lambda body: json.dumps({**json.loads(body), **fields}).encode()


BAD: dict[str, tuple[Spoil, str]] = {
    "empty": (lambda _: b"", "not JSON"),
    "torn": (lambda _: b'{"kind": "workspace_tu', "not JSON"),
    "deep": (lambda _: b"[" * 200_000, "not JSON"),
    "not text": (lambda _: b"\xff\xfe\x00", "not JSON"),
    "a list": (lambda _: b"[]", "not the record of a turn"),
    "another kind": (_changed(kind="note"), "kind"),
    "an unknown status": (_changed(status="paused"), "status"),
    "a number for a name": (_changed(turnId=7), "turnId"),
    "text for a number": (_changed(ignoredEnds="3"), "ignoredEnds"),
    "no time": (_changed(createdAt="yesterday"), "createdAt"),
    "a time without a zone": (_changed(createdAt="2026-05-01T10:00:00"), "createdAt"),
    "newer": (_changed(version=2), "newer version"),
    "another handle": (_changed(handleId="wst_9"), "under its own name"),
    "another owner": (_changed(ownerWorkspaceId="else"), "of its owner"),
}


@pytest.mark.spec("T20")
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_record_is_named_and_hides_no_other(
    backend: Backend, kind: str, bad: str
) -> None:
    if (kind, bad) == ("postgresql", "not text"):
        return  # it takes nothing else
    store = await backend.store()
    for number in (1, 2, 3):
        await store.write(record(number))
    spoil, problem = BAD[bad]
    spoilt = spoil(await backend.get("wst_2"))
    await backend.put("wst_2", spoilt)

    with capture_logs() as logs:
        loaded = await store.load()

    assert [r.handle_id for r in loaded.records] == ["wst_1", "wst_3"]
    [warning] = loaded.warnings
    _, place, said = warning.partition(backend.place_of("wst_2"))
    assert place
    assert problem in said
    # What it is, and what to do.
    assert said.count(". ") >= 1
    assert [log["log_level"] for log in logs] == ["warning"]
    assert await backend.get("wst_2") == spoilt


@pytest.mark.spec("T20")
@pytest.mark.parametrize("handle_id", ["notes", "wst_", "WST_1", "wst_1.bak", ""])
async def test_what_is_kept_under_no_handle_is_named_and_left(
    backend: Backend, handle_id: str
) -> None:
    store = await backend.store()
    await store.write(record())
    await backend.put(handle_id, b"mine")

    loaded = await load(store)

    assert len(loaded.records) == 1
    assert backend.place_of(handle_id) in loaded.warnings[0]
    assert await backend.get(handle_id) == b"mine"


async def test_an_empty_place_has_no_turns(backend: Backend) -> None:
    assert await load(await backend.store()) == LoadedRecords(())


async def test_a_full_disk_is_said_and_leaves_the_old_record(backend: Backend) -> None:
    store = await backend.store()
    await store.write(record())

    with backend.full():
        exit_ = await store.write(record(prompt="changed")).exit()

    assert isinstance(exit_, fb.Failure)
    error = exit_.failure().squash()
    assert isinstance(error, TurnError)
    assert error.kind == "store"
    assert "no room" in error.message
    assert error.way_out
    [loaded] = (await load(store)).records
    assert loaded.prompt == "Count them"


async def test_a_write_that_is_interrupted_leaves_a_whole_record(backend: Backend) -> None:
    store = await backend.store()
    await store.write(record(prompt="one"))

    for prompt in ("two", "three"):
        task = asyncio.ensure_future(store.write(record(prompt=prompt)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    loaded = await load(store)
    assert loaded.warnings == ()
    assert [r.prompt in ("one", "two", "three") for r in loaded.records] == [True]


@pytest.mark.spec("T20")
async def test_a_bad_record_keeps_no_turn_from_running(
    backend: Backend, process: MakeProcess
) -> None:
    first = await process(store=await backend.store())
    broken = await first.create()
    kept = await first.create("Later", "w2")
    await first.crash()
    await backend.put(broken.handle_id, b"{")

    with capture_logs() as logs:
        after = await process(store=await backend.store())

    assert any(broken.handle_id in str(log.get("problem")) for log in logs)
    [record_] = await after.rt.run(after.turns.list())
    assert record_.handle_id == kept.handle_id


@pytest.mark.spec("T16", "T20")
async def test_half_a_character_in_a_text_does_not_lose_the_turn(backend: Backend) -> None:
    """A model may cut an emoji in two; a whole one stays whole."""
    store = await backend.store()
    await store.write(record(1, prompt="half \ud83d, whole \U0001f600", final_message="\ude00"))

    loaded = await load(store)

    assert loaded.warnings == ()
    (read,) = loaded.records
    assert (read.prompt, read.final_message) == ("half ?, whole \U0001f600", "?")


async def test_a_text_with_every_odd_character_is_kept(backend: Backend) -> None:
    """Also those that a database has no place for, or a meaning."""
    odd = "".join(map(chr, range(256))) + "\u2028\ufffe'\";--%s$1:name\\"
    store = await backend.store()
    await store.write(record(prompt=odd))

    assert [r.prompt for r in (await load(store)).records] == [odd]

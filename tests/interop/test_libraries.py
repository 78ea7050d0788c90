"""Effects around a database driver and an HTTP client: what an interrupt leaves behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiosqlite
import httpx
import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect
from tests.loops import every_loop
from tests.probes.kit_f import cause_of, interrupted, new_gate, wait_for

if TYPE_CHECKING:
    from pathlib import Path

# ---- aiosqlite


def database(path: Path) -> Effect[aiosqlite.Connection, Any]:
    """A connection of the scope in context."""

    async def connect() -> aiosqlite.Connection:
        return await aiosqlite.connect(path)

    return fb.acquire_release(
        Effect.promise(connect), lambda db, _: Effect.promise(lambda: db.close())
    )


@fb.effect
async def rows_of(path: Path) -> int:
    async with aiosqlite.connect(path) as db, db.execute("select count(*) from t") as cursor:
        row = await cursor.fetchone()
        assert row is not None
        count: int = row[0]
        return count


async def make_table(path: Path) -> None:
    async with aiosqlite.connect(path) as db:
        await db.execute("create table t (n integer)")
        await db.commit()


@pytest.mark.spec("AT21", "SC11")
@every_loop
async def test_a_connection_is_closed_with_its_scope(tmp_path: Path) -> None:
    """What was committed is there, and a closed connection refuses work."""
    path, kept = tmp_path / "db", list[aiosqlite.Connection]()
    await make_table(path)

    @fb.effect
    async def work() -> None:
        db = await database(path)
        kept.append(db)
        await db.execute("insert into t values (1)")
        await db.commit()

    await fb.run_fork(fb.scoped(work()))

    assert await rows_of(path) == 1
    with pytest.raises(ValueError, match="no active connection"):
        await kept[0].execute("select 1")


@pytest.mark.spec("AT21", "FI12")
@pytest.mark.parametrize("end", ["interrupt", "failure", "success"])
@every_loop
async def test_a_transaction_is_rolled_back_unless_its_work_succeeds(
    tmp_path: Path, end: str
) -> None:
    """The release sees how the work ended; the connection is closed after it."""
    path, gate, inserted = tmp_path / "db", new_gate(), asyncio.Event()
    await make_table(path)

    @fb.effect
    async def insert(db: aiosqlite.Connection) -> None:
        await db.execute("insert into t values (1)")
        inserted.set()
        await wait_for(gate)
        if end == "failure":
            raise ValueError("late")

    def finish(db: aiosqlite.Connection, exit: fb.Exit[None, Any]) -> Effect[Any, Any]:
        return Effect.promise(db.commit if isinstance(exit, Success) else db.rollback)

    transaction: Effect[None, Any] = database(path).flat_map(
        lambda db: fb.acquire_use_release(Effect.succeed(db), insert, finish)
    )
    fiber = fb.run_fork(fb.scoped(transaction)).ignore_failure()
    await inserted.wait()
    if end == "interrupt":
        await fiber.interrupt()
    gate.set_result(1)
    await fiber.exit()

    assert await rows_of(path) == (1 if end == "success" else 0)


@pytest.mark.spec("AT15", "AT21")
@every_loop
async def test_a_query_under_way_is_left_by_an_interrupt_and_the_connection_still_closes() -> None:
    """The driver's thread ends its statement, nobody waits for the rows."""
    log, connected = list[str](), asyncio.Event()
    numbers = "with recursive c(n) as (select 1 union all select n + 1 from c limit 300000)"

    @fb.effect
    async def work() -> None:
        async with aiosqlite.connect(":memory:") as db:
            connected.set()
            await db.execute(f"{numbers} select sum(n) from c")
            log.append("not interrupted")

    fiber = fb.run_fork(work())
    await connected.wait()
    await fiber.interrupt()

    assert log == []
    assert cause_of(fiber.poll()).has_interrupts_only


# ---- httpx


class Server:
    """Speaks just enough HTTP, answers when the test says so, and knows who has hung up."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        answering = asyncio.create_task(self.answer.wait())
        hanging_up = asyncio.create_task(reader.read())
        waits = {answering, hanging_up}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if hanging_up.done():
            self.hung_up.set()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.closed.set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self.serve, "127.0.0.1", 0)


def url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@fb.effect(raises=httpx.HTTPError)
async def get(url: str, seconds: float = 60) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=seconds) as http:
        return (await http.get(url)).text


@pytest.mark.spec("AT21")
@pytest.mark.parametrize("end", ["interrupt", "timeout", "race"])
@every_loop
async def test_a_request_under_way_is_hung_up_when_its_fiber_ends(end: str) -> None:
    """By an interrupt, a timeout, or because another was faster: the server sees the client go."""
    here = Server()
    async with await here.start() as server:
        asking: Effect[Any, Any] = get(url_of(server))
        if end == "timeout":
            asking = asking.timeout_option(0.05)
        elif end == "race":
            asking = fb.race_first(asking, Effect.promise(here.asked.wait))
        fiber = fb.run_fork(asking)
        await here.asked.wait()
        if end == "interrupt":
            await fiber.interrupt()
        await fiber.exit()
        await asyncio.wait_for(here.closed.wait(), 5)

    assert here.hung_up.is_set()
    assert end != "interrupt" or fiber.poll() is not None


@pytest.mark.spec("AT21", "PD4")
@every_loop
async def test_a_timeout_of_httpx_is_a_failure_and_not_an_interrupt() -> None:
    """anyio's cancel scope, inside the client, takes its own cancel."""
    here = Server()
    async with await here.start() as server:
        exit = await fb.run_fork(get(url_of(server), 0.2)).exit()
        await asyncio.wait_for(here.closed.wait(), 5)

    assert isinstance(cause_of(exit).squash(), httpx.TimeoutException)
    assert not cause_of(exit).has_interrupts


@pytest.mark.spec("AT21", "PD3")
@every_loop
async def test_a_request_in_a_finalizer_is_not_cut() -> None:
    """It is sent and answered while the fiber is being interrupted."""
    here, log = Server(), list[str]()
    here.answer.set()
    async with await here.start() as server:
        last = get(url_of(server)).or_die().map(log.append)
        fiber = fb.run_fork(Effect.never().ensuring(last))
        await fiber.interrupt(by=3)
        await asyncio.wait_for(here.closed.wait(), 5)

    assert log == ["ok"]
    assert fiber.poll() == interrupted(3)

"""StdioClient: an agent that is a child process and speaks JSON lines on its standard streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import structlog

import fibers as fb
from fibers import Clock
from streamengine.abandoned import ended_within

from ..model.errors import TurnError
from ..process.child import Child
from ..process.records import ProcessRecords
from .messages import AgentEvent, HostMessage, Interrupt, parse_agent_event

LEAVE_SECONDS: Final = 0.5
"""Between the end of its input and the kill."""
SEND_SECONDS: Final = 1.0
"""How long an agent that doesn't read is waited for."""
LAST_WORDS_SECONDS: Final = 1.0
"""How long the rest of what a dead agent wrote is waited for."""
MAX_WARNINGS: Final = 5
"""Of lines that can't be understood; the others are left out in silence."""

_log = structlog.get_logger("turns.client")


@final
class StdioClient:
    """Starts ``arguments`` in ``folder``; kept in ``records`` until it is known to be dead."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        records: ProcessRecords,
        clock: Clock,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        self._arguments = arguments
        self._folder = folder
        self._records = records
        self._clock = clock
        self._leave_seconds = leave_seconds
        self._child: Child | None = None
        self._writing = asyncio.Lock()
        self._misunderstood = 0

    @property
    def child(self) -> Child | None:
        """The process; None before the start."""
        return self._child

    @fb.effect(raises=TurnError)
    async def start(self) -> None:
        """Fails with TurnError("start_failed") where there is no such program."""
        if self._child is not None:
            raise RuntimeError("a StdioClient is started once: make another one")
        # Not to be cut: a process that nobody knows of would be left.
        await fb.Effect.promise(self._start).uninterruptible()

    async def _start(self) -> None:
        try:
            self._child = child = await Child.start(
                self._arguments, folder=self._folder, with_input=True
            )
        except OSError as error:
            raise TurnError(
                "start_failed",
                f"could not start {self._arguments[0]} ({error.strerror or error})",
                "Look whether it is installed, and whether the folder exists.",
            ) from error
        await self._records.note(child.identity)

    @fb.effect(raises=TurnError)
    async def send(self, message: HostMessage) -> None:
        """Fails with TurnError("gone") where it is dead, or does not read for a second."""
        child = self._child
        if child is None or child.exit_code is not None:
            raise TurnError("gone", "the agent does not run", "Start another one.")
        line = message.to_json().encode()
        fiber = fb.run_fork(self._write(child, line).exit())
        exit_ = await ended_within(fiber, self._clock, SEND_SECONDS)
        if exit_ is None:
            fiber.interrupt_unsafe(reason="the agent does not read")
            raise TurnError("gone", "the agent does not read its input", "End it.")
        if isinstance(exit_, fb.Success) and isinstance(exit_.unwrap(), fb.Failure):
            raise TurnError("gone", "the agent has closed its input", "Start another one.")

    @fb.effect
    async def _write(self, child: Child, line: bytes) -> None:
        async with self._writing:
            await child.write_line(line)

    @fb.effect
    async def next(self) -> AgentEvent | None:
        """As in AgentClient. A line of more than a mebibyte is left out too."""
        child = self._child
        while child is not None:
            try:
                line = await self._line(child)
            except ValueError:  # it is too long; what follows is read as lines of their own
                self._warn("a line is too long")
                continue
            if not line:
                # It ends by now, or has only closed its output: then nobody will hear of it again.
                await self._ended_within(child, self._leave_seconds)
                await self._kill(child)
                return None
            if line.isspace():
                continue
            try:
                return parse_agent_event(line)
            except ValueError as error:
                self._warn(str(error))
        return None

    async def _line(self, child: Child) -> bytes:
        if child.exit_code is None:
            ended = fb.Effect.promise(child.wait).map(lambda _: None)
            line = await fb.race_first(fb.Effect.promise(child.output.readline), ended)
            if line is not None:
                return line
        # What it left running may hold its output open: without it, there is an end.
        await self._kill(child)
        rest = fb.Effect.promise(child.output.readline)
        last = await rest.timeout_option(LAST_WORDS_SECONDS).provide_service(
            fb.ClockTag, self._clock
        )
        return last.value_or(b"")

    async def _ended_within(self, child: Child, seconds: float) -> None:
        ending = fb.run_fork(fb.Effect.promise(child.wait))
        ending.ignore_failure()
        try:
            await ended_within(ending, self._clock, seconds)
        finally:
            ending.interrupt_unsafe(reason="nobody waits any longer")

    def _kill(self, child: Child) -> fb.Effect[None]:
        return child.kill().provide_service(fb.ClockTag, self._clock).uninterruptible()

    @fb.effect
    async def dispose(self) -> None:
        """As in AgentClient; takes about ``leave_seconds`` where it doesn't leave by itself."""
        child = self._child
        if child is None:
            return
        await self.send(Interrupt()).exit()
        child.close_input()
        try:
            await self._ended_within(child, self._leave_seconds)
        finally:
            await self._kill(child)
            child.close()
        await self._records.strike(child.identity)

    def _warn(self, problem: str) -> None:
        self._misunderstood += 1
        if self._misunderstood <= MAX_WARNINGS:
            _log.warning(
                "an agent said something that can't be understood",
                problem=problem,
                wayOut="Look whether it is of a version that this one knows.",
                nowSilent=self._misunderstood == MAX_WARNINGS or None,
            )

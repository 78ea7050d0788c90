"""An engine on a desk: providers that the test dictates, what was told, what is on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, final

import fibers as fb
from fibers import AbortSignal, Effect, Scope
from fibers.testing import TestClock
from streamengine import (
    EngineOptions,
    Event,
    FileHistory,
    HistoryError,
    HistoryStore,
    StartOptions,
    StreamEngine,
    StreamHandle,
    StreamRequest,
    Tool,
    ToolSpec,
    ToolUse,
)
from streamengine.history import UsageEntry, UsageSource, partial_log
from streamengine.history.results import AppendedUser, CommitResult, Loaded
from streamengine.history.rules import AnyRow
from streamengine.history.store import IoMode
from streamengine.model import (
    AbortReason,
    AssistantRow,
    Completion,
    ErrorEvent,
    Finish,
    FinishStep,
    MessagePart,
    ProviderPart,
    Row,
    RowMetadata,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    TextDelta,
    TextEnd,
    ToolCall,
    UnknownPart,
    Usage,
    UserRow,
)
from streamengine.model.note import LastEnd, WorkspaceNote

WORKSPACE: Final = "w1"
THROTTLE_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 0.25

T = TypeVar("T")
Given = ProviderPart | UnknownPart
Parts = AsyncIterator[Given]


def text(value: str) -> TextDelta:
    return TextDelta(text=value)


TEXT_END: Final = TextEnd()
FINISH: Final = Finish(finish_reason="stop")


# ---- providers


@dataclass(frozen=True)
class Call:
    """One call of the provider."""

    request: StreamRequest
    signal: AbortSignal


Answer = Callable[[Call], Parts]


@final
class Provider:
    """Gives the answers in turn; the last one for every further call."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []

    def stream(self, request: StreamRequest, signal: AbortSignal) -> Parts:
        call = Call(request, signal)
        self.calls.append(call)
        return self.answers[min(len(self.calls), len(self.answers)) - 1](call)


def says(*parts: Given) -> Answer:
    """An answer of these parts, without a wait."""

    async def play() -> AsyncGenerator[Given, None]:
        for part in parts:
            yield part

    return lambda _call: play()


WHOLE: Final = says(text("Hello "), text("there"), TEXT_END, FINISH)


@final
class Line:
    """An answer that the test dictates, part by part; it ends at the first interrupt."""

    def __init__(self) -> None:
        self._given: asyncio.Queue[Given | BaseException | None] = asyncio.Queue()
        self.is_closed = False

    def __call__(self, _call: Call) -> Parts:
        return self._play()

    def give(self, *parts: Given) -> None:
        for part in parts:
            self._given.put_nowait(part)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` after what was given so far."""
        self._given.put_nowait(error)

    def end(self) -> None:
        self._given.put_nowait(None)

    async def _play(self) -> AsyncGenerator[Given, None]:
        try:
            while True:
                item = await self._given.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.is_closed = True


@final
class Wedged:
    """An answer that says something, then swallows every interrupt until it is let go."""

    def __init__(self, *first: Given) -> None:
        self._first = first
        self.let_go = asyncio.Event()
        self.interrupts = 0

    def __call__(self, _call: Call) -> Parts:
        return self._play()

    async def _play(self) -> AsyncGenerator[Given, None]:
        for part in self._first:
            yield part
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.interrupts += 1
        yield text("too late")


# ---- tools


@final
class Hand:
    """A tool that does what the test says: ``run`` is called with its input and the signal."""

    def __init__(
        self, name: str, run: Callable[[dict[str, Any], AbortSignal], Awaitable[object]]
    ) -> None:
        self.spec = ToolSpec(name=name)
        self.uses: list[ToolUse] = []
        self._run = run

    def run(self, call: ToolUse, signal: AbortSignal) -> Awaitable[object]:
        self.uses.append(call)
        return self._run(dict(call.input), signal)


def echo(name: str = "echo") -> Hand:
    """A tool that gives its input back."""

    async def run(given: dict[str, Any], _signal: AbortSignal) -> object:
        return given

    return Hand(name, run)


def calls(*names: str, **inputs: Any) -> Answer:
    """A step that calls these tools, as ``<name>-1``; inputs by the name of the tool."""
    parts = [
        ToolCall(tool_call_id=f"{name}-1", tool_name=name, input=inputs.get(name, {}))
        for name in names
    ]
    return says(*parts, Finish(finish_reason="tool-calls", raw_finish_reason="tool_calls"))


def tokens(total: int, **fields: Any) -> FinishStep:
    """The end of a step that used so many tokens."""
    return FinishStep(usage=Usage(total_tokens=total), **fields)


# ---- what was told


@final
class Tape:
    """Every event, in order; ``on_event`` looks at the world at the moment of each."""

    def __init__(self, engine: StreamEngine) -> None:
        self.events: list[Event] = []
        self.on_event: Callable[[Event], object] = lambda _event: None
        engine.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, message_id: str) -> list[str]:
        return [event.type for event in self.events if event.message_id == message_id]

    @property
    def said(self) -> str:
        return "".join(e.delta for e in self.events if isinstance(e, StreamDeltaEvent))

    @property
    def terminals(self) -> list[StreamEndEvent | StreamAbortEvent | ErrorEvent]:
        return [
            e for e in self.events if isinstance(e, StreamEndEvent | StreamAbortEvent | ErrorEvent)
        ]


# ---- what is on disk


@final
class Disk:
    """The files as another process would see them, read without the history."""

    def __init__(self, state_directory: Path) -> None:
        self.path = state_directory

    def directory(self, workspace_id: str = WORKSPACE) -> Path:
        return self.path / "workspaces" / workspace_id

    def rows(self, workspace_id: str = WORKSPACE) -> list[dict[str, Any]]:
        chat = self.directory(workspace_id) / "chat.jsonl"
        if not chat.exists():
            return []
        return [json.loads(line) for line in chat.read_text().splitlines()]

    def roles(self, workspace_id: str = WORKSPACE) -> list[str]:
        return [row["role"] for row in self.rows(workspace_id)]

    def answers(self, workspace_id: str = WORKSPACE) -> list[str]:
        """The text of the assistant rows."""
        return [text_in(row) for row in self.rows(workspace_id) if row["role"] == "assistant"]

    def partial(self, workspace_id: str = WORKSPACE) -> dict[str, Any] | None:
        """The partial with all that its log adds to it."""
        path = self.directory(workspace_id) / "partial.json"
        if not path.exists():
            return None
        data = path.read_bytes()
        base = AssistantRow.model_validate(json.loads(data))
        log = path.with_name("partial-log.jsonl")
        added = partial_log.decode(
            log.read_bytes() if log.exists() else b"", partial_log.digest_of(data), base.parts
        )
        return partial_log.joined(base, added).to_mapping()

    def partial_text(self, workspace_id: str = WORKSPACE) -> str | None:
        partial = self.partial(workspace_id)
        return None if partial is None else text_in(partial)


def text_in(row: dict[str, Any]) -> str:
    return "".join(part["text"] for part in row["parts"] if part["type"] == "text")


# ---- a history with faults


FAULT: Final = HistoryError("io", "/state", "the disk says no", "Try again.")

Method = Literal[
    "load",
    "read",
    "append_user",
    "reserve",
    "release",
    "write_partial",
    "append_partial",
    "read_partial",
    "commit_partial",
    "conclude",
    "delete_partial",
    "finalize",
    "update",
    "truncate",
    "tail",
    "archive",
    "read_archive",
    "record_usage",
    "read_usage",
    "read_note",
    "update_note",
    "workspaces",
]


_CONCLUDED: Final[tuple[Method, ...]] = (
    "conclude",
    "write_partial",
    "append_partial",
    "commit_partial",
    "record_usage",
    "update_note",
    "release",
)
"""What a conclude does at one stroke: it fails and waits where any of it would."""


@final
class Hold:
    """A call that is made to wait: ``begun`` when it got there, ``go`` lets it on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()


@final
class FaultyHistory(HistoryStore):
    """A history whose calls are counted, and fail or wait where the test says so."""

    def __init__(self, inner: HistoryStore) -> None:
        self._inner = inner
        self.calls: list[Method] = []
        self._failing: dict[Method, BaseException] = {}
        self._holds: dict[Method, Hold] = {}

    def fail(self, method: Method, error: BaseException = FAULT) -> None:
        """Every call of it fails from now on, before it does anything."""
        self._failing[method] = error

    def mend(self) -> None:
        self._failing.clear()

    def hold(self, method: Method) -> Hold:
        """The next call of it waits before it does anything."""
        hold = self._holds[method] = Hold()
        return hold

    @fb.effect(raises=HistoryError)
    async def _do(self, method: Method, work: Effect[T, HistoryError]) -> T:
        self.calls.append(method)
        for part in _CONCLUDED if method == "conclude" else (method,):
            hold = self._holds.pop(part, None)
            if hold is not None:
                hold.begun.set()
                await hold.go.wait()
            if part in self._failing:
                raise self._failing[part]
        return await work

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        return self._do("load", self._inner.load(workspace_id))

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        return self._do("read", self._inner.read(workspace_id, from_boundary=from_boundary))

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._do("tail", self._inner.tail(workspace_id, limit))

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        return self._do("read_archive", self._inner.read_archive(workspace_id))

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return self._do("archive", self._inner.archive(workspace_id))

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        return self._do("append_user", self._inner.append_user(workspace_id, row))

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        return self._do("reserve", self._inner.reserve(workspace_id, message_id))

    def release(self, workspace_id: str, message_id: str) -> Effect[None, HistoryError]:
        return self._do("release", self._inner.release(workspace_id, message_id))

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        work = self._inner.write_partial(workspace_id, row, durable=durable)
        return self._do("write_partial", work)

    def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> Effect[None, HistoryError]:
        work = self._inner.append_partial(
            workspace_id, message_id, parts, metadata=metadata, durable=durable
        )
        return self._do("append_partial", work)

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        return self._do("read_partial", self._inner.read_partial(workspace_id))

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        return self._do("commit_partial", self._inner.commit_partial(workspace_id, message_id))

    def conclude(
        self, workspace_id: str, row: AssistantRow, end: LastEnd
    ) -> Effect[CommitResult, HistoryError]:
        return self._do("conclude", self._inner.conclude(workspace_id, row, end))

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        return self._do("delete_partial", self._inner.delete_partial(workspace_id, message_id))

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        return self._do("finalize", self._inner.finalize(workspace_id, row))

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        return self._do("update", self._inner.update(workspace_id, row))

    def truncate(self, workspace_id: str, after: int | None) -> Effect[int, HistoryError]:
        return self._do("truncate", self._inner.truncate(workspace_id, after))

    def record_usage(
        self,
        workspace_id: str,
        message_id: str,
        usage: Usage,
        *,
        model: str | None,
        source: UsageSource,
    ) -> Effect[bool, HistoryError]:
        work = self._inner.record_usage(workspace_id, message_id, usage, model=model, source=source)
        return self._do("record_usage", work)

    def read_usage(self, workspace_id: str) -> Effect[list[UsageEntry], HistoryError]:
        return self._do("read_usage", self._inner.read_usage(workspace_id))

    def read_note(self, workspace_id: str) -> Effect[WorkspaceNote, HistoryError]:
        return self._do("read_note", self._inner.read_note(workspace_id))

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        return self._do("update_note", self._inner.update_note(workspace_id, change))

    def workspaces(self) -> Effect[list[str], HistoryError]:
        return self._do("workspaces", self._inner.workspaces())


# ---- the desk


@dataclass
class Desk:
    """One engine with all that is around it."""

    rt: fb.Runtime
    clock: TestClock
    disk: Disk
    history: FaultyHistory
    provider: Provider
    engine: StreamEngine
    tape: Tape
    scope: Scope | None

    async def start(
        self, text: str = "Hi", workspace_id: str = WORKSPACE, **fields: Any
    ) -> StreamHandle:
        return await self.rt.run(self.starting(text, workspace_id, **fields))

    def starting(
        self,
        text: str = "Hi",
        workspace_id: str = WORKSPACE,
        *,
        signal: AbortSignal | None = None,
        options: StartOptions | None = None,
        **fields: Any,
    ) -> Effect[StreamHandle, Any]:
        request = StreamRequest(text=text, **fields)
        return self.engine.start_stream(workspace_id, request, signal=signal, options=options)

    async def stop(
        self, reason: AbortReason = "user", workspace_id: str = WORKSPACE, **options: Any
    ) -> None:
        await self.rt.run(self.stopping(reason, workspace_id, **options))

    def stopping(
        self, reason: AbortReason = "user", workspace_id: str = WORKSPACE, **options: Any
    ) -> Effect[None]:
        return self.engine.stop_stream(workspace_id, reason=reason, **options)

    async def idle(self) -> None:
        """Let everything run that can run without time passing."""
        await self.pass_time(0)

    async def pass_time(self, seconds: float) -> None:
        await self.rt.run(self.clock.adjust(seconds))

    async def done(self, handle: StreamHandle) -> Completion:
        """The completion, which must be settled by what can run now."""
        await self.idle()
        fiber = self.rt.run_fork(handle.completion)
        exit_ = fiber.poll()
        assert exit_ is not None, "the completion is not settled"
        return exit_.unwrap()

    async def is_settled(self, handle: StreamHandle) -> bool:
        await self.idle()
        fiber = self.rt.run_fork(handle.completion)
        settled = fiber.poll() is not None
        await self.rt.run(fiber.interrupt())
        return settled

    async def whole(self, text: str = "Hi", **fields: Any) -> Completion:
        """Start, and give the completion, which must be settled by what can run now."""
        return await self.done(await self.start(text, **fields))

    def parts(self, workspace_id: str = WORKSPACE) -> list[dict[str, Any]]:
        """The parts of the last row on disk."""
        parts: list[dict[str, Any]] = self.disk.rows(workspace_id)[-1]["parts"]
        return parts

    async def usages(self) -> list[tuple[str, int | None, str]]:
        """What the sidecar has: message id, total tokens, source."""
        entries = await self.rt.run(self.history.read_usage(WORKSPACE))
        return [(e.message_id, e.usage.total_tokens, e.source) for e in entries]

    @property
    def abandoned(self) -> list[str]:
        """What the dump names of that which did not end in time."""
        return cast("list[str]", self.engine.describe()["abandoned"])

    @property
    def is_idle(self) -> bool:
        """Nothing registered, nothing starting."""
        about = self.engine.describe()
        return not about["streams"] and not about["starting"]


def make_desk(
    rt: fb.Runtime,
    clock: TestClock,
    state_directory: Path,
    *answers: Answer,
    scope: Scope | None = None,
    io: IoMode = "inline",
    tools: Sequence[Tool] = (),
    options: EngineOptions | None = None,
    inner: HistoryStore | None = None,
) -> Desk:
    """An engine with these answers, on the files of this directory, or on what ``inner`` keeps."""
    if inner is None:
        inner = FileHistory(state_directory, io=io, fsync="off")
    history = FaultyHistory(inner)
    provider = Provider(*answers)
    engine = StreamEngine(
        history=history, provider=provider, scope=scope, tools=tools, options=options
    )
    return Desk(rt, clock, Disk(state_directory), history, provider, engine, Tape(engine), scope)


@contextmanager
def unhandled_failures() -> Generator[list[fb.Cause[Any]], None, None]:
    """Collect the causes that reach the hook for failures nobody handled."""
    seen: list[fb.Cause[Any]] = []
    fb.set_unhandled_failure_hook(lambda _, cause: seen.append(cause))
    try:
        yield seen
    finally:
        fb.set_unhandled_failure_hook(None)

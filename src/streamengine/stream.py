"""One stream: its state, its ending latch, what it has said so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, final

from fibers import AbortController, Clock, Effect, Scope

from .model.events import StreamLifecycleEvent, StreamPhase
from .model.fold import fold_parts
from .model.parts import MessagePart
from .model.request import AbortReason, Completion, StreamRequest
from .model.rows import AssistantRow, RowMetadata
from .model.snapshot import LiveSnapshot
from .usage import UsageMeter

if TYPE_CHECKING:
    from fibers import Fiber

    from .model.events import UsageDeltaEvent
    from .options import Steps
    from .partials import PartialWriter
    from .transcript import Transcript


class StreamState(Enum):
    """Where a registered stream stands. COMPLETED only just before its stream-end."""

    STARTING = "starting"
    STREAMING = "streaming"
    STOPPING = "stopping"
    COMPLETED = "completed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StopWish:
    """Who wants a stream to stop, and what shall become of what it said."""

    reason: AbortReason
    abandon_partial: bool = False


@final
class Completing:
    """The one-shot completion of a stream: settled once, after its terminal event (E2)."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

    @property
    def settled(self) -> bool:
        return self._future.done()

    def settle(self, completion: Completion) -> None:
        """Only the first call counts."""
        if not self._future.done():
            self._future.set_result(completion)

    def wait(self) -> Effect[Completion]:
        """Wait for it; an interrupted waiter leaves it as it is (VF1)."""
        return Effect.promise(lambda: self._future)


class About(TypedDict):
    """What every event of a stream says."""

    workspace_id: str
    message_id: str
    correlation: Mapping[str, Any] | None
    prompt_id: str | None


@final
class Stream:
    """What the engine knows of one registered stream. ``stop`` is the ending latch."""

    def __init__(
        self,
        workspace_id: str,
        message_id: str,
        request: StreamRequest,
        history_sequence: int,
        completing: Completing,
        controller: AbortController,
        clock: Clock,
        scope: Scope,
    ) -> None:
        self.workspace_id = workspace_id
        self.message_id = message_id
        self.request = request
        self.history_sequence = history_sequence
        self.question_sequence: int | None = None
        self.completing = completing
        # The only cancellation transport: the provider gets its signal, and nothing else.
        self.controller = controller
        # The clock of whoever started it: one that stops it may have another, or none in context.
        self.clock = clock
        self.state = StreamState.STARTING
        # Owns everything that the stream holds. Closed in this order: what works (all at once),
        # what the work had leased, what was made before both.
        self.scope = scope
        self.leases: Scope = scope.fork_scope("parallel")
        self.work: Scope = scope.fork_scope("parallel")
        self.about: About = About(
            workspace_id=workspace_id,
            message_id=message_id,
            correlation=request.correlation,
            prompt_id=request.prompt_id,
        )
        self.temp_directory: Path | None = None
        self.steps: Steps | None = None
        # What it was begun with and now has to do without (a process that died had them).
        self.missing_tools: tuple[str, ...] = ()
        # Of the provider call that runs: another one may take over where it refuses.
        self.model: str | None = request.model
        # Append only, one part a delta: what was recorded never changes. fold_parts() reads it.
        self.parts: list[MessagePart] = []
        self.usage: UsageMeter = UsageMeter()
        self.last_usage: UsageDeltaEvent | None = None
        # Its stream-start goes out, or has.
        self.told_start = False
        self.soft_stop: StopWish | None = None
        # Set once, by the first canceller: its reason counts (E5), all others wait.
        self.stop: StopWish | None = None
        self.processing: Fiber[None, Any] | None = None
        self.terminal: Completion | None = None
        # Its terminal event goes out, or has: who comes now comes too late.
        self.told = False
        self.writer: PartialWriter | None = None
        self.transcript: Transcript | None = None
        self._at_work: dict[Fiber[Any, Any], str] = {}
        self.start_time_ms: int = time.time_ns() // 1_000_000
        self._started = time.perf_counter()
        self._last_timestamp_ms = 0
        self._at_the_end: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        return self.controller.signal.aborted

    @property
    def is_streaming(self) -> bool:
        return self.state in (StreamState.STARTING, StreamState.STREAMING)

    def put_to_work(self, fiber: Fiber[Any, Any], what: str) -> None:
        """``fiber`` works for the stream until its end, as ``what``: the name by which it is told
        where that comes too late. Its failure is told by the pump.
        """
        fiber.set_name(f"{what} of {self.workspace_id}/{self.message_id}")
        fiber.ignore_failure()
        self._at_work[fiber] = what

        def ended(_exit: object) -> None:
            del self._at_work[fiber]

        fiber.add_observer(ended)

    @property
    def at_work(self) -> tuple[str, ...]:
        """Names of what works for the stream now."""
        return tuple(dict.fromkeys(self._at_work.values()))

    def on_settled(self, f: Callable[[], None]) -> None:
        """Call ``f`` when the completion is settled."""
        if self.completing.settled:
            f()
        else:
            self._at_the_end.append(f)

    def settle(self, completion: Completion) -> None:
        """The end of all: after the terminal event, once."""
        self.completing.settle(completion)
        for f in self._at_the_end:
            f()
        self._at_the_end.clear()

    def next_timestamp_ms(self) -> int:
        """Milliseconds since the Unix epoch, strictly increasing inside one stream (E19)."""
        now_ms = time.time_ns() // 1_000_000
        self._last_timestamp_ms = max(now_ms, self._last_timestamp_ms + 1)
        return self._last_timestamp_ms

    def snapshot(self) -> LiveSnapshot | None:
        """What a reader who comes late has missed; None before the stream-start is told and from
        the terminal event on: what matters is still to come, or nothing more would.
        """
        if not self.told_start or self.told:
            return None
        return LiveSnapshot(
            workspace_id=self.workspace_id,
            message_id=self.message_id,
            request=self.request,
            history_sequence=self.history_sequence,
            start_time_ms=self.start_time_ms,
            parts=tuple(self.parts),
            usage=self.last_usage,
        )

    def duration_ms(self) -> int:
        return round((time.perf_counter() - self._started) * 1000)

    def metadata(self, **metadata: Any) -> RowMetadata:
        """What is known of the answer besides what it says."""
        return RowMetadata(
            history_sequence=self.history_sequence,
            timestamp_ms=self.start_time_ms,
            model=self.model,
            correlation=self.request.correlation,
            missing_tools=self.missing_tools or None,
            **metadata,
        )

    def row(self, **metadata: Any) -> AssistantRow:
        """The assistant row of what was said so far, with further metadata."""
        return AssistantRow(
            id=self.message_id,
            workspace_id=self.workspace_id,
            parts=fold_parts(self.parts),
            metadata=self.metadata(**metadata),
        )

    def lifecycle(self, phase: StreamPhase) -> StreamLifecycleEvent:
        """The event that tells where the stream stands now."""
        return StreamLifecycleEvent(**self.about, phase=phase, had_any_output=bool(self.parts))

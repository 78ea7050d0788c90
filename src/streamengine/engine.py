"""StreamEngine: starts, stops and supervises the streams of all workspaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, final

import structlog

import fibers as fb
from fibers import AbortSignal, Clock, Effect, Scope
from fibers.app import Occupant

from .abandoned import STORE_GRACE_SECONDS, Abandoned, Grace
from .answers import StreamHandle
from .cancel import Canceller
from .construction import Start, release
from .events.spine import EventSpine
from .feeding import Parts
from .history.store import HistoryStore
from .model.errors import HistoryError, SendError
from .model.parts import TextPart
from .model.request import AbortReason, StreamRequest
from .model.snapshot import LiveSnapshot
from .options import EngineOptions, StartOptions
from .phases import phases_told_on
from .providers.base import Provider
from .pump import Pump
from .recovered import log_not_recovered, log_recovered
from .starting import Starting
from .stream import StopWish, Stream
from .supervise import SYSTEM, Supervision
from .tokens import kept
from .tools import Tool, Toolbox

_log = structlog.get_logger("streamengine.engine")


__all__ = ["StreamEngine", "StreamHandle"]


@final
class StreamEngine(Occupant):
    """At most one live stream a workspace; each ends with exactly one terminal event.

        engine = StreamEngine(history=history, provider=provider, scope=app_scope)
        handle = await engine.start_stream("w1", StreamRequest(text="Hello"))
        completion = await handle.completion

    ``scope``: the app scope that supervises the streams; None leaves them unsupervised. ``clock``:
    what throttles and bounds wait on; None takes the clock in context. ``tools``: what the model
    may call, and the engine runs; ValueError for two of one name.
    """

    name = "streamengine"

    def __init__(
        self,
        *,
        history: HistoryStore,
        provider: Provider,
        scope: Scope | None = None,
        clock: Clock | None = None,
        tools: Iterable[Tool] = (),
        options: EngineOptions | None = None,
    ) -> None:
        self.events: EventSpine = EventSpine()
        self._history = history
        self._provider = provider
        self._clock = clock
        options = options or EngineOptions()
        self._options = replace(options, load_tokenizer=kept(options.load_tokenizer))
        self._streams: dict[str, Stream] = {}
        # Owns what works on the streams. Never closed: their own signal stops them, and their
        # supervisors in the app scope see to that.
        self._work = Scope("parallel", name="streams")
        self._abandoned = Abandoned()
        self._tell_phase = phases_told_on(self.events, wanted=options.lifecycle_events)
        self._canceller = Canceller(
            history, self.events, self._tell_phase, self._abandoned, self._forget
        )
        self._supervision = Supervision(scope, self._canceller, self._abandoned)
        self._starting = Starting(
            history=history,
            provider=provider,
            toolbox=Toolbox(tools, max_output_bytes=options.max_tool_output_bytes),
            options=options,
            canceller=self._canceller,
            supervision=self._supervision,
            live=self._streams.get,
            register=self._register,
        )

    # ---- an occupant of the app scope

    def start(self, scope: Scope) -> Effect[None]:
        """Supervise in ``scope`` from now on."""
        return Effect.sync(lambda: self._supervision.adopt(scope))

    def describe(self) -> Mapping[str, object]:
        """What is in flight, for a dump."""
        return {
            "streams": [f"{s.workspace_id}/{s.message_id}" for s in self._streams.values()],
            "starting": self._starting.workspaces,
            "abandoned": list(self._abandoned.names.values()),
        }

    # ---- asking

    @property
    def history(self) -> HistoryStore:
        """Where the conversations are kept: for those who look at how an answer ended."""
        return self._history

    def is_streaming(self, workspace_id: str) -> bool:
        """True from the registration of a stream until it is complete, fails, or is stopping."""
        stream = self._streams.get(workspace_id)
        return stream is not None and stream.is_streaming

    def is_starting(self, workspace_id: str) -> bool:
        """True while a start has begun that has not registered its stream yet."""
        return bool(self._starting.in_progress(workspace_id, None))

    def live_text(self, workspace_id: str) -> tuple[str, list[TextPart]] | None:
        """Message id and parts of the live stream so far, for a reader who comes late. None from
        its terminal event on: nothing more would come.
        """
        stream = self._streams.get(workspace_id)
        if stream is None or stream.told:
            return None
        return stream.message_id, [part for part in stream.parts if isinstance(part, TextPart)]

    def snapshot(self, workspace_id: str) -> LiveSnapshot | None:
        """The live stream as of now, for a reader who comes late. None where none is running: also
        before its stream-start was told, and from its terminal event on.
        """
        stream = self._streams.get(workspace_id)
        return None if stream is None else stream.snapshot()

    # ---- starting

    def start_stream(
        self,
        workspace_id: str,
        request: StreamRequest,
        *,
        signal: AbortSignal | None = None,
        options: StartOptions | None = None,
    ) -> Effect[StreamHandle, SendError]:
        """Answer ``request``. The user row is on disk before the handle is given (BT1).

        A live stream of the workspace is stopped first, as "system". A ``client_message_id`` seen
        before gives the first answer's handle. Fails with SendError where nothing began: no text, a
        bad id, a history that can't be written, a provider that raised, what ``options`` add.
        """
        options = options or StartOptions()
        return self._in_clock(self._starting.start(workspace_id, request, signal, options))

    def resume_stream(
        self,
        workspace_id: str,
        request: StreamRequest | None = None,
        *,
        signal: AbortSignal | None = None,
        options: StartOptions | None = None,
    ) -> Effect[StreamHandle, SendError]:
        """Answer the last message of the history again; no row is added for it (P20).

        ``request`` None: as it was asked for. Its text is the row's in any case. ``options`` None:
        what the engine's ``for_resumed`` says. A tool that the message was sent with and that is
        not there now is named in a warning and as ``missing_tools`` of the answer's row.

        Fails with SendError as start_stream, and with "nothing_to_resume" where the last message
        has a whole answer, or is being answered.
        """
        return self._in_clock(self._starting.resume(workspace_id, request, signal, options))

    def _in_clock(self, eff: Effect[Any, Any]) -> Effect[Any, Any]:
        return eff if self._clock is None else eff.provide_service(fb.ClockTag, self._clock)

    def _register(
        self, stream: Stream, request: StreamRequest, parts: Parts, toolbox: Toolbox
    ) -> Callable[[], None]:
        """Enter ``stream`` and supervise it. Gives what launches it."""
        self._streams[stream.workspace_id] = stream
        pump = Pump(
            stream,
            request,
            parts,
            provider=self._provider,
            history=self._history,
            events=self.events,
            tell_phase=self._tell_phase,
            options=self._options,
            toolbox=toolbox,
            soft_stop=self._soft_stop,
            abandoned=self._abandoned,
        )
        self._tell_phase(stream, "preparing")
        self._supervision.supervise(stream)

        def launch() -> None:
            work = pump.run().on_exit(lambda _exit: self._finish(stream, pump))
            processing = self._work.fork(work)
            processing.set_name(f"pump of {stream.workspace_id}/{stream.message_id}")
            stream.processing = processing
            processing.add_observer(lambda _exit: self._pump_is_over(stream))

        return launch

    def _pump_is_over(self, stream: Stream) -> None:
        """Nobody here interrupts a pump, but the end of the loop does, perhaps before it began or
        in the middle of its finish: whatever it left undone is a stop, or to be settled.
        """
        self._canceller.begin(stream, SYSTEM)
        if stream.stop is None and stream.terminal is not None:
            self._forget(stream)
            stream.settle(stream.terminal)

    @fb.effect
    async def _finish(self, stream: Stream, pump: Pump) -> None:
        pump.close()
        terminal = stream.terminal
        if terminal is None:
            # Stopped, or interrupted by the end of the loop: that is a stop too.
            self._canceller.begin(stream, SYSTEM)
        elif terminal.status == "failed":
            # The provider may not be at its end; some listen to their signal only.
            stream.controller.abort("the stream failed")
        await self._supervision.end_resources(
            stream.scope, stream.workspace_id, stream.message_id, at_work=lambda: stream.at_work
        )
        if terminal is not None and terminal.status != "aborted":
            release_it = release(self._history, stream.workspace_id, stream.message_id)
            await Grace(self._abandoned, stream).wait("end of the reservation", release_it)
            # An aborted stream stays registered until its abort was told (cancel.py).
            self._forget(stream)
            stream.settle(terminal)

    def _forget(self, stream: Stream) -> None:
        # Never a replacement's entry (E15).
        if self._streams.get(stream.workspace_id) is stream:
            del self._streams[stream.workspace_id]

    # ---- stopping

    def stop_stream(
        self,
        workspace_id: str,
        *,
        reason: AbortReason,
        message_id: str | None = None,
        soft: bool = False,
        abandon_partial: bool = False,
    ) -> Effect[None]:
        """Stop what runs or starts in the workspace, and wait for its end.

        ``message_id`` restricts it to that message: a stop never touches another stream (BT7).
        ``soft`` waits for nothing: the stream stops at its next block boundary. ``abandon_partial``
        drops what was said. Of an idle workspace it changes nothing (E24).
        """
        wish = StopWish(reason, abandon_partial)
        return self._in_clock(self._stop_stream(workspace_id, wish, message_id, soft))

    def writes_done(self, workspace_id: str) -> Effect[None]:
        """Wait until no stop of this workspace has anything left to write: one that its store held
        up goes on without it. Before rows are taken out, which it would bring back.
        """
        return self._abandoned.wait_for_writes(workspace_id)

    @fb.effect
    async def _stop_stream(
        self, workspace_id: str, wish: StopWish, message_id: str | None, soft: bool
    ) -> None:
        # All at once, before any wait: what is started after this call is not its business, and a
        # start that is under way must not stop the live stream first, for another reason.
        stream = self._streams.get(workspace_id)
        if stream is not None and message_id not in (None, stream.message_id):
            stream = None
        starts = self._starting.in_progress(workspace_id, message_id)
        if stream is not None and not soft:
            self._canceller.begin(stream, wish)
        elif stream is not None and stream.soft_stop is None:
            stream.soft_stop = wish
        for start in starts:
            self._starting.stop(start, wish)
        if soft:
            return
        for start in starts:
            await self._end_of(start, workspace_id)
        if stream is not None:
            await stream.completing.wait()

    async def _end_of(self, start: Start, workspace_id: str) -> None:
        """A start that is stopped ends at its next step; but the store may hang in this one."""
        await fb.race_first(start.wait(), start.clock.sleep(STORE_GRACE_SECONDS))
        if not start.over.done():
            _log.warning(
                "a start that is stopped hangs: the stop goes on without it",
                workspaceId=workspace_id,
                graceMs=round(STORE_GRACE_SECONDS * 1000),
            )

    def _soft_stop(self, stream: Stream) -> None:
        """At a block boundary, from the pump: not waited for, as it waits for the pump."""
        assert stream.soft_stop is not None
        self._canceller.begin(stream, stream.soft_stop)

    # ---- after a crash

    def recover(self) -> Effect[None, HistoryError]:
        """Put every workspace in order: what a crash left is committed. Before the first start."""
        return self._recover()

    @fb.effect(raises=HistoryError)
    async def _recover(self) -> None:
        for workspace_id in await self._history.workspaces():
            try:
                loaded = await self._history.load(workspace_id)
            except HistoryError as error:
                # The others shall be in order all the same.
                log_not_recovered(workspace_id, error, then="its next start tries again")
            else:
                log_recovered(loaded.report)

"""Spans through OpenTelemetry's API, where the application has it (LY6).

The API is looked for at the first ``with_span``, never before; without it ``with_span`` gives the
effect itself, so there is nothing left to pay for. The current span is OpenTelemetry's own, in the
fiber's context variables: other instrumentation sees it, and forks inherit it (PD10).
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fibers.cause import Cause, Die, Fail, Interrupt, text_of_error
from fibers.loop.protocol import FAIL, NEXT, Frame, Node

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from fibers.loop.run_loop import FiberCore

_log = logging.getLogger("fibers")

Attribute: TypeAlias = str | bool | int | float | Sequence[str | bool | int | float]
Attributes: TypeAlias = Mapping[str, Attribute]

TRACER_NAME = "fibers"


class _Api:
    """OpenTelemetry's modules, and the tracer of the provider that is set now."""

    def __init__(self) -> None:
        from opentelemetry import context, trace

        self.context = context
        self.trace = trace
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None

    def tracer(self) -> Tracer:
        """The tracer of the provider that is set now, made once for each provider."""
        provider = self.trace.get_tracer_provider()
        if self._tracer is None or provider is not self._provider:
            self._provider = provider
            self._tracer = self.trace.get_tracer(TRACER_NAME, tracer_provider=provider)
        return self._tracer


_api: _Api | None = None
_looked = False


def api() -> _Api | None:
    """OpenTelemetry, imported at the first call; None where it is not installed."""
    global _api, _looked
    if not _looked:
        _looked = True
        if importlib.util.find_spec("opentelemetry") is not None:
            try:
                _api = _Api()
            except ImportError:
                _log.warning("opentelemetry is installed without its API: no spans", exc_info=True)
    return _api


class SpanOp(Node):
    """``first`` inside a span of its own at each run, a child of the one that is current then."""

    __slots__ = ("api", "attributes", "first", "name")

    def __init__(self, first: Node, api: _Api, name: str, attributes: Attributes | None) -> None:
        self.first: Node = first
        self.api: _Api = api
        self.name: str = name
        self.attributes: Attributes | None = attributes

    def _ev(self, fiber: FiberCore) -> Any:
        api = self.api
        fiber._next = self.first
        try:
            span = api.tracer().start_span(self.name, attributes=self.attributes)
            token = api.context.attach(api.trace.set_span_in_context(span))
        except Exception:  # noqa: BLE001  # told in the log, as at the end
            # Whatever a processor or a sampler does, the work is done.
            _log.exception("the span %r could not be started", self.name)
            return NEXT
        fiber._stack.append(_SpanEnd(api, span, token))
        return NEXT

    def _label(self) -> str:
        return f"span {self.name}"


class _SpanEnd(Frame):
    """Ends the span with the outcome, on every way out. A frame: it can't be interrupted."""

    __slots__ = ("api", "span", "token")

    def __init__(self, api: _Api, span: Span, token: Token[Context]) -> None:
        self.api = api
        self.span = span
        self.token = token

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self._end(None)
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        self._end(cause)
        fiber._cause = cause
        return FAIL

    def _end(self, cause: Cause[Any] | None) -> None:
        self.api.context.detach(self.token)
        try:
            try:
                self._tell(cause)
            finally:
                # Also where an error can't say what it is (its __str__ raises).
                self.span.end()
        except Exception:  # noqa: BLE001  # told in the log, see below
            # Whatever an exporter does, it never decides how the work ended.
            _log.exception("a span could not be ended")

    def _tell(self, cause: Cause[Any] | None) -> None:
        span = self.span
        code = self.api.trace.StatusCode
        if not span.is_recording():
            return
        if cause is None:
            span.set_status(code.OK)
            return
        interrupts = [r for r in cause.reasons if isinstance(r, Interrupt)]
        if interrupts:
            span.set_attribute("fiber.interrupted", True)
            reasons = [r.reason for r in interrupts if r.reason is not None]
            if reasons:
                span.set_attribute("fiber.interrupt.reasons", reasons)
        errors = [r.error for r in cause.reasons if isinstance(r, Fail)]
        defects = [r.defect for r in cause.reasons if isinstance(r, Die)]
        for error in (*errors, *defects):
            span.record_exception(error)
        # Interrupts alone are no error: somebody asked for that end, and the status stays unset.
        if errors or defects:
            first = (*errors, *defects)[0]
            span.set_status(code.ERROR, f"{type(first).__name__}: {text_of_error(first)}")

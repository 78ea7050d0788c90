"""What a runner may offer beyond running: each a protocol of its own, asked for when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from fibers import Effect

from ..model.errors import TurnError

T = TypeVar("T")


@runtime_checkable
class Steers(Protocol):
    """Takes input for a turn that runs."""

    def steer(self, turn_id: str, text: str) -> Effect[None, TurnError]:
        """Let the turn hear ``text`` at its next step."""
        ...


@runtime_checkable
class AnswersPermissions(Protocol):
    """Has questions that wait for a person."""

    def answer_permission(
        self, turn_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        """False where this is not the request that waits now: nothing is changed then."""
        ...


@runtime_checkable
class AnswersResumed(Protocol):
    """Has such questions also of turns that go on after a restart, and that it doesn't run."""

    def answer_resumed(
        self, turn_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        """As ``answer_permission``, of such a turn."""
        ...


@runtime_checkable
class SpawnsSubturns(Protocol):
    """Starts turns below a turn."""

    def spawn_subturn(self, turn_id: str, config: Mapping[str, Any]) -> Effect[object, TurnError]:
        """Run a subturn and give its result."""
        ...


@runtime_checkable
class BeginsSubturns(Protocol):
    """Starts turns below a turn for somebody who doesn't wait for them."""

    def begin_subturn(self, turn_id: str, config: Mapping[str, Any]) -> Effect[str, TurnError]:
        """Start a subturn and give its id."""
        ...


@runtime_checkable
class Finishes(Protocol):
    """Ends a turn before it would end."""

    def finish(self, turn_id: str, *, hard: bool) -> Effect[None, TurnError]:
        """Soft: one last answer, then it completes. Hard: what it said is taken back."""
        ...


@runtime_checkable
class KeepsUnheard(Protocol):
    """Keeps what was said to a turn after its last word."""

    def take_unheard(self, workspace_id: str) -> str | None:
        """What a turn of its own is to be asked, where nothing runs. A plain call."""
        ...

    def put_back_unheard(self, workspace_id: str, text: str) -> None:
        """That turn could not be created: the next one there hears it first."""
        ...


def offered(runner: object, protocol: type[T], what: str) -> T:
    """``runner`` as one that offers this. Raises TurnError where it doesn't."""
    if not isinstance(runner, protocol):
        raise TurnError("not_supported", f"this runner of turns {what}", "Use the agent loop.")
    return runner

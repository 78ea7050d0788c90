"""AgentClient: one agent process, as its hub sees it."""

from __future__ import annotations

from typing import Protocol

from fibers import Effect

from ..model.errors import TurnError
from .messages import AgentEvent, HostMessage


class AgentClient(Protocol):
    """One life of an agent: started once, ended once."""

    def start(self) -> Effect[None, TurnError]:
        """Over when it can be told something."""
        ...

    def send(self, message: HostMessage) -> Effect[None, TurnError]:
        """Fails where nobody listens any more."""
        ...

    def next(self) -> Effect[AgentEvent | None]:
        """What it says next; None when it is dead. What can't be understood is left out."""
        ...

    def dispose(self) -> Effect[None]:
        """End it: interrupt it, close its input, give it a moment, kill what is left. It is dead
        when this returns. Can be repeated.
        """
        ...

"""Agents: who answers, with which model, instructions and tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from streamengine import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent. A value: a subturn gets a copy with its own changes."""

    name: str
    model: str | None = None
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    context_window_tokens: int | None = None
    """What the model can read at a time; None: not known."""


@final
class Agents:
    """The agents of an application by name. The first one is the default.

    ValueError for two of one name.
    """

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            if agent.name in self._agents:
                raise ValueError(f"two agents are called {agent.name!r}; rename one of them")
            self._agents[agent.name] = agent

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    @property
    def default(self) -> Agent | None:
        return next(iter(self._agents.values()), None)

    def get(self, name: str) -> Agent | None:
        return self._agents.get(name)

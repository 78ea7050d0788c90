"""Layers that write what happens to them into a log, shared by the probes of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import fibers as fb
from fibers import Effect, Layer, Tag
from tests.probes.kit_e import chain, say

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(eq=False)
class Service:
    """What a layer gives; each build makes another one."""

    name: str


A = Tag[Service]("A")
B = Tag[Service]("B")
C = Tag[Service]("C")
TAGS = {"A": A, "B": B, "C": C}


def acquired(
    log: list[str], name: str, *, build: float = 0.0, release: float = 0.0
) -> Effect[Service, Never]:
    """A resource: `build` seconds, then `+<name>`; at the release `release` seconds, `-<name>`.

    Building takes its time interruptibly: only what was written as `+` has to be given back.
    """
    acquire = say(log, f"+{name}").map(lambda _: Service(name))

    def give_back(_service: Service, _exit: fb.Exit[Any, Any]) -> Effect[None, Never]:
        return chain(fb.sleep(release), say(log, f"-{name}"))

    return fb.sleep(build).flat_map(lambda _: fb.acquire_release(acquire, give_back))


def part(
    log: list[str],
    name: str,
    *,
    build: float = 0.0,
    release: float = 0.0,
    needs: Iterable[Tag[Any]] = (),
) -> Layer[Service, Never]:
    """The layer of the tag of that name; it awaits what it needs before it builds."""
    own = acquired(log, name, build=build, release=release)
    for tag in needs:
        own = _after(tag, own)
    return Layer.scoped(TAGS[name], own, needs=needs)


def _after(tag: Tag[Any], then: Effect[Service, Never]) -> Effect[Service, Never]:
    return tag.flat_map(lambda _: then)


def failing(log: list[str], name: str, error: Exception, *, after: float) -> Layer[Any, Any]:
    """A layer that acquires something and then fails."""
    own = acquired(log, name)
    lose: Effect[Service, Exception] = Effect.fail(error)
    return Layer.scoped(
        TAGS[name], own.flat_map(lambda _: fb.sleep(after)).flat_map(lambda _: lose)
    )


def use(log: list[str], *tags: Tag[Any], seconds: float = 0.0) -> Effect[list[Any], Never]:
    """Write `use`, await the tags, take `seconds`; gives the services."""
    return say(log, "use").flat_map(lambda _: fb.all_(tags)).tap(lambda _: fb.sleep(seconds))

"""Layer: how the services of a program are built, wired and released (LY1-LY3).

A layer is a value that describes this. ``fibers.memo`` does the building, ``fibers.services``
keeps one built for a runtime.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, overload

from typing_extensions import TypeVar

from fibers import missing
from fibers.concurrent import _itself, for_each
from fibers.effect import Effect, Tag, _Access, _Provide, _same
from fibers.memo import Build, BuildService, InContext, MemoMap
from fibers.missing import LAYERS_KEY
from fibers.ops.basic import FlatMapOp, MapOp, TapOp
from fibers.ops.group import SequenceOp, WorkersOp
from fibers.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Container

    from fibers.loop.protocol import Node
    from fibers.ops.fork import Site

S_co = TypeVar("S_co", covariant=True, default=Any)
E_co = TypeVar("E_co", bound=Exception, covariant=True, default=Never)
A = TypeVar("A")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception)
S1 = TypeVar("S1")
S2 = TypeVar("S2")
S3 = TypeVar("S3")
S4 = TypeVar("S4")
E1 = TypeVar("E1", bound=Exception)
E2 = TypeVar("E2", bound=Exception)
E3 = TypeVar("E3", bound=Exception)
E4 = TypeVar("E4", bound=Exception)

Services = Mapping[str, Any]
# By name of the tag: the layers that await it.
Needs = Mapping[str, "tuple[OneService, ...]"]

_made = itertools.count()


class Layer(Generic[S_co, E_co]):
    """A recipe for services: ``Layer[Database | Cache, ConnectError]`` gives two and may fail.

        DbTag = Tag[Database]("db")
        db = Layer.scoped(DbTag, acquire_release(connect(), lambda d, _: close(d)))
        repo = Layer.effect(RepoTag, DbTag.map(Repo)).provide(db)

        fb.run(main(), layer=repo)

    In one graph a layer is built once, however often it occurs, told by identity: keep layers in
    variables. That holds with different dependencies too; ``fresh`` gives one of its own.
    """

    __slots__ = ("__weakref__", "_gives", "_needs")

    def __init__(self, gives: frozenset[str], needs: Needs) -> None:
        # Told once, when it is made: a layer never changes, and a graph may be deep.
        self._gives = gives
        self._needs = needs

    # ------------------------------------------------------------------ make

    @staticmethod
    def succeed(tag: Tag[T], impl: T) -> Layer[T, Never]:
        """Give ``impl`` for ``tag``: nothing to build, nothing to release."""
        _check_tag(tag, "Layer.succeed")
        return _Made(tag, Effect.succeed(impl), (), sys._getframe(1))

    @staticmethod
    def effect(tag: Tag[T], eff: Effect[T, F], *, needs: Iterable[Tag[Any]] = ()) -> Layer[T, F]:
        """Build the service with ``eff``, in the layer's own scope: what it acquires is released
        with the layer. It runs in a fiber of its own: a worker that shall live as long as the layer
        is forked with ``fork_scoped``, since a child ends with the build.

        ``needs`` names the tags that it awaits. They are checked before anything is built; tags
        that are missing there are found when the build asks for them. Where ``eff`` begins with a
        tag (``DbTag.map(Repo)``, ``DbTag.zip(CacheTag)``) that one is known without.
        """
        return _one_service("Layer.effect", tag, eff, needs)

    @staticmethod
    def scoped(tag: Tag[T], eff: Effect[T, F], *, needs: Iterable[Tag[Any]] = ()) -> Layer[T, F]:
        """The same as ``effect``, under the name that says that ``eff`` acquires something."""
        return _one_service("Layer.scoped", tag, eff, needs)

    # The first three: of two error types that are both Never pyright makes a type it does not know.
    @overload
    @staticmethod
    def merge_all(l1: Layer[S1, Never], l2: Layer[S2, Never], /) -> Layer[S1 | S2, Never]: ...
    @overload
    @staticmethod
    def merge_all(
        l1: Layer[S1, Never], l2: Layer[S2, Never], l3: Layer[S3, Never], /
    ) -> Layer[S1 | S2 | S3, Never]: ...
    @overload
    @staticmethod
    def merge_all(
        l1: Layer[S1, Never], l2: Layer[S2, Never], l3: Layer[S3, Never], l4: Layer[S4, Never], /
    ) -> Layer[S1 | S2 | S3 | S4, Never]: ...
    @overload
    @staticmethod
    def merge_all(l1: Layer[S1, E1], l2: Layer[S2, E2], /) -> Layer[S1 | S2, E1 | E2]: ...
    @overload
    @staticmethod
    def merge_all(
        l1: Layer[S1, E1], l2: Layer[S2, E2], l3: Layer[S3, E3], /
    ) -> Layer[S1 | S2 | S3, E1 | E2 | E3]: ...
    @overload
    @staticmethod
    def merge_all(
        l1: Layer[S1, E1], l2: Layer[S2, E2], l3: Layer[S3, E3], l4: Layer[S4, E4], /
    ) -> Layer[S1 | S2 | S3 | S4, E1 | E2 | E3 | E4]: ...
    @overload
    @staticmethod
    def merge_all(*layers: Layer[T, E]) -> Layer[T, E]: ...
    @staticmethod
    def merge_all(*layers: Layer[Any, Any]) -> Layer[Any, Any]:
        """All of them, built at once and released at once; none sees the services of another. The
        first failure interrupts and releases the others. Of two for one tag the last one counts.
        (Types are exact for up to four; ``merge`` keeps them for any number.)
        """
        for layer in layers:
            _check_layer(layer, "Layer.merge_all")
        return _Merged(layers)

    # ------------------------------------------------------------------ change

    def merge(self, other: Layer[T, F]) -> Layer[S_co | T, E_co | F]:
        """Both, as ``merge_all``."""
        _check_layer(other, "merge")
        return _Merged((self, other))

    def provide(self, dependency: Layer[Any, F]) -> Layer[S_co, E_co | F]:
        """Build this with the services of ``dependency``, which is built first and released last.
        Only this layer's own services come out; merge ``dependency`` too where both are wanted.
        """
        _check_layer(dependency, "provide")
        return _Provided(self, dependency)

    def fresh(self) -> Layer[S_co, E_co]:
        """The same recipe, built anew at each place that it occurs in; nothing is shared."""
        return _Fresh(self)

    def launch(self) -> Effect[Never, E_co]:
        """Build it and keep it until interrupted, then release it: a program that is its layer."""
        return self._provide_to(Effect.never(), local=False)

    # ------------------------------------------------------------------ looking

    @property
    def gives(self) -> frozenset[str]:
        """Names of the tags that it gives."""
        return self._gives

    @property
    def needs(self) -> frozenset[str]:
        """Names of the tags, as far as they are known, that something around it has to give."""
        return frozenset(self._needed())

    def _needed(self) -> Needs:
        """The same, with who needs them."""
        return self._needs

    def _lacks(self, given: Container[str], memo: MemoMap) -> str | None:
        """What to say of the needs that are not among ``given``; None where there are all. What
        ``memo`` has built needs nothing any more.
        """
        said: list[str] = []
        for name, needing in self._needed().items():
            left = [] if name in given else [each for each in needing if memo.find(each) is None]
            if left:
                who = " and ".join(map(str, left))
                said.append(missing.message(name, who, "connect them with .provide(dependency)"))
        return "\n".join(said) or None

    # ------------------------------------------------------------------ building

    def _built(self, build: Build) -> Effect[Services, Any]:
        """Its services, by name; what they hold is registered with ``build.scope``."""
        raise NotImplementedError

    def _provide_to(self, eff: Effect[A, E], *, local: bool) -> Effect[A, E | E_co]:
        """``Effect.provide``."""

        def begin(env: dict[str, Any]) -> Effect[A, E | E_co]:
            around: InContext | None = env.get(LAYERS_KEY)
            memo = MemoMap(None if local or around is None else around.memo)
            lacking = self._lacks(env, memo)
            if lacking is not None:
                raise LookupError(lacking)
            build = Build(memo, Scope(name="layers"))

            def use(services: Services) -> Effect[A, E]:
                building = None if around is None else around.building
                here = InContext(memo, build.held_with(around), building)
                return _Provide(eff, {**services, LAYERS_KEY: here})

            return self._built(build).flat_map(use).on_exit(build.scope.close)

        return _env().flat_map(begin)

    def __repr__(self) -> str:
        return f"<Layer of {', '.join(sorted(self.gives)) or 'nothing'}>"


def _env() -> Effect[dict[str, Any], Never]:
    """The services of the running fiber."""
    return _Access(lambda fiber: fiber._env)


class OneService(Layer[Any, Any]):
    """A layer that builds one service: what is shared, and what messages name."""

    __slots__ = ("build_effect", "made", "place", "site", "tag")

    def __init__(
        self, tag: Tag[Any], eff: Effect[Any, Any], needs: Iterable[Tag[Any]], frame: Any
    ) -> None:
        self.tag: Tag[Any] = tag
        self.build_effect: Effect[Any, Any] = eff
        self.made: int = next(_made)
        self.site: Site = (frame.f_code, frame.f_lasti)
        self.place: str = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        asked = (*needs, *_first_asked(eff))
        # A tag with a default is never missing.
        names = dict.fromkeys(t.name for t in asked if not t._has_default)
        super().__init__(frozenset((tag.name,)), dict.fromkeys(names, ()))
        missing.announce(tag.name, self)

    def _needed(self) -> Needs:
        # Not kept: it would be a cycle, and messages would name layers that are gone (PD13).
        return dict.fromkeys(self._needs, (self,))

    def _built(self, build: Build) -> Effect[Services, Any]:
        name = self.tag.name
        return BuildService(self, build).map(lambda impl: {name: impl})

    def __str__(self) -> str:
        return f"the layer of {self.tag.name!r} made at {self.place}"


class _Made(OneService):
    """A service that exists: no fiber, no scope, nothing to share."""

    __slots__ = ()

    def _built(self, build: Build) -> Effect[Services, Any]:
        name = self.tag.name
        return self.build_effect.map(lambda impl: {name: impl})


def _all_needs(*needs: Needs) -> Needs:
    together: dict[str, tuple[OneService, ...]] = {}
    for each in needs:
        for name, who in each.items():
            together[name] = tuple(dict.fromkeys((*together.get(name, ()), *who)))
    return together


class _Merged(Layer[Any, Any]):
    __slots__ = ("layers",)

    def __init__(self, layers: tuple[Layer[Any, Any], ...]) -> None:
        super().__init__(
            frozenset[str]().union(*(layer._gives for layer in layers)),
            _all_needs(*(layer._needed() for layer in layers)),
        )
        self.layers = layers

    def _built(self, build: Build) -> Effect[Services, Any]:
        branches = build.scope.fork_scope("parallel")
        parts = [build.within(scope=branches.fork_scope()) for _ in self.layers]

        def together(services: list[Services]) -> Services:
            for part in parts:
                build.used.update(part.used)
            return {name: impl for each in services for name, impl in each.items()}

        return for_each(
            zip(self.layers, parts, strict=True),
            lambda branch: branch[0]._built(branch[1]),
            concurrency="unbounded",
        ).map(together)


class _Provided(Layer[Any, Any]):
    __slots__ = ("dependency", "layer")

    def __init__(self, layer: Layer[Any, Any], dependency: Layer[Any, Any]) -> None:
        given = dependency._gives
        left = {name: who for name, who in layer._needed().items() if name not in given}
        super().__init__(layer._gives, _all_needs(left, dependency._needed()))
        self.layer = layer
        self.dependency = dependency

    def _built(self, build: Build) -> Effect[Services, Any]:
        first = build.within()

        def then(given: Services) -> Effect[Services, Any]:
            return _env().flat_map(lambda env: on_top(given, env.get(LAYERS_KEY)))

        def on_top(given: Services, around: InContext | None) -> Effect[Services, Any]:
            building = None if around is None else around.building
            here = InContext(build.memo, first.held_with(around), building)
            # Made now, not before: a merge inside forks its scope, and that one has to lie behind
            # what the dependency registered. Nor does `build` use what `first` does: what is built
            # here holds it, and nothing else of it comes out.
            return _Provide(self.layer._built(build), {**given, LAYERS_KEY: here})

        # Suspended: a long chain of dependencies must not be one on Python's stack.
        return Effect.suspend(lambda: self.dependency._built(first)).flat_map(then)


class _Fresh(Layer[Any, Any]):
    __slots__ = ("layer",)

    def __init__(self, layer: Layer[Any, Any]) -> None:
        super().__init__(layer._gives, layer._needed())
        self.layer = layer

    def _built(self, build: Build) -> Effect[Services, Any]:
        part = build.within(memo=MemoMap())
        building = Effect.suspend(lambda: self.layer._built(part))
        return building.tap(lambda _: Effect.sync(lambda: build.used.update(part.used)))


# ---------------------------------------------------------------------------- arguments


def _one_service(
    what: str, tag: Tag[T], eff: Effect[T, F], needs: Iterable[Tag[Any]]
) -> Layer[T, F]:
    _check_tag(tag, what)
    _check_effect(eff, what)
    tags = tuple(needs)
    for each in tags:
        _check_tag(each, f"{what}(needs=)")
    return OneService(tag, eff, tags, sys._getframe(2))


def _check_tag(tag: object, what: str) -> None:
    if not isinstance(tag, Tag):
        raise ValueError(f'{what} takes a tag, made by Tag[Service]("name"), not {tag!r}')


def _check_effect(eff: object, what: str) -> None:
    if not isinstance(eff, Effect):
        raise ValueError(
            f"{what} builds the service with an Effect, not {eff!r}: call the @effect function, "
            "wrap a plain one in Effect.sync(f), or give a ready service to Layer.succeed"
        )


def _check_layer(layer: object, what: str) -> None:
    if not isinstance(layer, Layer):
        raise ValueError(
            f"{what} takes a Layer, not {layer!r}: Layer.succeed(tag, impl) makes one of a service"
        )


def checked(layer: Layer[Any, Any], given: Container[str], what: str) -> Layer[Any, Any]:
    """``layer``; ValueError at the call where its graph lacks something."""
    _check_layer(layer, what)
    lacking = layer._lacks(given, MemoMap())
    if lacking is not None:
        raise ValueError(f"{what}: {lacking}")
    return layer


def _first_asked(eff: Node) -> list[Tag[Any]]:
    """Tags that ``eff`` awaits before anything else can happen. What is hidden in a body or in a
    callback can't be seen from outside, and a guess would refuse programs that are right.
    """
    found: list[Any] = []
    todo: list[Any] = [eff]  # no recursion: a chain of maps may be long
    while todo:
        at = todo.pop()
        if isinstance(at, Tag):
            found.append(at)
        elif isinstance(at, MapOp | FlatMapOp | TapOp):
            todo.append(at.first)
        elif isinstance(at, SequenceOp | WorkersOp) and at.f in (_same, _itself):
            # zip and all_ of effects: each of them is run.
            todo.extend(reversed(list(at.items)))
    return found

"""TurnRegistry: which turns run, found by session and by id."""

from __future__ import annotations

from typing import final

from ..model.errors import TurnError
from .state import TurnState


@final
class Claim:
    """A session that is taken, for the turn ``turn_id`` where that is known. Until ``state`` is
    set, only its place is: it can be told to stop before it begins, and to hear something then.
    """

    def __init__(self, session: str, turn_id: str | None = None) -> None:
        self.session = session
        self.turn_id = turn_id
        self.state: TurnState | None = None

    @property
    def is_placeholder(self) -> bool:
        return self.state is None


@final
class TurnRegistry:
    """The active turns of one process. A session (the id of a workspace) has one root at most."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._children: dict[str, TurnState] = {}
        # Roots that ended by themselves while children of theirs went on.
        self._outlived: dict[str, TurnState] = {}

    # ---- roots

    def claim(self, session: str, turn_id: str | None = None) -> Claim:
        """Take the place of the session's turn. A plain call: of two, one gets it. Raises TurnError
        ("turn_active").
        """
        if session in self._claims:
            raise TurnError(
                "turn_active",
                f"a turn of {session} runs already",
                "Steer it, or wait for its end.",
            )
        claim = self._claims[session] = Claim(session, turn_id)
        return claim

    def claimed(self, session: str) -> Claim | None:
        return self._claims.get(session)

    def session_of(self, turn_id: str) -> str | None:
        """The session whose place this turn has, also before it begins."""
        claims = self._claims.values()
        return next((claim.session for claim in claims if claim.turn_id == turn_id), None)

    def root(self, session: str) -> TurnState | None:
        """The active root turn; None also for one that has only its place."""
        claim = self._claims.get(session)
        return None if claim is None else claim.state

    def give_up(self, claim: Claim) -> None:
        """The turn has ended; it is known for as long as turns below it run."""
        if self._claims.get(claim.session) is claim:
            del self._claims[claim.session]
        if claim.state is not None and self._runs_below(claim.state):
            self._outlived[claim.state.turn_id] = claim.state

    # ---- children

    def add_child(self, child: TurnState) -> None:
        """Make it known, to its parent too."""
        assert child.parent is not None, "a root has a session, not a parent"
        self._children[child.turn_id] = child
        child.parent.child_ids.append(child.turn_id)
        root = list(child.ancestors)[-1]
        if self.root(root.session) is not root:  # it ended while the child waited for a slot
            self._outlived[root.turn_id] = root

    def remove_child(self, child: TurnState) -> None:
        """Can be repeated."""
        self._children.pop(child.turn_id, None)
        for state in list(self._outlived.values()):
            if not self._runs_below(state):
                del self._outlived[state.turn_id]

    def child(self, turn_id: str) -> TurnState | None:
        return self._children.get(turn_id)

    @property
    def children(self) -> tuple[TurnState, ...]:
        return tuple(self._children.values())

    def below(self, state: TurnState) -> list[TurnState]:
        """The active turns below this one, parents first."""
        return [child for child in self._children.values() if state in child.ancestors]

    def tree_of(self, state: TurnState) -> list[TurnState]:
        """The active children from this one on: itself, if it is one, and those below."""
        own = [state] if self._children.get(state.turn_id) is state else []
        return [*own, *self.below(state)]

    def _runs_below(self, state: TurnState) -> bool:
        return bool(self.below(state))

    # ---- both

    def find(self, turn_id: str) -> TurnState | None:
        """The turn of this id: a root, a child, or a root that its children have outlived."""
        for claim in self._claims.values():
            if claim.state is not None and claim.state.turn_id == turn_id:
                return claim.state
        return self._children.get(turn_id) or self._outlived.get(turn_id)

"""What waits for a consumer that is behind its source: all of it up to a bound, or the newest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar, final

T = TypeVar("T")

DEFAULT_LIMIT: Final = 1024
TOGETHER: Final = 256
"""How many values that wait become one at most."""

Overflow: TypeAlias = Literal["raise", "close", "snapshot"]
"""What becomes of a consumer that is too far behind: it gets what waits and then an error; it gets
what waits and then the end; or what waits is dropped, and a fresh snapshot is next."""


class SubscriptionOverflowError(Exception):
    """More waited for a consumer than its buffer may hold."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the consumer was too far behind: its buffer holds at most {limit}. "
            "Subscribe again, or give it a larger buffer"
        )
        self.limit = limit


def _one(_value: object) -> int:
    return 1


@final
@dataclass(frozen=True)
class BufferAll(Generic[T]):
    """Every value, in order, up to ``limit``: a number of values, or the sum of their ``size``.

    A value of any size reaches a consumer for whom nothing waits.
    """

    limit: int = DEFAULT_LIMIT
    overflow: Overflow = "raise"
    size: Callable[[T], int] = _one
    on_overflow: Callable[[], object] | None = None
    """Called when it happens, which may be long before the consumer looks."""
    together: Callable[[Sequence[T]], T] | None = None
    """Makes one value of those that wait, so that a consumer that is behind catches up in fewer
    turns. None: it gets each by itself."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"a buffer holds at least 1, not {self.limit}")


@final
@dataclass(frozen=True, slots=True)
class BufferLatest:
    """Only the newest value that wasn't taken yet."""


Buffer: TypeAlias = BufferAll[T] | BufferLatest


@final
class Waiting(Generic[T]):
    """The values that wait, by the rules of a buffer."""

    __slots__ = ("_held", "_sizes", "_values", "rules")

    def __init__(self, rules: Buffer[T]) -> None:
        self.rules: Buffer[T] = rules
        self._values: deque[T] = deque()
        self._sizes: deque[int] = deque()
        self._held = 0

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: T) -> bool:
        """Add a value; False where there is no room for it."""
        rules = self.rules
        if isinstance(rules, BufferLatest):
            self._values.clear()
            self._values.append(value)
            return True
        size = rules.size(value)
        if self._values and self._held + size > rules.limit:
            return False
        self._values.append(value)
        self._sizes.append(size)
        self._held += size
        return True

    def take(self) -> T:
        """The value that is next, or some that wait as one. There has to be one."""
        rules = self.rules
        if isinstance(rules, BufferAll) and rules.together is not None and len(self._values) > 1:
            count = min(len(self._values), TOGETHER)
            return rules.together([self._take_one() for _ in range(count)])
        return self._take_one()

    def _take_one(self) -> T:
        if self._sizes:
            self._held -= self._sizes.popleft()
        return self._values.popleft()

    def clear(self) -> None:
        self._values.clear()
        self._sizes.clear()
        self._held = 0

"""Long chains and deep awaits meet no recursion limit; too long for probes."""

from __future__ import annotations

import pytest

import fibers as fb

LINKS = 1_000_000
LEVELS = 100_000


@fb.effect(raises=ValueError)
async def descend(level: int, *, fail: bool) -> int:
    if level == 0:
        if fail:
            raise ValueError("at the bottom")
        return 0
    return 1 + await descend(level - 1, fail=fail)


@pytest.mark.slow
@pytest.mark.spec("PD16")
def test_a_chain_of_a_million_runs_and_goes_away() -> None:
    chain: fb.Effect[int] = fb.Effect.succeed(0)
    for _ in range(LINKS):
        chain = chain.map(lambda n: n + 1)

    assert fb.run(chain) == LINKS


@pytest.mark.slow
@pytest.mark.spec("PD16")
def test_a_hundred_thousand_awaits_inside_each_other_give_their_value() -> None:
    assert fb.run(descend(LEVELS, fail=False)) == LEVELS


@pytest.mark.slow
@pytest.mark.spec("PD16")
def test_a_hundred_thousand_awaits_inside_each_other_pass_a_failure_up() -> None:
    with pytest.raises(ValueError, match="at the bottom"):
        fb.run(descend(LEVELS, fail=True))

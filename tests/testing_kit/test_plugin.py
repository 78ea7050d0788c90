"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import pytest

PLAIN = """
async def test_order():
    import asyncio
    from fibers.testing import TestLoop
    loop = asyncio.get_running_loop()
    print("SEED", loop.seed if isinstance(loop, TestLoop) else None)
"""
RACY = """
import asyncio
from fibers.testing import explore

SEEDS = []

@explore(20)
async def test_racy():
    log = []
    async def say(name):
        await asyncio.sleep(0)
        log.append(name)
    await asyncio.gather(say("a"), say("b"))
    assert log == ["a", "b"]
"""
LEAKY = """
import fibers as fb

async def test_leaky(no_leaks):
    fb.run_fork(fb.Effect.never())

async def test_clean(no_leaks, test_clock):
    assert test_clock.now() == 0
"""


def run(pytester: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess("-p", "no:randomly", "-s", *args)


def test_without_a_seed_it_changes_no_loop(pytester: pytest.Pytester) -> None:
    result = run(pytester, PLAIN)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*SEED None*"])


def test_a_seed_orders_the_tests_of_pytest_asyncio(pytester: pytest.Pytester) -> None:
    result = run(pytester, PLAIN, "--fiber-seed", "7")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*SEED 7*"])


def test_explore_names_the_seed_and_the_seed_fails_again(pytester: pytest.Pytester) -> None:
    result = run(pytester, RACY)

    result.assert_outcomes(failed=1)
    line = next(line for line in result.outlines if "in the order of seed" in line)
    seed = line.split("seed ")[1].split(":")[0]
    result = run(pytester, RACY, "--fiber-seed", seed)
    result.assert_outcomes(failed=1)


def test_the_number_of_orders_can_be_set(pytester: pytest.Pytester) -> None:
    run(pytester, RACY, "--fiber-explore", "1").assert_outcomes(passed=1)


def test_a_count_below_one_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, RACY, "--fiber-explore", "0")

    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_leak_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, LEAKY)

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*left over*"])

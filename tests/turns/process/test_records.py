"""Records of child processes: by more than a number, and kept until a death is sure."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.testing import TestClock
from streamengine.history.directory import DurableDirectory
from turns.process import records as records_module
from turns.process.child import Child
from turns.process.identity import ProcessIdentity, identify, is_alive
from turns.process.records import ProcessRecords

pytestmark = pytest.mark.lifecycle


async def sleeper(folder: Path) -> Child:
    """A child that does nothing for long."""
    return await Child.start(["sleep", "300"], folder=folder)


def directory_in(folder: Path) -> DurableDirectory:
    return DurableDirectory(folder / "pids", fsync="off")


def records_in(folder: Path) -> ProcessRecords:
    return ProcessRecords(directory_in(folder))


async def test_a_process_is_known_by_its_start_time_also_after_an_exec(tmp_path: Path) -> None:
    code = "import os, sys; sys.stdin.read(); os.execvp('sleep', ['sleep', '300'])"
    child = await Child.start([sys.executable, "-I", "-c", code], folder=tmp_path, with_input=True)
    before = child.identity
    assert before is not None
    child.close_input()
    while True:
        now = identify(child.pid)
        if now is not None and now.name == "sleep":
            break
        await asyncio.sleep(0.005)  # nobody tells when it is another program

    assert is_alive(before)
    assert before.name != "sleep"
    await child.kill()
    assert not is_alive(before)


async def test_the_same_number_at_another_time_is_another_process(tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None

    assert is_alive(me)
    assert not is_alive(me.model_copy(update={"start_ticks": me.start_ticks - 1}))


@pytest.mark.spec("I11")
async def test_a_record_goes_only_when_that_process_is_dead(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    child = await sleeper(tmp_path)
    assert child.identity is not None
    await records.add(child.identity)

    assert not await records.forget(child.identity)
    assert await records.all() == [child.identity]
    await child.kill()
    assert await records.forget(child.identity)
    assert await records.all() == []


@pytest.mark.spec("I11")
async def test_what_an_earlier_process_left_running_is_ended(tmp_path: Path) -> None:
    child = await sleeper(tmp_path)
    assert child.identity is not None
    await records_in(tmp_path).add(child.identity)

    left = await records_in(tmp_path).end_left_over()

    assert (left, identify(child.pid)) == ([], None)
    assert await records_in(tmp_path).all() == []
    await child.kill()


@pytest.mark.spec("I11")
async def test_a_number_that_is_somebody_else_s_by_now_is_not_killed(tmp_path: Path) -> None:
    child = await sleeper(tmp_path)
    assert child.identity is not None
    earlier = {"start_ticks": child.identity.start_ticks - 1, "mark": None}  # not our child
    old = child.identity.model_copy(update=earlier)
    await records_in(tmp_path).add(old)

    left = await records_in(tmp_path).end_left_over()

    assert left == []
    assert is_alive(child.identity)
    assert await records_in(tmp_path).all() == []
    await child.kill()


@pytest.mark.spec("I11")
async def test_a_process_that_does_not_die_keeps_its_record(tmp_path: Path) -> None:
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    immortal = ProcessIdentity(pid=2**22 + 1, start_ticks=1, name="immortal")

    def never_dead(_process: ProcessIdentity) -> bool:
        return True

    records = ProcessRecords(directory_in(tmp_path), is_alive=never_dead)
    await records.add(immortal)
    await runtime.run(clock.adjust(0))  # from now on the clock waits for threads

    with capture_logs() as logs:
        ending = runtime.run_fork(records.end_left_over())
        await runtime.run(clock.adjust(1))
        left = await ending

    assert left == [immortal]
    assert await records.all() == [immortal]
    assert [log["name"] for log in logs] == ["immortal"]
    await runtime.dispose()


async def test_a_file_that_is_no_record_is_named_and_hides_no_other(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    gone = ProcessIdentity(pid=2**22 + 1, start_ticks=1, name="gone")
    await records.add(gone)
    (tmp_path / "pids" / "1-1.json").write_text("{")
    (tmp_path / "pids" / "2-1.json").symlink_to("/etc/passwd")

    with capture_logs() as logs:
        found = await records.all()

    assert found == [gone]
    assert sorted(Path(log["path"]).name for log in logs) == ["1-1.json", "2-1.json"]


async def test_a_kill_of_what_is_dead_already_does_nothing(tmp_path: Path) -> None:
    child = await Child.start(["true"], folder=tmp_path)
    assert await child.wait() == 0

    await child.kill()
    await child.kill()

    assert child.exit_code == 0


async def pid_of_what_it_started(child: Child) -> int:
    return int((await child.output.readline()).decode())


@pytest.mark.spec("I11")
@pytest.mark.parametrize("starts", ["setsid sleep 300", "sleep 300"])
@pytest.mark.parametrize("ends_first", [False, True])
async def test_what_a_left_over_process_started_is_ended_with_it(
    tmp_path: Path, starts: str, ends_first: bool
) -> None:
    script = f"{starts} & echo $!; read line"
    child = await Child.start(["sh", "-c", script], folder=tmp_path, with_input=True)
    assert child.identity is not None
    started = await pid_of_what_it_started(child)
    await records_in(tmp_path).add(child.identity)
    if ends_first:
        child.close_input()
        await child.wait()

    left = await records_in(tmp_path).end_left_over()

    assert left == []
    assert (identify(started), identify(child.pid)) == (None, None)
    assert await records_in(tmp_path).all() == []
    await child.kill()
    child.close()


@pytest.mark.spec("I11")
async def test_the_same_number_and_time_after_another_boot_is_another_process(
    tmp_path: Path,
) -> None:
    child = await sleeper(tmp_path)
    assert child.identity is not None
    old = child.identity.model_copy(update={"boot_id": "another", "mark": None})
    older = old.model_copy(update={"boot_id": None})
    await records_in(tmp_path).add(old)

    left = await records_in(tmp_path).end_left_over()

    assert left == []
    assert is_alive(child.identity)
    assert is_alive(older)  # a record of a version that did not know of boots
    await child.kill()


@pytest.mark.parametrize("mark", ["", "FIBERSCOPE_CHILD=", "HOME=/root", 7])
async def test_a_mark_that_others_may_have_ends_nobody(tmp_path: Path, mark: object) -> None:
    me = identify(os.getpid())
    assert me is not None
    directory = tmp_path / "pids"
    directory.mkdir()
    fields = {"pid": 2**22 + 1, "startTicks": 1, "name": "x", "mark": mark}
    (directory / "1-1.json").write_text(json.dumps(fields))

    with capture_logs() as logs:
        found = await records_in(tmp_path).all()

    assert found == []
    assert [Path(log["path"]).name for log in logs] == ["1-1.json"]


async def test_a_process_that_can_not_be_noted_runs_and_the_log_says_why(tmp_path: Path) -> None:
    (tmp_path / "pids").write_text("in the way")
    me = identify(os.getpid())

    with capture_logs() as logs:
        await records_in(tmp_path).note(me)

    (log,) = logs
    assert str(tmp_path / "pids") in log["error"]
    assert "Traceback" not in log["error"]


@pytest.mark.spec("I11")
async def test_a_process_that_such_a_command_had_started_does_not_end_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = "FIBERSCOPE_CHILD=0123456789abcdef"
    gone = ProcessIdentity(pid=2**22 + 1, start_ticks=1, name="gone", mark=mark)
    killed: list[int] = []

    def found(_mark: str) -> list[int]:
        return [os.getpid()]

    def kill(pid: int, _number: int) -> None:
        killed.append(pid)

    monkeypatch.setattr(records_module, "marked", found)
    monkeypatch.setattr(os, "kill", kill)
    await records_in(tmp_path).add(gone)

    left = await records_in(tmp_path).end_left_over()

    assert (left, killed) == ([], [])

"""The tool `shell`: what it says, and that nothing of a command outlives its call."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import pytest

from turns.process.identity import identify
from turns.process.output import BoundedOutput
from turns.tools.shell import MAX_OUTPUT_BYTES

from .conftest import Toolbench, file_at

pytestmark = pytest.mark.lifecycle


async def test_a_command_runs_in_the_folder_and_says_what_it_wrote(live_tools: Toolbench) -> None:
    bench = live_tools.bench

    said = await live_tools.outputs(
        bench.open(),
        "shell",
        {"command": "pwd; echo oops >&2; exit 3"},
        {"command": "cat"},
        {"command": "printf '\\377'"},
    )

    assert said == [
        {"exitCode": 3, "output": f"{bench.folder}\noops\n"},
        {"exitCode": 0, "output": ""},
        {"exitCode": 0, "output": "\ufffd"},
    ]


async def test_a_command_sees_none_of_our_secrets(
    live_tools: Toolbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    read, write = os.pipe()
    os.set_inheritable(write, True)

    (said,) = await live_tools.outputs(
        live_tools.bench.open(), "shell", {"command": "env; ls /proc/self/fd | wc -l"}
    )
    os.close(read)
    os.close(write)

    assert "sk-secret" not in said["output"]
    names = {line.split("=")[0] for line in said["output"].splitlines() if "=" in line}
    assert names <= {
        *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "USER", "TERM"),
        *("FIBERSCOPE_CHILD", "PWD", "OLDPWD", "SHLVL", "_"),
    }
    assert said["output"].splitlines()[-1].strip() == "4"  # 0, 1, 2, and the one of ls itself


async def test_long_output_keeps_its_beginning_and_its_end(live_tools: Toolbench) -> None:
    command = "echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"

    (said,) = await live_tools.outputs(live_tools.bench.open(), "shell", {"command": command})

    assert len(said["output"]) < MAX_OUTPUT_BYTES + 100
    assert said["output"].startswith("begin\nxxx")
    assert said["output"].endswith("xxx\nend\n")
    assert " bytes left out ...]" in said["output"]


@pytest.mark.parametrize("size_bytes", [0, 9, 10, 11, 1000])
@pytest.mark.parametrize("piece_bytes", [1, 3, 100])
def test_a_bounded_output_leaves_out_the_middle(size_bytes: int, piece_bytes: int) -> None:
    data = bytes(97 + n % 26 for n in range(size_bytes))
    output = BoundedOutput(10)
    for at in range(0, size_bytes, piece_bytes):
        output.add(data[at : at + piece_bytes])

    said = output.text()

    if size_bytes <= 10:
        assert said == data.decode()
    else:
        left_out = f"\n[... {size_bytes - 10} bytes left out ...]\n"
        assert said == data[:5].decode() + left_out + data[-5:].decode()


@pytest.mark.spec("R29")
async def test_a_stop_ends_the_whole_group_within_two_seconds(live_tools: Toolbench) -> None:
    bench = live_tools.bench
    turn = bench.open()
    command = "echo $$ > pids; sleep 300 & echo $! >> pids; sleep 300 & echo $! >> pids"
    d = live_tools.desk("shell", {"command": f"{command}; mv pids all; wait"})
    handle = await d.start(correlation={"turnId": turn.turn_id})
    pids = [int(line) for line in (await file_at(bench.folder / "all")).split()]
    assert [identify(pid) is None for pid in pids] == [False] * 3

    began = time.monotonic()
    await d.stop()
    await bench.run(handle.completion)
    while any(identify(pid) is not None for pid in pids):
        await bench.run(bench.clock.sleep(0.01))

    assert time.monotonic() - began < 2
    assert turn.is_open  # a stop of the answer is not the end of the turn


@pytest.mark.parametrize(
    "how",
    [
        "trap '' TERM; sleep 300",  # ignores the polite signal
        "setsid sleep 300",  # leaves the group
        "sleep 300 & exec sleep 300",
        "env -i sleep 300 & wait",  # known by its group only
        "env -i sh -c 'trap \"\" TERM; sleep 300; :' & wait",
    ],
)
@pytest.mark.spec("R29")
async def test_a_command_that_takes_too_long_is_ended_whatever_it_does(
    live_tools: Toolbench, how: str
) -> None:
    began = time.monotonic()
    (said,) = await live_tools.outputs(
        live_tools.bench.open(),
        "shell",
        {"command": f"echo so far; {how}", "timeoutSeconds": 0.3},
    )

    assert time.monotonic() - began < 2.3
    assert said["exitCode"] is None
    assert said["output"] == "so far\n"
    assert "longer than 0.3 s" in said["error"]
    assert running_in(live_tools) == []


@pytest.mark.spec("R29")
async def test_what_a_command_leaves_in_the_background_ends_with_it(live_tools: Toolbench) -> None:
    (said,) = await live_tools.outputs(
        live_tools.bench.open(), "shell", {"command": "sleep 300 & setsid sleep 300 & echo done"}
    )

    assert said == {"exitCode": 0, "output": "done\n"}
    assert running_in(live_tools) == []


@pytest.mark.spec("R29")
async def test_twenty_commands_leave_no_defunct_children(live_tools: Toolbench) -> None:
    turn = live_tools.bench.open()
    others = set(psutil.Process().children(recursive=True))  # of other tests

    await live_tools.outputs(turn, "shell", *[{"command": "true & false"}] * 20)

    assert set(psutil.Process().children(recursive=True)) <= others


def running_in(tools: Toolbench) -> list[Any]:
    """The processes whose working directory is the folder: asked of the system."""
    folder = str(tools.bench.folder)
    return [
        process
        for process in psutil.process_iter(["cwd", "status"])
        if process.info["cwd"] == folder and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("value", [0, -1, 601, True, "5", None])
async def test_a_bound_that_is_none_is_refused_before_anything_runs(
    live_tools: Toolbench, value: object
) -> None:
    (said,) = await live_tools.outputs(
        live_tools.bench.open(), "shell", {"command": "touch a", "timeoutSeconds": value}
    )

    assert "`timeoutSeconds` must be" in said["error"]
    assert list(live_tools.bench.folder.iterdir()) == []


async def test_the_turn_warns_of_it_and_claims_what_it_changed(live_tools: Toolbench) -> None:
    bench = live_tools.bench
    await bench.run(bench.workspace.watcher.refresh())
    turn = bench.open()
    await live_tools.outputs(turn, "shell", {"command": "touch a"})
    await bench.run(bench.workspace.watcher.refresh())
    await bench.close(turn, "completed")

    assert [(c.path, c.by) for c in bench.changes] == [("a", "agent")]
    assert [warning.tool_names for warning in bench.warnings] == [("shell",)]


# ---- asked first


@pytest.mark.parametrize("allow", [True, False])
async def test_a_person_is_asked_first(live_tools: Toolbench, allow: bool) -> None:
    bench = live_tools.bench
    desk = bench.workspace.permissions
    turn = bench.open()
    d = live_tools.desk("shell", {"command": "touch a"}, {"command": "touch b"}, asking=True)
    handle = await d.start(correlation={"turnId": turn.turn_id})
    asked: list[str] = []
    while desk.card is None:
        await bench.run(bench.clock.sleep(0))
    asked.append(desk.card.question)
    assert list(bench.folder.iterdir()) == []

    await bench.run(desk.answer(desk.card.request_id, allow=allow, remember=True))
    await bench.run(handle.completion)

    assert asked == ["Run: touch a"]
    assert sorted(p.name for p in bench.folder.iterdir()) == (["a", "b"] if allow else [])


async def test_the_end_of_the_turn_refuses_the_command_that_waits(live_tools: Toolbench) -> None:
    bench = live_tools.bench
    turn = bench.open()
    d = live_tools.desk("shell", {"command": "touch a"}, asking=True)
    handle = await d.start(correlation={"turnId": turn.turn_id})
    while bench.workspace.permissions.card is None:
        await bench.run(bench.clock.sleep(0))

    await bench.close(turn, "stalled")
    await bench.run(handle.completion)

    (part,) = [part for part in d.parts() if part["type"] == "dynamic-tool"]
    assert "was not run: dropped" in part["output"]["error"]
    assert list(bench.folder.iterdir()) == []

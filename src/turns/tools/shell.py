"""The tool `shell`: one command, in a process group that does not outlive the call."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, final

import fibers as fb
from fibers import AbortSignal
from streamengine import ToolSpec, ToolUse

from ..model.errors import TurnError
from ..process.child import Child
from ..process.output import BoundedOutput
from ..process.records import ProcessRecords
from ..turn import OpenTurns
from .calls import text_in, turn_of

MAX_OUTPUT_BYTES: Final = 64 << 10
TIMEOUT_SECONDS: Final = 120.0
MAX_TIMEOUT_SECONDS: Final = 600.0
_READ_BYTES: Final = 1 << 16
_LAST_WORDS_SECONDS: Final = 1.0


@final
class ShellTool:
    """Runs a command with ``sh`` in the folder of the workspace.

        engine = StreamEngine(..., tools=[ShellTool(open_turns, permission="ask")])

    What it starts ends with it, in the background or not. What it does can't be undone: the turn
    warns of that. With "ask" a person is asked before each command, unless they wished to be asked
    no more. ``records``: where a process is kept while it runs, so that the next one of the host
    ends what a kill of this one left running.
    """

    spec: ToolSpec = ToolSpec(
        name="shell",
        description=(
            "Runs a command with sh in the folder of the project, without input. Gives its exit "
            "code and what it wrote. Nothing that it starts goes on when it has ended."
        ),
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeoutSeconds": {"type": "number"},
            },
            "required": ["command"],
        },
    )

    def __init__(
        self,
        open_turns: OpenTurns,
        *,
        permission: Literal["ask", "granted"] = "ask",
        records: ProcessRecords | None = None,
    ) -> None:
        self._open_turns = open_turns
        self._permission = permission
        self._records = records

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        """Raises TurnError in words for the model."""
        turn = turn_of(call, self._open_turns)
        command = text_in(call.input, "command")
        timeout_seconds = _timeout_in(call.input.get("timeoutSeconds", TIMEOUT_SECONDS))
        if self._permission == "ask":
            verdict = await turn.permission.ask(f"Run: {command}", subject=self.spec.name)
            if verdict != "allowed":
                raise TurnError("refused", f"the command was not run: {verdict}", "Do without it.")
        turn.attribution.claim()
        turn.warnings.add(self.spec.name)
        output = BoundedOutput(MAX_OUTPUT_BYTES)
        folder = turn.workspace.folder.root
        running = _run(command, folder, output, self._records)
        ended = await running.timeout_option(timeout_seconds)
        exit_code = ended.value_or(None)
        said: dict[str, object] = {"exitCode": exit_code, "output": output.text()}
        if exit_code is None:
            said["error"] = f"it took longer than {timeout_seconds:g} s and was ended"
        return said


@fb.effect
async def _run(
    command: str, folder: Path, output: BoundedOutput, records: ProcessRecords | None
) -> int:
    """The exit code. However this ends, nothing of the command runs any more."""
    child: Child | None = None
    try:
        with fb.uninterruptible():
            # What an interrupt would cut off here is a process that nobody knows of.
            child = await Child.start(["sh", "-c", command], folder=folder, merge_output=True)
            if records is not None:
                await records.note(child.identity)
        reading = await _read(child, output).fork_child()
        exit_code = await child.wait()
        await _end(child)
        # Whoever holds the other end is gone; if not, it has hidden from us, and is not waited for.
        await reading.join().timeout_option(_LAST_WORDS_SECONDS)
        return exit_code
    finally:
        if child is not None:
            await _end(child)
            child.close()
            if records is not None:
                await records.strike(child.identity).uninterruptible()


def _end(child: Child) -> fb.Effect[None]:
    return child.kill().uninterruptible()


@fb.effect
async def _read(child: Child, output: BoundedOutput) -> None:
    while data := await child.output.read(_READ_BYTES):
        output.add(data)


def _timeout_in(value: object) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value <= MAX_TIMEOUT_SECONDS
    ):
        raise TurnError(
            "bad_input",
            f"`timeoutSeconds` must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}",
            "Leave it out, or give such a number.",
        )
    return float(value)

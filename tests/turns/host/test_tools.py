"""Tools of a server: for who starts one in a program, as the command line has none."""

from __future__ import annotations

from pathlib import Path

from fibers import AbortSignal
from streamengine import ToolSpec, ToolUse
from streamengine.model import ToolCall

from .kit import a_server, events_of, rows_of, send


class Add:
    spec = ToolSpec(name="add", description="The sum of a and b.")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        return {"sum": call.input["a"] + call.input["b"]}


async def test_a_tool_runs_and_readers_and_history_have_its_result(tmp_path: Path) -> None:
    async with a_server(tmp_path, tools=[Add()]) as server, server.client() as client:
        async with events_of(client) as events:
            await events.until("caught-up")
            await send(client)
            first = await server.provider.next_answer()
            first.say(ToolCall(tool_call_id="c1", tool_name="add", input={"a": 2, "b": 3}))
            first.finish()
            second = await server.provider.next_answer()
            second.say("It is 5.").finish()
            told = await events.until("stream-end")
        rows = await rows_of(client)

    assert [spec.name for spec in first.request.tools] == ["add"]
    results = [event.data["result"] for event in told if event.type == "tool-call-end"]
    assert results == [{"sum": 5}]
    assert [part.get("output") for part in rows[1]["parts"]] == [{"sum": 5}, None]

"""The command line of turns: ``fiberscope turns list``, ``show`` and ``interrupt``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamengine.model import check_id

from ..model.ids import check_handle_id
from . import logs
from .config import default_state
from .errors import UsageError
from .histories import database_of
from .options import History, State
from .program import run
from .turn_sources import Place
from .turns_command import Wanted, interrupt_turn, list_turns, show_turn

app: typer.Typer = typer.Typer(
    name="turns",
    help=(
        "Show and end turns.\n\n"
        "Those of the server that works on the state directory, else of the directory itself."
    ),
)

Handle = Annotated[str, typer.Argument(metavar="HANDLE", help="What a turn is called: wst_...")]
Json = Annotated[bool, typer.Option("--json", help="Write it as JSON, for programs.")]


@app.command("list")
def list_command(
    state: State = None,
    history: History = None,
    owner: Annotated[
        str | None, typer.Option(metavar="ID", help="Of this workspace only: who began them.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="ID", help="In this workspace only: where they run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List turns, the oldest first.

    Below them: how many ends of other streams were left out of account.
    """
    wanted = Wanted(_checked("--owner", owner), _checked("--workspace", workspace))
    run(list_turns(_place(state, history), wanted, as_json=as_json))


@app.command("show")
def show_command(
    handle: Handle, state: State = None, history: History = None, as_json: Json = False
) -> None:
    """Show all of one turn.

    Where it stands, why it ended, and what shows that.
    """
    run(show_turn(_place(state, history), _handle(handle), as_json=as_json))


@app.command("interrupt")
def interrupt_command(
    handle: Handle,
    state: State = None,
    history: History = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="At once, and take back what it has said.")
    ] = False,
) -> None:
    """End a turn with one last answer.

    Where no server runs it is settled as interrupted.
    """
    run(interrupt_turn(_place(state, history), _handle(handle), hard=hard))


def _place(state: Path | None, history: str | None) -> Place:
    # Quiet: what can't be read is told by the command itself.
    logs.configure(logs.level_of(default="error"))
    return Place(state or default_state(), database_of(history) if history else None)


def _handle(value: str) -> str:
    try:
        return check_handle_id(value)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _checked(option: str, value: str | None) -> str | None:
    try:
        return None if value is None else check_id(value)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error

"""The command line: ``fiberscope serve``, ``chat``, ``ps`` and ``turns``.

Exit codes: 0 done, 1 could not be done, 2 a command line that makes no sense, 130 Ctrl-C, 143
SIGTERM. What went wrong is one line on standard error.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import structlog
import typer
from pydantic import ValidationError

import fibers as fb
from streamengine.model import check_id
from streamengine.redact import Secret

from . import logs
from .chat import ChatConfig, chat
from .config import (
    DEFAULT_HOST,
    DEFAULT_MODEL,
    DEFAULT_PORT,
    DEFAULT_WORKSPACE,
    Limits,
    ServeConfig,
    block_seconds_of,
    default_state,
    step_seconds_of,
)
from .errors import FAILED, HostError, UsageError
from .histories import database_of
from .models import KNOWN, check_model, provider_for
from .options import History, State
from .program import complain, run
from .ps import INTERVAL_SECONDS, PsConfig, ps
from .serve import Ready, serve
from .terminal import give_up_output, write_out
from .turns_cli import app as turns_app

_log = structlog.get_logger("turns.host.cli")

app: typer.Typer = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Streams of a language model that are owned, kept and ended exactly once.",
)
app.add_typer(turns_app)

Model = Annotated[str, typer.Option("--model", metavar="NAME", help=f"One of {KNOWN}.")]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the API of openai or anthropic is served instead."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        write_out(f"fiberscope {version('fiberscope')}\n")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command("serve")
def serve_command(
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="0: any free one.")
    ] = DEFAULT_PORT,
    state: State = None,
    history: History = None,
    model: Model = DEFAULT_MODEL,
    base_url: BaseUrl = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = DEFAULT_HOST,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A further name the server is asked for under; repeatable."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no token; on loopback addresses only.")
    ] = False,
    no_auto_retry: Annotated[
        bool,
        typer.Option("--no-auto-retry", help="Leave failed and interrupted answers as they are."),
    ] = False,
) -> None:
    """Serve conversations over HTTP, with a page to read and write them."""
    # Before the start: what a command line can't mean begins nothing.
    check_model(model, base_url)
    try:
        config = ServeConfig(
            state=state or default_state(),
            database=_database(history),
            host=host,
            port=port,
            model=model,
            base_url=base_url,
            auth=not no_auth,
            allowed_hosts=tuple(allow_host or ()),
            auto_retry=not no_auto_retry,
            step_seconds=step_seconds_of(),
            block_seconds=block_seconds_of(),
        )
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from error
    logs.configure(logs.level_of())
    run(_served(config))


@fb.effect(raises=Exception)
async def _served(config: ServeConfig) -> int:
    await serve(config, _say_ready)
    return 0


def _say_ready(ready: Ready) -> None:
    # Not the log: the URL holds the token.
    try:
        write_out(f"Open {ready.url}\n")
    except (HostError, BrokenPipeError) as error:
        # It serves all the same; address and token are in the state directory.
        _log.warning("the address can't be shown", error=str(error))


@app.command("chat")
def chat_command(
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    state: State = None,
    history: History = None,
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help=f"Where no server runs: {KNOWN}."),
    ] = DEFAULT_MODEL,
    base_url: BaseUrl = None,
    workspace: Annotated[
        str, typer.Option(metavar="ID", help="The conversation.")
    ] = DEFAULT_WORKSPACE,
) -> None:
    """Send a message and write the answer as it comes.

    Through the server that runs on the state directory, if there is one.
    """
    limits = Limits()
    try:
        check_id(workspace)
    except ValueError as error:
        raise UsageError(f"--workspace: {error}") from error
    config = ChatConfig(
        state or default_state(),
        workspace,
        _message(text, limits),
        limits,
        step_seconds_of(),
        _database(history),
    )
    logs.configure(logs.level_of(default="warning"))
    run(chat(config, lambda: provider_for(model, base_url=base_url)))


@app.command("ps")
def ps_command(
    state: State = None,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, and write all of it as text.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Look once, and write it as JSON, for programs.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")
    ] = INTERVAL_SECONDS,
) -> None:
    """Show what is alive in the running server.

    Scopes, occupants and fibers, where each one waits and for how long.
    """
    logs.configure(logs.level_of(default="warning"))
    run(ps(PsConfig(state or default_state(), once, as_json, interval)))


def _database(url: str | None) -> Secret | None:
    return database_of(url) if url else None


def _message(text: str, limits: Limits) -> str:
    most = limits.body_bytes
    if text == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed: there is no message to read")
        try:
            data = sys.stdin.buffer.read(most + 1)
        except OSError as error:
            raise HostError(f"standard input can't be read: {error.strerror}") from error
        if len(data) > most:
            raise UsageError(f"the message is longer than {most} bytes")
        text = data.decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("the message has no text")
    return text


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    message: str = first["msg"].removeprefix("Value error, ")
    return ": ".join([*(str(step) for step in first["loc"]), message])


def main() -> NoReturn:
    """The console script."""
    try:
        code = app(prog_name="fiberscope", standalone_mode=False)
    except HostError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        # Of typer's help; what commands write says so itself.
        give_up_output()
        complain(f"standard output can't be written: {error.strerror}")
        sys.exit(FAILED)
    except Exception as error:
        # typer's own complaints have no public base class.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        complain(f"{show()} (see fiberscope --help)")
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)

"""A PostgreSQL of the tests' own: in a directory that goes with it, on a socket, not root's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 30


class NoPostgres(Exception):
    """There is none on this machine; the text says what to do."""


def binaries() -> Path:
    """Where Debian keeps the newest server. Raises NoPostgres."""
    found = [
        path.parent
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if path.with_name("pg_ctl").exists()
    ]
    if not found:
        raise NoPostgres(
            "PostgreSQL is not installed, so NOTHING here ran on it: apt-get install postgresql"
        )
    return max(found, key=lambda path: float(path.parent.name))


@contextmanager
def server(*, durable: bool = False) -> Generator[str]:
    """A running server; gives the directory of its socket. Raises NoPostgres.

    ``durable``: it waits for the disk, which is not what tests are about.
    """
    place = binaries()
    user = _user()
    # Short, as the path of a socket may have about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if user is not None:
            os.chown(directory, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        data = directory / "data"
        log = directory / "log"
        _run(user, place / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8", "-N")
        # No port: only the socket.
        options = f"{'' if durable else '-F '}-k {directory} -c listen_addresses=''"
        _run(user, place / "pg_ctl", "-D", data, "-o", options, "-l", log, "-w", "start")
        try:
            yield str(directory)
        finally:
            _run(user, place / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _user() -> str | None:
    """Who runs the server: it refuses to be root's."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoPostgres("PostgreSQL doesn't run as root, and there is no user postgres or nobody")


def _run(user: str | None, *command: str | Path) -> None:
    done = subprocess.run(
        list(map(str, command)),
        user=user,
        cwd="/",
        stdin=subprocess.DEVNULL,
        # Not a pipe: the server inherits it, and reading would wait for the server's end.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise NoPostgres(f"{' '.join(map(str, command))} ended with {done.returncode}")

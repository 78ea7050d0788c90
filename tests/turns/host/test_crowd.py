"""A shutdown with many clients, those included that never read."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM

import pytest

from .programs import Server, serving, stored

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

IDLE = 100
NEVER_READING = 100
A_WORKSPACE = 50
"""Event streams that this test opens in one workspace; the server bears a few more."""


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with serving(tmp_path, tmp_path / "state") as server:
        yield server


def connected(server: Server, workspace: str) -> socket.socket:
    """An open event stream of which only the first bytes were looked at."""
    port = int(server.url.rpartition(":")[2])
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    sock.sendall(
        f"GET /api/workspaces/{workspace}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    assert sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
    return sock


# Until the sockets of a hundred readers are full, a few hundred megabytes have to go through.
@pytest.mark.timeout(300)
def test_a_shutdown_with_a_hundred_idle_and_a_hundred_never_reading_clients_is_bounded(
    server: Server, tmp_path: Path
) -> None:
    with ExitStack() as sockets:
        for number in range(IDLE):
            sockets.enter_context(connected(server, f"idle{number // A_WORKSPACE}"))
        asleep = [
            sockets.enter_context(connected(server, f"busy{number // A_WORKSPACE}"))
            for number in range(NEVER_READING)
        ]
        busy = sorted({f"busy{number // A_WORKSPACE}" for number in range(NEVER_READING)})
        for workspace in busy:
            server.send("flood", workspace)
        # From now on nothing more gets into any of these sockets.
        while server.log.count("too far behind") < NEVER_READING:
            time.sleep(0.05)
        started = time.monotonic()
        server.signal(SIGTERM)
        code, _ = server.end()
        seconds = time.monotonic() - started

    assert code == 143
    assert seconds < 5
    assert len(asleep) == NEVER_READING
    assert "connections given up" in server.log
    for workspace in busy:
        user, answer = stored(tmp_path / "state", workspace)
        assert user["role"] == "user"
        assert answer["metadata"]["abortReason"] == "system"
        assert not (tmp_path / "state/workspaces" / workspace / "partial.json").exists()

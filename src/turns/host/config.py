"""What a root of the host is told: where its state is, where it listens, how much it bears."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fibers.app.startup import STEP_TIMEOUT_SECONDS
from fibers.app.watchdog import THRESHOLD_SECONDS
from streamengine.redact import Secret

from .errors import UsageError

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8642
DEFAULT_MODEL: Final = "local"
DEFAULT_WORKSPACE: Final = "default"

STEP_TIMEOUT_VARIABLE: Final = "FIBERSCOPE_STARTUP_STEP_TIMEOUT_MS"
WATCHDOG_VARIABLE: Final = "FIBERSCOPE_WATCHDOG_MS"

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Limits(BaseModel):
    """How much one process bears before it refuses."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    body_bytes: Count = 1_000_000
    header_seconds: Seconds = 10.0
    """From the first byte of a connection, or of its next request, to the end of the headers."""
    body_seconds: Seconds = 10.0
    """For the whole body of a request."""
    stall_seconds: Seconds = 30.0
    """How long a connection may take nothing of what is written to it."""
    connections: Count = 512
    streams: Count = 16
    """Workspaces that may be answered at the same time."""
    subscribers: Count = 64
    """Open event streams a workspace."""
    subscriber_bytes: Count = 1_000_000
    """Held for one event stream whose client is behind."""
    silence_seconds: Seconds = 120.0
    """How long a provider may give nothing before its stream fails."""


class ServeConfig(BaseModel):
    """What ``serve`` is told."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    state: Path
    database: Secret | None = None
    """The URL of the database that conversations are kept in. None: in files of ``state``."""
    host: str = DEFAULT_HOST
    port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_PORT
    """0: any free one."""
    model: str = DEFAULT_MODEL
    base_url: str | None = None
    """Where the model's API is served. None: by its vendor."""
    auth: bool = True
    allowed_hosts: tuple[str, ...] = ()
    """Further names, without a port, under which the server may be asked for."""
    limits: Limits = Limits()
    step_seconds: Seconds = STEP_TIMEOUT_SECONDS
    """For each step of the start."""
    block_seconds: Seconds | None = THRESHOLD_SECONDS
    """How long the event loop may not turn before the log names what holds it. None: no watch."""
    auto_retry: bool = True
    """Whether failed answers are tried again, and interrupted ones are taken up at the start."""
    supervised: bool = True
    """False: the streams are not in the app scope. What a shutdown loses then, the drill shows."""

    @property
    def tells_its_fibers(self) -> bool:
        """Names, paths and places of the code are for this machine only."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _asked_for_by_name(self) -> Self:
        for name in self.allowed_hosts:
            if not _HOST_NAME.fullmatch(name) and not _is_address(name):
                raise ValueError(
                    f"--allow-host {name!r}: that is no name of a host; "
                    "give it without scheme, port and path"
                )
        return self

    @model_validator(mode="after")
    def _open_only_at_home(self) -> Self:
        if not self.auth and not is_loopback(self.host):
            raise ValueError(
                f"--no-auth is for loopback addresses only, and {self.host!r} is none: "
                "leave it out, or listen on 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``, an address or a name without a port."""
    return host == "localhost" or (_is_address(host) and _address(host).is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host.strip("[]"))


def _is_address(host: str) -> bool:
    try:
        _address(host)
    except ValueError:
        return False
    return True


def default_state(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the state is if nobody says: by the XDG rules, under the home directory."""
    base = environment.get("XDG_STATE_HOME", "")
    # The rules say that a relative path counts as none.
    if os.path.isabs(base):
        return Path(base) / "fiberscope"
    try:
        return Path.home() / ".local" / "state" / "fiberscope"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home directory: name a state directory with --state"
        ) from error


def step_seconds_of(environment: Mapping[str, str] = os.environ) -> float:
    """The bound of each step of a start, if the environment names one. Raises UsageError."""
    seconds = _seconds_in(environment, STEP_TIMEOUT_VARIABLE)
    if seconds == 0:
        raise UsageError(f"{STEP_TIMEOUT_VARIABLE} is 0: no step is done in no time")
    return STEP_TIMEOUT_SECONDS if seconds is None else seconds


def block_seconds_of(environment: Mapping[str, str] = os.environ) -> float | None:
    """From when on a loop counts as blocked; None, for 0: nobody watches. Raises UsageError."""
    seconds = _seconds_in(environment, WATCHDOG_VARIABLE)
    return THRESHOLD_SECONDS if seconds is None else seconds or None


def _seconds_in(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{name} is a number of milliseconds, not {text!r}")
    return int(text) / 1000

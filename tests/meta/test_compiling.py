"""`tools.native`: which Pythons the twin is for, and what is said where it can't be compiled."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tools import native


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Python that the twin is for, whichever one this is."""
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    return monkeypatch


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_supported_python_fits(fit: pytest.MonkeyPatch, minor: int) -> None:
    fit.setattr(sys, "version_info", (3, minor, 0, "final", 0))

    assert native.unfit() is None


@pytest.mark.parametrize(
    ("target", "name", "value", "said"),
    [
        (sys, "version_info", (3, 14, 0, "final", 0), "it is for Python 3.11 to 3.13, not 3.14"),
        (sys.implementation, "name", "pypy", "it is for CPython, not pypy"),
    ],
    ids=["newer", "another implementation"],
)
def test_other_python_runs_the_pure_modules(
    fit: pytest.MonkeyPatch, target: Any, name: str, value: object, said: str, tmp_path: Path
) -> None:
    fit.setattr(target, name, value)

    assert native.unfit() == said
    with pytest.raises(native.NotCompiledError, match=f"^{said}$"):
        native.build(tmp_path)


def test_python_without_the_lock_runs_the_pure_modules(fit: pytest.MonkeyPatch) -> None:
    """The twin relies on it."""
    known = sysconfig.get_config_var

    def told(name: str) -> Any:
        return 1 if name == "Py_GIL_DISABLED" else known(name)

    fit.setattr(sysconfig, "get_config_var", told)

    assert native.unfit() == "it is for a Python with the global interpreter lock"


def test_missing_headers_are_named_with_what_brings_them(
    fit: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told(_name: str) -> str:
        return str(tmp_path / "include")

    fit.setattr(sysconfig, "get_path", told)

    with pytest.raises(native.NotCompiledError) as raised:
        native.build(tmp_path)

    assert str(raised.value) == (
        f"no Python.h in {tmp_path / 'include'}: it comes with Python's development package"
    )


def _compiler(folder: Path, script: str) -> str:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").is_file(), reason="no Python.h here"
)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'speed.c:1: warning: odd' >&2; echo 'speed.c:2: error: no' >&2; exit 1",
            "error: no",
        ),
        ("echo 'first'; echo 'last' >&2; exit 3", "last"),
        ("exit 3", "'cc' ended with status 3"),
    ],
    ids=["the first error", "the last line", "nothing"],
)
def test_compiler_that_fails_is_quoted_in_one_line(
    fit: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    fit.setenv("CC", _compiler(tmp_path, script))

    with pytest.raises(native.NotCompiledError) as raised:
        native.build(tmp_path)

    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").is_file(), reason="no Python.h here"
)
def test_command_shows_all_that_the_compiler_said(
    fit: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit.setenv("CC", _compiler(tmp_path, "echo 'error: one'; echo '  here'; exit 1"))
    fit.setattr(sys, "argv", ["native", "--into", str(tmp_path)])

    assert native.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: one",
        "  here",
        "native: not compiled, the pure modules do the work: error: one",
    ]


def test_command_tells_why_and_fails(
    fit: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit.setattr(sys, "version_info", (3, 14, 0, "final", 0))
    fit.setattr(sys, "argv", ["native", "--into", str(tmp_path)])

    assert native.main() == 1
    assert capsys.readouterr().err == (
        "native: not compiled, the pure modules do the work: "
        "it is for Python 3.11 to 3.13, not 3.14\n"
    )
    assert list(tmp_path.iterdir()) == []

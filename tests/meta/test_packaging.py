"""What a user gets: the source archive builds alone, the wheel has all of the packages and no more,
and the compiled twin wherever this machine can compile it.

Everything is built from the unpacked source archive, with the build backend of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tools import native

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TWIN: Final = f"fibers/_speed{sysconfig.get_config_var('EXT_SUFFIX')}"
PACKAGES: Final = ("fibers", "streamengine", "turns")
PROGRAM_MODULE: Final = "fiberscope.py"
# What `make native` has left in a tree, of any Python.
STALE: Final = f"src/{TWIN}"

pytestmark = pytest.mark.slow
compiles = pytest.mark.skipif(
    native.unfit() is not None or shutil.which(native.compiler()[0]) is None,
    reason=f"nothing to compile with: {native.unfit() or native.compiler()[0]}",
)


def _said_by(*command: str, cwd: Path, **environment: str) -> str:
    """Both streams, of a process that must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=_outside() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _outside() -> dict[str, str]:
    """The environment of somebody who has no tree of ours."""
    ours = ("PYTHONPATH", "FIBERS_PURE", "CC", "COVERAGE_PROCESS_START")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _built(tree: Path, into: Path, target: str, **environment: str) -> tuple[Path, list[str]]:
    """What the backend made of a tree, and what it said of the twin."""
    said = _said_by(
        *(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)),
        cwd=tree,
        **environment,
    )
    (made,) = into.iterdir()
    return made, [line for line in said.splitlines() if line.startswith("fiberscope: ")]


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _files(tree: Path, below: Iterable[str]) -> set[str]:
    """Names relative to the tree, without what a run or a build has left."""
    left = ("__pycache__", ".so", ".pyc", "node_modules")
    paths = (path for name in below for path in (tree / name).rglob("*") if path.is_file())
    names = (path.relative_to(tree).as_posix() for path in paths)
    return {name for name in names if not any(each in name for each in left)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of this tree."""
    return _built(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")[0]


@pytest.fixture
def tree(archive: Path, tmp_path: Path) -> Path:
    """The unpacked source archive, as people copy it: no .gitignore, and `make native` was run."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    (unpacked / ".gitignore").unlink()
    (unpacked / STALE).write_text("of another time")
    return unpacked


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """Where a build puts its result."""
    return tmp_path / "dist"


def test_source_archive_has_what_its_own_suite_reads(archive: Path) -> None:
    """And what `make` needs; no file twice over, none of a build."""
    top = f"{archive.name.removesuffix('.tar.gz')}/"
    with tarfile.open(archive) as packed:
        names = {name.removeprefix(top) for name in packed.getnames()}

    parts = ("src", "tests", "tools", "bench", "docs", "examples", "requirements")
    alone = {"Makefile", "pyproject.toml", "hatch_build.py", "PKG-INFO", ".ci/run", ".gitignore"}
    texts = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"}
    here = {name for name in _files(ROOT, parts) if not name.startswith("bench/results/")}
    assert names == here | alone | texts


def test_wheel_has_the_packages_and_nothing_else(tree: Path, into: Path) -> None:
    wheel, _ = _built(tree, into, "wheel", FIBERS_PURE="1")

    assert _names(wheel) == _files(tree / "src", PACKAGES) | {PROGRAM_MODULE}
    assert {f"{package}/py.typed" for package in PACKAGES} <= _names(wheel)


@compiles
def test_wheel_has_the_twin_and_is_of_this_platform(tree: Path, into: Path) -> None:
    wheel, said = _built(tree, into, "wheel")

    assert said == [f"fiberscope: with the compiled twin, {Path(TWIN).name}"]
    assert _names(wheel) == _files(tree / "src", PACKAGES) | {PROGRAM_MODULE, TWIN}
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(TWIN) != (tree / STALE).read_bytes()
        about = next(name for name in archive.namelist() if name.endswith("/WHEEL"))
        settings = archive.read(about).decode()
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"Tag: {version}-{version}-" in settings
    assert "Root-Is-Purelib: false" in settings


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"FIBERS_PURE": "1"}, "FIBERS_PURE is set"),
        ({"CC": "no-such-compiler -pipe"}, "no C compiler: 'no-such-compiler' is not there"),
        ({"CC": "false"}, "'false' ended with status 1"),
    ],
    ids=["unwanted", "no compiler", "a compiler that fails"],
)
def test_wheel_is_pure_where_nothing_was_compiled(
    tree: Path, into: Path, environment: dict[str, str], why: str
) -> None:
    """One line says so, and why; the build succeeds."""
    if native.unfit() is not None and "FIBERS_PURE" not in environment:
        pytest.skip("no compiler is asked for")

    wheel, said = _built(tree, into, "wheel", **environment)

    assert said == [f"fiberscope: pure Python, without the compiled twin: {why}"]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not {name for name in _names(wheel) if name.endswith(".so")}


def test_editable_install_stays_pure(tree: Path, into: Path) -> None:
    wheel, said = _built(tree, into, "wheel:editable")

    assert said == []
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not {name for name in _names(wheel) if name.endswith(".so")}


PROGRAM: Final = """
import fibers, fibers.loop.native as native, streamengine, turns
print(fibers.__file__)
print(getattr(native.speed, "__file__", "pure"))
print(fibers.run(fibers.sleep(0).map(lambda _: "ran")))
"""


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_installed_wheel_is_used_outside_the_tree(tree: Path, into: Path, pure: bool) -> None:
    """In an environment of its own, with the dependencies of this one."""
    if not pure and native.unfit() is not None:
        pytest.skip(native.unfit() or "")
    if not pure and shutil.which(native.compiler()[0]) is None:
        pytest.skip("no C compiler here")
    wheel, _ = _built(tree, into, "wheel", **({"FIBERS_PURE": "1"} if pure else {}))
    home = tree.parent / "venv"
    python = home / "bin" / "python"
    _said_by(sys.executable, "-m", "venv", "--without-pip", str(home), cwd=tree.parent)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    install = (*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    _said_by(*install, cwd=tree.parent)
    (site,) = home.glob("lib/python*/site-packages")
    # As text: what is editable there stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    told = _said_by(str(python), "-W", "error", "-c", PROGRAM, cwd=tree.parent).splitlines()
    version = _said_by(str(home / "bin" / "fiberscope"), "--version", cwd=tree.parent)

    assert told[0] == str(site / "fibers" / "__init__.py")
    assert told[1] == ("pure" if pure else str(site / TWIN))
    assert told[2:] == ["ran"]
    assert version.startswith("fiberscope ")

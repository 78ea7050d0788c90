"""A folder: what is in it can be used, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turns.files.folder import MAX_ENTRIES, Folder
from turns.model.errors import TurnError

from .kit import scandir_beside_a_remover


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder; its neighbour `outside` holds a secret."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return tmp_path / "folder"


def uses(folder: Folder) -> list[Callable[[str], object]]:
    """All that can be done to a file."""

    def write(path: str) -> None:
        folder.write(path, b"x")

    return [folder.read, folder.remove, write]


def everywhere(tmp_path: Path) -> dict[str, str]:
    """All files below, by their path."""
    return {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_file_is_read_as_it_was_written(root: Path) -> None:
    folder = Folder(root)

    folder.write("a/b/c.txt", b"text")
    stored = folder.read("./a//b/c.txt")

    assert stored is not None
    assert stored.data == b"text"
    assert folder.read("a/b/d.txt") is None
    assert folder.read("x/y") is None


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "a\0b", "/etc/passwd", "..", "a/..", "../outside/secret"),
        *("a/../../outside/secret", "x" * 5000, "a/" * 100 + "b"),
    ],
)
def test_a_path_that_is_none_or_leads_out_is_refused(root: Path, path: str) -> None:
    folder = Folder(root)
    before = everywhere(root.parent)

    for use in uses(folder):
        with pytest.raises(TurnError) as refused:
            use(path)
        assert refused.value.kind in ("bad_path", "outside")

    assert everywhere(root.parent) == before


@pytest.mark.parametrize("place", ["last", "on the way", "inside"])
def test_no_link_is_followed(root: Path, place: str) -> None:
    folder = Folder(root)
    (root / "real").mkdir()
    (root / "real" / "secret").write_text("mine")
    target = {"last": "../outside/secret", "on the way": "../outside", "inside": "real"}[place]
    (root / "link").symlink_to(target)
    path = "link" if place == "last" else "link/secret"
    before = everywhere(root.parent)

    for use in uses(folder):
        with pytest.raises(TurnError, match="Links are never"):
            use(path)
    with pytest.raises(TurnError):
        folder.entries("link")

    assert everywhere(root.parent) == before


def test_a_directory_that_becomes_a_link_leads_nowhere(root: Path) -> None:
    folder = Folder(root)
    folder.write("d/secret", b"mine")
    (root / "d").rename(root / "e")
    (root / "d").symlink_to("../outside")

    with pytest.raises(TurnError):
        folder.write("d/secret", b"overwritten")

    assert (root.parent / "outside" / "secret").read_text() == "secret"


def test_a_hard_link_is_replaced_and_not_written_through(root: Path) -> None:
    os.link(root.parent / "outside" / "secret", root / "linked")

    Folder(root).write("linked", b"new")

    assert (root.parent / "outside" / "secret").read_text() == "secret"


def test_a_named_pipe_and_a_directory_are_no_files(root: Path) -> None:
    folder = Folder(root)
    os.mkfifo(root / "pipe")
    (root / "d").mkdir()

    for path in ("pipe", "d"):
        for use in uses(folder):
            with pytest.raises(TurnError) as refused:
                use(path)
            assert refused.value.kind == "unsafe_path"


def test_a_file_beyond_the_bound_is_refused_and_stays(root: Path) -> None:
    folder = Folder(root, max_file_bytes=4)
    folder.write("a", b"1234")
    (root / "big").write_bytes(b"12345")

    with pytest.raises(TurnError, match="has 5 bytes; at most 4"):
        folder.write("a", b"12345")
    with pytest.raises(TurnError, match="has 5 bytes; at most 4"):
        folder.read("big")

    assert (root / "a").read_bytes() == b"1234"


def test_a_write_keeps_the_mode_and_leaves_no_temp_file(root: Path) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)

    Folder(root).write("run.sh", b"new")

    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.listdir(root) == ["run.sh"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temp_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TurnError) as refused:
        Folder(root).write("a", b"new")

    assert refused.value.kind == "disk_full"
    assert {p.name: p.read_text() for p in root.iterdir()} == {"a": "old"}


def test_a_list_names_what_is_there_and_says_when_there_is_more(root: Path) -> None:
    folder = Folder(root)
    folder.write("b.txt", b"12")
    folder.write("a/x", b"")
    (root / "link").symlink_to("b.txt")

    entries, is_cut = folder.entries()
    for number in range(MAX_ENTRIES + 1):
        (root / "a" / str(number)).touch()

    assert [(e.name, e.kind) for e in entries] == [
        ("a", "directory"),
        ("b.txt", "file"),
        ("link", "link"),
    ]
    assert not is_cut
    many, is_cut = folder.entries("a")
    assert (len(many), is_cut) == (MAX_ENTRIES, True)


def test_a_folder_that_is_gone_or_a_link_is_told(root: Path) -> None:
    (root.parent / "way").symlink_to("folder")

    for where in (root / "gone", root.parent / "way"):
        with pytest.raises(TurnError):
            Folder(where).write("a", b"x")


def test_a_file_that_goes_while_its_directory_is_listed_is_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (root / name).write_text(name)
    monkeypatch.setattr(os, "scandir", scandir_beside_a_remover(root / "b"))

    entries, is_cut = Folder(root).entries()

    assert ([entry.name for entry in entries], is_cut) == (["a", "c"], False)

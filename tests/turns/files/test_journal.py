"""The undo journal: one step a turn, also over a crash, and never over somebody else's change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import turns.files.journal
from streamengine import HistoryError
from turns.files.folder import Folder
from turns.files.journal import KEPT_STEPS, UndoJournal
from turns.model.errors import TurnError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder, with a file in it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old.txt").write_text("as it was")
    return tmp_path / "folder"


def open_journal(root: Path) -> UndoJournal:
    """The journal of that folder, as a new process would open it."""
    return UndoJournal(root.parent / "state" / "undo", Folder(root), fsync="off")


def files(root: Path) -> dict[str, str]:
    """What is in the folder; directories end in a slash."""
    return {
        str(p.relative_to(root)) + "/" * p.is_dir(): "" if p.is_dir() else p.read_text()
        for p in root.rglob("*")
    }


@pytest.mark.spec("O11")
def test_the_changes_of_a_group_are_one_step(root: Path) -> None:
    journal = open_journal(root)
    (root / "old.txt").chmod(0o600)
    before = files(root)
    group = journal.begin("t1")
    group.write("old.txt", b"1")
    group.write("old.txt", b"2")
    group.edit("old.txt", "2", "three")
    group.write("new/deep/a.txt", b"a")
    group.write("gone.txt", b"x")
    group.remove("gone.txt")
    assert [group._end_if_active(), group._end_if_active()] == [True, False]
    assert files(root)["old.txt"] == "three"
    assert journal.steps() == ["t1"]

    undone = journal.undo()

    assert (undone.turn_id, set(undone.paths)) == ("t1", {"old.txt", "new/deep/a.txt", "gone.txt"})
    assert files(root) == before
    assert (root / "old.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(TurnError, match="nothing to undo"):
        journal.undo()


def test_steps_are_taken_back_the_newest_first_also_by_a_later_process(root: Path) -> None:
    journal = open_journal(root)
    for number in range(3):
        group = journal.begin(f"t{number}")
        group.write("old.txt", f"{number}".encode())
        group._end_if_active()

    said: list[str] = []
    for _ in range(3):
        said.append(open_journal(root).undo().turn_id)
        said.append((root / "old.txt").read_text())

    assert said == ["t2", "1", "t1", "0", "t0", "as it was"]


def test_a_group_that_a_crash_cut_off_can_be_undone(root: Path) -> None:
    group = open_journal(root).begin("t1")
    group.write("old.txt", b"new")  # and never ended

    assert open_journal(root).undo().turn_id == "t1"
    assert (root / "old.txt").read_text() == "as it was"


@pytest.mark.parametrize("cut", ["before the write", "in the line"])
def test_a_crash_around_a_line_loses_nothing(
    root: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(root)
    group = journal.begin("t1")
    group.write("a.txt", b"a")

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal.folder, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            group.write("old.txt", b"new")
    (name,) = os.listdir(root.parent / "state" / "undo")
    log = root.parent / "state" / "undo" / name
    if cut == "in the line":
        log.write_bytes(log.read_bytes()[:-10])

    open_journal(root).undo()

    assert files(root) == {"old.txt": "as it was"}


@pytest.mark.parametrize("kept_lines", [0, 1])
def test_a_group_that_a_crash_cut_off_before_its_first_change_is_no_step(
    root: Path, kept_lines: int
) -> None:
    journal = open_journal(root)
    for turn_id in ("t1", "t2"):
        group = journal.begin(turn_id)
        group.write("old.txt", turn_id.encode())
        group._end_if_active()
    (root / "old.txt").write_text("t1")
    log = root.parent / "state" / "undo" / "00000002.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:kept_lines]) + lines[kept_lines][:-5])

    assert open_journal(root).steps() == ["t1"]
    assert open_journal(root).undo().turn_id == "t1"
    assert files(root) == {"old.txt": "as it was"}


@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_file_that_somebody_else_changed_is_not_undone_nor_any_other(
    root: Path, change: str
) -> None:
    journal = open_journal(root)
    group = journal.begin("t1")
    group.write("a.txt", b"a")
    group.write("old.txt", b"new")
    group._end_if_active()
    if change == "written":
        (root / "old.txt").write_text("a person's")
    else:
        (root / "old.txt").unlink()
    before = files(root)

    with pytest.raises(TurnError, match=r"old\.txt was changed after the turn t1") as refused:
        journal.undo()

    assert refused.value.kind == "conflict"
    assert files(root) == before
    assert journal.steps() == ["t1"]


def test_an_undo_that_was_cut_off_is_finished_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(root)
    group = journal.begin("t1")
    for name in ("a", "b", "old.txt"):
        group.write(name, b"new")
    group._end_if_active()
    journal.folder.remove("a")  # as far as the cut one came

    journal.undo()

    assert files(root) == {"old.txt": "as it was"}


def test_an_undo_while_a_turn_writes_is_refused_and_the_group_can_take_itself_back(
    root: Path,
) -> None:
    journal = open_journal(root)
    group = journal.begin("t1")
    assert group.undo() is None
    group.write("old.txt", b"new")

    with pytest.raises(TurnError, match="still runs"):
        journal.undo()
    undone = group.undo()
    group.write("old.txt", b"again")
    group._end_if_active()

    assert undone is not None
    assert undone.paths == ("old.txt",)
    assert journal.steps() == ["t1"]
    journal.undo()
    assert files(root) == {"old.txt": "as it was"}


def test_after_its_end_a_group_changes_nothing(root: Path) -> None:
    group = open_journal(root).begin("t1")
    group._end_if_active()

    for change in (
        lambda: group.write("old.txt", b"late"),
        lambda: group.remove("old.txt"),
        lambda: group.edit("old.txt", "as", "if"),
        group.undo,
    ):
        with pytest.raises(TurnError, match="the turn t1 has ended"):
            change()

    assert files(root) == {"old.txt": "as it was"}
    assert not (root.parent / "state").exists()


@pytest.mark.parametrize(
    ("old", "kind"), [("nowhere", "not_found"), ("s", "ambiguous"), ("", "not_found")]
)
def test_an_edit_that_fits_not_exactly_once_changes_nothing(
    root: Path, old: str, kind: str
) -> None:
    group = open_journal(root).begin("t1")

    with pytest.raises(TurnError) as refused:
        group.edit("old.txt", old, "x")

    assert refused.value.kind == kind
    assert group.paths == ()


def test_a_step_that_is_none_is_named_and_keeps_the_others(root: Path) -> None:
    journal = open_journal(root)
    for number in range(2):
        group = journal.begin(f"t{number}")
        group.write("old.txt", f"{number}".encode())
        group._end_if_active()
    broken = root.parent / "state" / "undo" / "00000002.jsonl"
    broken.write_text('{"type": "begun"}\nnonsense\n')

    with capture_logs() as logs, pytest.raises(TurnError, match=r"00000002\.jsonl is no undo step"):
        journal.undo()
    with capture_logs():
        assert journal.steps() == ["t0"]
    broken.rename(root.parent / "aside")
    (root / "old.txt").write_text("0")

    assert [log["path"] for log in logs] == [str(broken)]
    assert journal.undo().turn_id == "t0"


def test_only_the_newest_steps_are_kept(root: Path) -> None:
    journal = open_journal(root)
    for number in range(KEPT_STEPS + 3):
        group = journal.begin(f"t{number}")
        group.write("old.txt", f"{number}".encode())
        group._end_if_active()

    assert journal.steps() == [f"t{number}" for number in range(3, KEPT_STEPS + 3)]


def test_a_turn_that_replaces_too_much_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns.files.journal, "MAX_GROUP_BYTES", 10)
    group = open_journal(root).begin("t1")
    group.write("old.txt", b"12345678901")
    (root / "b").write_text("b" * 5)

    with pytest.raises(TurnError, match="more than 10 bytes"):
        group.write("b", b"x")

    assert (root / "b").read_text() == "b" * 5


def test_without_a_journal_no_file_is_changed(root: Path) -> None:
    (root.parent / "state").mkdir()
    (root.parent / "state" / "undo").symlink_to(root.parent)
    group = open_journal(root).begin("t1")

    with pytest.raises(TurnError, match="journal") as refused:
        group.write("old.txt", b"new")

    assert refused.value.kind == "journal"
    assert files(root) == {"old.txt": "as it was"}


@pytest.mark.spec("O11")
def test_a_refused_second_change_of_a_file_leaves_the_step_undoable(root: Path) -> None:
    """Its line is in the journal, its content never came to be."""
    journal = UndoJournal(
        root.parent / "state" / "undo", Folder(root, max_file_bytes=100), fsync="off"
    )
    before = files(root)
    group = journal.begin("t1")
    group.write("old.txt", b"1")
    with pytest.raises(TurnError) as refused:
        group.write("old.txt", b"x" * 101)
    assert refused.value.kind == "too_large"
    assert files(root) == {"old.txt": "1"}
    group._end_if_active()

    assert journal.undo().paths == ("old.txt",)

    assert files(root) == before


@pytest.mark.spec("O11")
def test_a_group_whose_first_line_could_not_be_written_can_be_begun_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(root)
    before = files(root)
    group = journal.begin("t1")

    def full(_name: str, _line: object) -> None:
        raise HistoryError("disk_full", root, "no room", "Free some space.")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "_append", full)
        with pytest.raises(TurnError) as refused:
            group.write("old.txt", b"1")
    assert refused.value.kind == "journal"
    assert files(root) == before

    group.write("old.txt", b"2")
    group._end_if_active()

    assert journal.undo().turn_id == "t1"
    assert files(root) == before


@pytest.mark.spec("O11")
def test_a_file_whose_name_is_no_utf_8_can_be_undone(root: Path) -> None:
    journal = open_journal(root)
    before = files(root)
    group = journal.begin("t1")
    group.write("caf\udce9", b"1")
    assert os.path.exists(os.fsencode(root) + b"/caf\xe9")
    group._end_if_active()

    assert journal.undo().turn_id == "t1"

    assert files(root) == before

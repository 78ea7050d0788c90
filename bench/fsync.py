"""`python bench/fsync.py`: what each policy of waiting for the disk costs, beside the disk itself.

A bare write and fsync of the same bytes is measured in the same directory, alternating with the
history's own writes: that is what a policy can't be cheaper than. Wall-clock time, as waiting is
what it is about.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, get_args

if not __package__:
    # Run as a file, Python looks beside that file; the modules are named from the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from streamengine.history import FsyncPolicy
from streamengine.history.directory import Step
from streamengine.history.files import WorkspaceFiles
from streamengine.model import AssistantRow, RowMetadata, TextPart, UserRow

_ANSWER_WORDS: Final = 200
_WORDS_A_WRITE: Final = 25  # half a second at 50 tokens a second

_POLICIES: Final[tuple[FsyncPolicy, ...]] = get_args(FsyncPolicy)

_SYNCS: Final[frozenset[Step]] = frozenset(
    {"temp-synced", "append-synced", "file-synced", "directory-synced"}
)


class _Counter:
    """Counts the times that the disk was waited for."""

    def __init__(self) -> None:
        self.syncs = 0

    def __call__(self, step: Step) -> None:
        self.syncs += step in _SYNCS


def _word(n: int) -> TextPart:
    return TextPart(text=f"word{n} ", timestamp_ms=1_700_000_000_000 + n)


def _question(files: WorkspaceFiles, n: int) -> None:
    files.append_user(UserRow(id=f"u{n}", parts=(TextPart(text="a question"),)))


def _flush(files: WorkspaceFiles, n: int) -> None:
    """One throttled write of a running stream."""
    message_id = "a-flush"
    if n == 0:
        metadata = RowMetadata(history_sequence=files.reserve(message_id))
        files.write_partial(AssistantRow(id=message_id, parts=(_word(0),), metadata=metadata))
    files.append_partial(message_id, tuple(map(_word, range(_WORDS_A_WRITE))))


def _answer(files: WorkspaceFiles, n: int) -> None:
    """A whole answer: its partial, what was added to it, its row, the partial's end."""
    message_id = f"a{n}"
    words = tuple(map(_word, range(_ANSWER_WORDS)))
    metadata = RowMetadata(history_sequence=files.reserve(message_id))
    files.write_partial(AssistantRow(id=message_id, parts=words[:1], metadata=metadata))
    for at in range(1, _ANSWER_WORDS, _WORDS_A_WRITE):
        files.append_partial(message_id, words[at : at + _WORDS_A_WRITE])
    files.finalize(AssistantRow(id=message_id, parts=words, metadata=metadata))
    files.delete_partial_if_message_id(message_id)


_WORK: Final[dict[str, Callable[[WorkspaceFiles, int], None]]] = {
    "user row": _question,
    "throttled write of a stream": _flush,
    f"whole answer of {_ANSWER_WORDS} words": _answer,
}


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _bare_fsync(directory: Path) -> float:
    """A line added to a file of its own and waited for, without anything of ours."""
    handle = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, b"x" * 200 + b"\n")
        return _ms(lambda: os.fsync(handle))
    finally:
        os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/fsync.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each is done")
    parser.add_argument("--directory", type=Path, help="on the disk to measure, else the temp one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        _measure(Path(folder), arguments.rounds)


def _measure(folder: Path, rounds: int) -> None:
    bare: list[float] = []
    print(f"{'':32}{'policy':12}{'median ms':>10}{'p95 ms':>10}{'fsyncs':>8}")
    for name, work in _WORK.items():
        # All three in turn, so that a slow moment of the disk meets each of them.
        samples: dict[FsyncPolicy, list[float]] = {policy: [] for policy in _POLICIES}
        counters: dict[FsyncPolicy, _Counter] = {policy: _Counter() for policy in _POLICIES}
        places: dict[FsyncPolicy, WorkspaceFiles] = {
            policy: WorkspaceFiles(
                folder / f"{len(bare)}-{policy}",
                workspace_id="bench",
                fsync=policy,
                on_step=counters[policy],
            )
            for policy in _POLICIES
        }
        for n in range(rounds):
            bare.append(_bare_fsync(folder))
            for policy, files in places.items():
                samples[policy].append(_ms(partial(work, files, n)))
        for policy, times in samples.items():
            a_time = counters[policy].syncs / rounds
            print(f"{name:32}{policy:12}{_figures(times)}{a_time:8.1f}")
    print(f"{'one fsync of this disk':44}{_figures(bare)}")


def _figures(times_ms: list[float]) -> str:
    p95 = statistics.quantiles(times_ms, n=20)[-1]
    return f"{statistics.median(times_ms):10.3f}{p95:10.3f}"


if __name__ == "__main__":
    main()

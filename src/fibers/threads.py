"""The threads behind ``asyncio.to_thread``: none can be stopped, so waiting for them is bounded.

asyncio joins its default executor without a bound (3.11) or within five minutes (3.12+).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor


class BoundedThreads(ThreadPoolExecutor):
    """A loop's default executor that waits ``bound_seconds`` for its threads when it is shut down.

    What is queued then is dropped. A thread that is still busy is left, with one line on stderr
    that says where it is. It goes on; a process that ends by itself waits for it, as Python does.
    """

    def __init__(self, bound_seconds: float) -> None:
        self._bound_seconds = bound_seconds
        self._started: list[threading.Thread] = []
        super().__init__(thread_name_prefix="asyncio", initializer=self._note_thread)

    def _note_thread(self) -> None:
        self._started.append(threading.current_thread())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the base class's, but ``wait`` is bounded, and drops what is queued."""
        super().shutdown(wait=False, cancel_futures=cancel_futures or wait)
        if not wait:
            return
        until = time.monotonic() + self._bound_seconds
        for thread in self._started:
            thread.join(max(0.0, until - time.monotonic()))
        busy = [thread for thread in self._started if thread.is_alive()]
        if busy:
            lines = [f"{len(busy)} thread(s) still busy after {self._bound_seconds:g} s, left:"]
            lines.extend(f"  {line}" for line in _places_of(busy))
            print("\n".join(lines), file=sys.stderr)  # noqa: T201  # as in end_the_rest


def threads_waited_for() -> list[str]:
    """A line for each thread that the end of the process would wait for, and where it is."""
    here = (threading.main_thread(), threading.current_thread())
    return _places_of(t for t in threading.enumerate() if not t.daemon and t not in here)


def _places_of(threads: Iterable[threading.Thread]) -> list[str]:
    frames = sys._current_frames()
    lines: list[str] = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        at = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        lines.append(f"{thread.name}{at}")
    return lines

"""The threads behind ``asyncio.to_thread``: none can be stopped, so waiting for them is bounded.

asyncio joins its default executor without a bound (3.11) or within five minutes (3.12+).
"""

from __future__ import annotations

import sys
import threading
import time
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
            frames = sys._current_frames()
            lines = [f"{len(busy)} thread(s) still busy after {self._bound_seconds:g} s, left:"]
            for thread in busy:
                frame = frames.get(thread.ident or 0)
                at = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
                lines.append(f"  {thread.name}{at}")
            print("\n".join(lines), file=sys.stderr)  # noqa: T201  # as in end_the_rest

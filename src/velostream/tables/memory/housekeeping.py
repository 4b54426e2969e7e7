"""One thread for what no commit should wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Housekeeper:
    """Calls `work` in a thread of its own whenever it is woken, and again when `work` has asked for it.

    `work` gives the seconds after which it wants to be called again, or None. The thread begins with the first `wake`.
    """

    def __init__(self, work: Callable[[], float | None]) -> None:
        self._work = work
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def wake(self) -> None:
        self._woken.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="velostream-housekeeping", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """End the thread; returns once what it is doing is done."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._woken.wait(pause)
            self._woken.clear()
            if self._closed:
                return
            pause = self._work()

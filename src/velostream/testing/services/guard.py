"""Runs one server for a test process and ends it with that process, however that one ends.

A program of its own, started by `Service` with nothing but the standard library: a test process that is killed can't
clean up after itself, but its end of the pipe to this program's standard input closes. A line `stop` asks for an
orderly end and `kill` for a sudden one, both leaving the folder; a closed pipe means an orderly end and an empty disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_ORDERLY_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    order = json.loads(sys.argv[1])
    # Ctrl-C in a terminal reaches the whole foreground group; what it means for the server is the test process's say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _start(order)
    asked = threading.Event()

    def leave_with_server() -> None:
        server.wait()
        if not asked.is_set():
            os._exit(1)

    threading.Thread(target=leave_with_server, daemon=True).start()
    word = sys.stdin.readline().strip()
    asked.set()
    server.send_signal(order["crash_signal" if word == "kill" else "stop_signal"])
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_ORDERLY_END_SECONDS)
    # A server's own children may outlive it, or be all that is left of one that was killed.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if not word:
        shutil.rmtree(order["folder"], ignore_errors=True)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def end_with_guard() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    account = {"user": order["user"], "group": order["group"], "extra_groups": []} if "user" in order else {}
    with Path(order["log"]).open("ab") as log:
        return subprocess.Popen(  # noqa: S603
            order["command"],
            cwd=order["folder"],
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Runs after the change of user, which would undo it, and before this program has a second thread.
            preexec_fn=end_with_guard,  # noqa: PLW1509
            **account,
        )


if __name__ == "__main__":
    main()

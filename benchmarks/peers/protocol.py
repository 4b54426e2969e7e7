"""What a peer's process and the benchmark say to each other: `ready`, `begin`, `done`, one word per line.

A peer says `ready` once it is imported and started. It begins on the line `begin` and says `done` when the result is
written; it may be asked again, so that a peer is as warm in the rounds that count as everybody else. Whatever the
peer's libraries print goes to the log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

READY = "ready"
BEGIN = "begin"
DONE = "done"


def serve(run: Callable[[], None]) -> None:
    """Run as often as asked, until there is nobody to ask."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as channel:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        print(READY, file=channel)
        for line in sys.stdin:
            if line.strip() != BEGIN:
                raise ValueError(f"asked for {line!r}")
            run()
            print(DONE, file=channel)

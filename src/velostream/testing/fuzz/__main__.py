"""`python -m velostream.testing.fuzz --seeds 500`: play case by case, and show the smallest form of what fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from velostream.testing.fuzz.generate import generate
from velostream.testing.fuzz.player import Tally, play
from velostream.testing.fuzz.shrink import shrink
from velostream.testing.scenarios import spark_kept_running

_EVERY = 10
"""How many seeds pass between signs of life."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m velostream.testing.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--show", action="store_true", help="print the scripts and play nothing")
    parser.add_argument("--no-shrink", action="store_true", help="show what fails as it was drawn")
    given = parser.parse_args(arguments)
    tally, failed, began = Tally(), [], time.monotonic()
    with spark_kept_running():
        for seed in range(given.first, given.first + given.seeds):
            case = generate(seed)
            if given.show:
                sys.stdout.write(case.script + "\n\n")
                continue
            failure = play(case, tally)
            if failure is not None:
                failed.append(seed)
                sys.stdout.write(f"seed {seed} fails\n{failure if given.no_shrink else shrink(failure)}\n\n")
            elif seed % _EVERY == 0:
                sys.stdout.write(f"seed {seed} after {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(f"{given.seeds} seeds in {seconds:.0f} s: {tally}; failed: {failed or 'none'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

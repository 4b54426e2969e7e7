"""`python -m velostream.testing.fuzz --seeds 500`: play case by case, and show the smallest form of what fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from velostream.testing.fuzz.case import Case
from velostream.testing.fuzz.generate import generate, generate_lookups
from velostream.testing.fuzz.player import Tally, play
from velostream.testing.fuzz.shrink import shrink
from velostream.testing.scenarios import spark_kept_running

_KINDS: dict[str, Callable[[int], Case]] = {"views": generate, "lookups": generate_lookups}
"""What a seed gives a case of."""
_EVERY = 10
"""How many seeds pass between signs of life."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m velostream.testing.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--kind", choices=sorted(_KINDS), action="append", help="play these cases of each seed (all)")
    parser.add_argument("--show", action="store_true", help="print the scripts and play nothing")
    parser.add_argument("--no-shrink", action="store_true", help="show what fails as it was drawn")
    given = parser.parse_args(arguments)
    tally, failed, began = Tally(), [], time.monotonic()
    with spark_kept_running():
        for seed in range(given.first, given.first + given.seeds):
            for kind in given.kind or _KINDS:
                case = _KINDS[kind](seed)
                if given.show:
                    sys.stdout.write(case.script + "\n\n")
                    continue
                failure = play(case, tally)
                if failure is not None:
                    failed.append(f"{seed} of {kind}")
                    told = failure if given.no_shrink else shrink(failure)
                    sys.stdout.write(f"seed {seed} of {kind} fails\n{told}\n\n")
                elif seed % _EVERY == 0:
                    sys.stdout.write(f"seed {seed} of {kind} after {time.monotonic() - began:.0f} s\n")
                sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(f"{given.seeds} seeds in {seconds:.0f} s: {tally}; failed: {', '.join(failed) or 'none'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

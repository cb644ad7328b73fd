"""`python -m tests.fuzz [KIND...] --count N --seed S`: thousands of cases, a table of what became of them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.driver import Failure, Tally, fuzz

EXIT_FOUND, EXIT_INTERRUPTED = 1, 130
SHOWN = 12  # different failures of a kind
PATIENCE = 5.0  # seconds between lines where there is no terminal


def main() -> int:
    """Run what the command line asks for; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="of tests.fuzz.kinds, or MODULE:NAME")
    parser.add_argument("--count", type=int, default=1000, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="run this case, and print all about it")
    parser.add_argument("--seconds", type=float, default=40.0, help="that a call may take")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a case may need")
    parser.add_argument("--out", type=Path, help="folder to keep the files of failing cases in")
    given = parser.parse_args()
    kinds = given.kinds
    if not kinds or not all(":" in kind for kind in kinds):  # takes a while
        from tests.fuzz.kinds import KINDS

        unknown = [kind for kind in kinds if kind not in KINDS and ":" not in kind]
        if unknown:
            parser.error(f"no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
        kinds = kinds or list(KINDS)
    numbers = range(given.first, given.first + given.count)
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
    tallies: list[Tally] = []
    interrupted = False
    limits = {"seconds": given.seconds, "memory": given.memory << 20}
    try:
        for kind in kinds:
            tallies.append(Tally(kind, 0, 0, 0, [], 0.0, 0))
            last = 0.0
            for tally in fuzz(kind, numbers, given.seed, keep=given.out, **limits):
                tallies[-1] = tally
                if time.monotonic() - last > (0.2 if sys.stderr.isatty() else PATIENCE):
                    last = time.monotonic()
                    end = "\r" if sys.stderr.isatty() else "\n"
                    line = f"{kind}: {tally.tried} of {len(numbers)}, {len(tally.failures)} failures"
                    print(line, end=end, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    _print(tallies)
    for tally in tallies:
        _print_failures(tally.failures, whole=given.only is not None)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FOUND if any(tally.failures for tally in tallies) else 0


def _print(tallies: list[Tally]) -> None:
    counted = f"{'TRIED':>7} {'SUCCEEDED':>9} {'REFUSED':>8} {'FAILED':>7}"
    print(f"{'KIND':<12} {counted} {'SLOWEST':>8} {'LARGEST':>9}")
    for tally in tallies:
        counts = f"{tally.tried:>7} {tally.succeeded:>9} {tally.refused:>8} {len(tally.failures):>7}"
        print(f"{tally.kind:<12} {counts} {tally.slowest:>6.1f} s {tally.largest >> 20:>5} MiB")


def _print_failures(failures: list[Failure], whole: bool) -> None:
    """Print one of each sort of failure, the most frequent first."""
    sorts: dict[str, Failure] = {}
    counts: Counter[str] = Counter()
    for failure in failures:
        sort = re.sub(r"'.*|\d{3,}|\".*", "", failure.problems[0])[:140]
        counts[sort] += 1
        sorts.setdefault(sort, failure)
    for sort, count in counts.most_common(None if whole else SHOWN):
        failure = sorts[sort]
        print(f"\n{count} x {failure.command}\n  {failure.note[:300]!r}")
        print("\n".join(f"  {problem[:500]!a}" for problem in failure.problems[: 99 if whole else 3]))
        if whole:
            print(failure.details)
    if len(counts) > SHOWN and not whole:
        print(f"\n... and {len(counts) - SHOWN} other sorts")


if __name__ == "__main__":
    sys.exit(main())

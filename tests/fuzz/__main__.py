"""Fuzz on several numbers of ranks, one after the other.

    python tests/fuzz --minutes 5 --ranks 2,3,4,5

The time is shared among them. Exits with 1 when a program failed or hung; what it printed tells the
seed, and the program in its shortest form. mpiexec is the one beside the Python that runs this.
"""

import argparse
import os
import random
import re
import signal
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[0] = str(TESTS)  # as `python -m fuzz` has it, there

from launch import Launcher  # noqa: E402
from run import rank_counts  # noqa: E402

GRACE = 120.0
"""Seconds beyond its minutes that a run may take: to start, for its last program, and to shrink."""

GOOD = re.compile(r"^(\d+) programs, (\d+) calls, seed \d+, size \d+: no failure", re.MULTILINE)

SEEDS = 10**8


def fuzz(launcher: Launcher, ranks: int, seed: int, minutes: float) -> tuple[int, int] | None:
    """Run on some ranks; return how many programs and calls there were, or None on failure."""
    program = [sys.executable, "-W", "error", "-m", "fuzz.ranks"]
    program += ["--seed", str(seed), "--minutes", str(minutes)]
    done = launcher.run(
        ranks, program, 60 * minutes + GRACE, lambda line: print(line, end="", flush=True),
        TESTS.parent,
    )  # fmt: skip
    good = GOOD.search(done.output)
    if done.status or done.ended_by_us or not good:
        print(f"failed: status {done.status} {done.ended_by_us}".rstrip(), flush=True)
        return None
    return int(good[1]), int(good[2])


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=rank_counts, default=[2, 3, 4, 5], metavar="2,3,4,5")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all together")
    parser.add_argument("--seed", type=int, help="the first one (default: random)")
    parser.add_argument("--mpiexec", help="launcher to use (default: the one beside this Python)")
    args = parser.parse_args()
    # As an exception, so that what was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([known] if known else [])])
    launcher = Launcher.find(args.mpiexec)
    seed = random.SystemRandom().randrange(SEEDS) * 100 if args.seed is None else args.seed
    counts = [fuzz(launcher, ranks, seed, args.minutes / len(args.ranks)) for ranks in args.ranks]
    good = [count for count in counts if count is not None]
    programs, calls = (sum(count[k] for count in good) for k in (0, 1))
    failed = [str(r) for r, count in zip(args.ranks, counts, strict=True) if count is None]
    result = f"failure on {', '.join(failed)} ranks" if failed else "no failure"
    print(f"\n{programs} programs, {calls} calls, seed {seed}: {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

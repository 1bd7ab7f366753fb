"""Run all tests, first without and then with mpiexec, and close with one table.

    python tests/run.py                      # unit tests, then MPI tests on 1, 2, 3, 4, 5, 8 ranks
    python tests/run.py --only mpi --ranks 2,3 -k allreduce
    python tests/run.py --slow --mpiexec /opt/mpi/bin/mpiexec

Exits with 1 if a test failed, hung or died with its process, or if nothing ran. mpiexec is the one
beside the Python that runs this. The user's environment is handed on as it is, except for the
variables by which an outer launcher numbers its ranks (`launch.NESTED`).
"""

import argparse
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch import Finished, Launcher, run

TESTS = Path(__file__).resolve().parent
RANKS = (1, 2, 3, 4, 5, 8)

LIMIT = 1800.0
"""Seconds one row of the table may take: the last resort, since each test has its own limit."""

# pytest's last line: "2 failed, 3 passed in 0.12s", or "no tests ran in 0.01s".
CLOSING = re.compile(r"^=*\s*((?:\d+ [a-z]+(?: [a-z]+)?,? ?)+|no tests ran) in [\d.]+s\b.*$")
COUNT = re.compile(r"(\d+) ([a-z]+)")
ESCAPES = re.compile(r"\x1b\[[\d;]*[A-Za-z]|\0|\r")

COLUMNS = "{:>8}  {:>7}  {:>7}  {:>7}  {:>7}  {}"


@dataclass(frozen=True)
class Row:
    """What came of one pytest run."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    wrong: str
    """Why the run counts as failed, beyond failed tests; empty if it does not."""
    named: tuple[str, ...] = ()
    """The lines that name the failed tests."""

    @property
    def red(self) -> bool:
        """Whether anything is wrong with the run."""
        return bool(self.failed or self.wrong)


def read(name: str, finished: Finished, may_be_empty: bool) -> Row:
    """Judge a run by its closing lines, of which there must be one, and by how it ended."""
    lines = [ESCAPES.sub("", line).rstrip() for line in finished.output.split("\n")]
    closing = [match[1] for line in lines if (match := CLOSING.match(line))]
    counts: dict[str, int] = {}
    for number, word in COUNT.findall(closing[0] if closing else ""):
        counts[word.removesuffix("s")] = int(number)
    passed = counts.get("passed", 0) + counts.get("xfailed", 0)
    failed = counts.get("failed", 0) + counts.get("error", 0)
    wrong = ""
    if finished.ended_by_us:
        wrong = finished.ended_by_us
    elif not closing:
        wrong = f"ended without a report, status {finished.status}"
    elif len(closing) > 1:
        wrong = f"{len(closing)} reports in place of one"
    elif not passed and not failed:
        wrong = "" if may_be_empty and finished.status in (0, 5) else "ran no test"
    elif finished.status and not failed:
        wrong = f"ended with status {finished.status}"
    if wrong and not failed:
        failed = 1
    named = tuple(line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return Row(name, passed, failed, counts.get("skipped", 0), finished.seconds, wrong, named)


def show(rows: list[Row]) -> bool:
    """Print what failed, the table and the closing line; return whether all is well."""
    print()
    for row in rows:
        for line in row.named:
            print(f"{row.name:>8}  {line}")
    print("\n" + COLUMNS.format("ranks", "passed", "failed", "skipped", "seconds", ""))
    for row in rows:
        print(
            COLUMNS.format(
                row.name, row.passed, row.failed, row.skipped, f"{row.seconds:.1f}", row.wrong
            ).rstrip()
        )
    passed, failed, skipped = (
        sum(getattr(row, count) for row in rows) for count in ("passed", "failed", "skipped")
    )
    if not passed and not failed:
        print("no test ran")
        failed = 1
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return not failed and not any(row.red for row in rows)


def unit(python: list[str], options: list[str], emit: Callable[[str], None]) -> Finished:
    """Run what needs no mpiexec: unit tests, tests of the harness, examples in docstrings."""
    where = [str(TESTS / "unit"), str(TESTS / "harness")]
    where += ["--doctest-modules", str(TESTS.parent / "hpccoll")]
    env = Launcher("", "mpich").environment(1)
    return run([*python, *where, *options], env, LIMIT, emit, TESTS.parent)


def mpi(
    launcher: Launcher,
    ranks: int,
    python: list[str],
    options: list[str],
    emit: Callable[[str], None],
) -> Finished:
    """Run the MPI tests. Without pytest's cache: -k and --lf must mean the same on all ranks."""
    program = [*python, "--with-mpi", "-p", "no:cacheprovider", str(TESTS / "mpi"), *options]
    return launcher.run(ranks, program, LIMIT, emit, TESTS.parent)


def rank_counts(text: str) -> list[int]:
    """Read a list as 1,2,3."""
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=rank_counts, default=list(RANKS), metavar="1,2,3")
    parser.add_argument("--mpiexec", help="launcher to use (default: the one beside this Python)")
    parser.add_argument("--only", choices=("unit", "mpi"), help="run only these")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match")
    parser.add_argument("--slow", action="store_true", help="also run the tests marked slow")
    parser.add_argument("-v", action="store_true", help="name each test as it runs")
    args = parser.parse_args()

    options = [f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    options += ["-k", args.k] if args.k else []
    options += ["--slow"] if args.slow else []
    options += ["-v"] if args.v else []
    python = [sys.executable, "-m", "pytest"]
    rows = []
    # As an exception, so that what was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def emit(line: str) -> None:
        print(line, end="", flush=True)

    if args.only != "mpi":
        print("### without mpiexec", flush=True)
        rows.append(read("unit", unit(python, options, emit), bool(args.k)))
    if args.only != "unit":
        launcher = Launcher.find(args.mpiexec)
        for ranks in args.ranks:
            print(f"\n### {' '.join(launcher.command(ranks, ['...']))}", flush=True)
            finished = mpi(launcher, ranks, python, options, emit)
            rows.append(read(str(ranks), finished, bool(args.k)))
    return 0 if show(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run mpi4py's own tests of its buffer collectives on `hpccoll.Comm`.

    python tests/mpi4py_suite.py                  # on 1, 2, 3 and 4 ranks
    python tests/mpi4py_suite.py --ranks 3 -k testAllgather
    python tests/mpi4py_suite.py --plain          # on mpi4py's communicators, to compare

The tests are those of the installed mpi4py's version: pip fetches its sdist into build/, once.
Exits with 1 if a test failed on any rank, hung or died with its process, if nothing ran, or if a
test of `EXCEPTIONS` passed.
"""

import argparse
import collections
import faulthandler
import functools
import importlib
import itertools
import signal
import subprocess
import sys
import tarfile
import unittest
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launch import Launcher
from run import LIMIT, TESTS, rank_counts

RANKS = (1, 2, 3, 4)

MODULES = (
    "test_cco_buf",
    "test_cco_nb_buf",
    "test_cco_pr_buf",
    "test_cco_vec",
    "test_cco_nb_vec",
    "test_cco_pr_vec",
)

EXCEPTIONS: dict[str, str] = {}
"""Tests that may fail, as "module.class.test", each with one sentence why."""

TEST_LIMIT = 120.0
"""Seconds that one test may take."""


def fetched() -> Path:
    """Return the folder of mpi4py's tests; fetch it if this is the first time."""
    name = f"mpi4py-{version('mpi4py')}"
    home = TESTS.parent / "build" / name
    folder = home / name / "test"
    if not folder.is_dir():
        # Without isolation: pip builds no more of it than its metadata, with what is installed.
        options = "--quiet --disable-pip-version-check --no-deps --no-build-isolation"
        command = [sys.executable, "-m", "pip", "download", *options.split()]
        command += ["--no-binary", "mpi4py", "--dest", str(home), name.replace("-", "==")]
        subprocess.run(command, check=True)
        with tarfile.open(home / f"{name}.tar.gz") as archive:
            inside = [m for m in archive if m.isfile() and m.name.startswith(f"{name}/test/")]
            archive.extractall(home, inside, filter="data")
    return folder


# -- on a rank -------------------------------------------------------------------------------------


def count_calls(calls: "collections.Counter[str]") -> None:
    """Have all instances of `hpccoll.Comm` count who runs their collectives."""
    import hpccoll
    from hpccoll import requests, specs

    ours = (requests.Request, requests.PersistentRequest)

    def counting(method: Any, blocking: bool) -> Any:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            result = method(self, *arguments, **named)
            native = self.last_call.path == "native" if blocking else not isinstance(result, ours)
            calls["native" if native else "hpccoll"] += 1
            return result

        return call

    for name in specs.COLLECTIVES:
        for door in (name, f"I{name.lower()}", f"{name}_init"):
            setattr(hpccoll.Comm, door, counting(getattr(hpccoll.Comm, door), door == name))


def put_in(case: type[unittest.TestCase]) -> None:
    """Have a class of tests use `hpccoll.Comm` where it would use mpi4py's communicators."""
    import hpccoll

    own = vars(case)
    if "COMM" in own:
        case.COMM = hpccoll.Comm(own["COMM"])  # type: ignore[attr-defined]
    if "setUp" in own:

        def set_up(self: Any, theirs: Any = own["setUp"]) -> None:
            theirs(self)
            self.COMM = hpccoll.Comm(self.COMM)

        case.setUp = set_up  # type: ignore[method-assign]


def mend_dlpack(double: Any) -> None:
    """Have mpi4py's stand-in for a DLPack library keep its tensors.

    It frees them with the capsule, which mpi4py holds on to and NumPy, as the protocol has it, not.
    """
    make, kept = double.make_py_capsule, []

    def keeping(managed: Any, owned: bool = True) -> Any:
        kept.append(managed)
        return make(managed, owned=False)

    double.make_py_capsule = keeping


def leave_out_disguises(arrays: Any) -> None:
    """Take host memory that says it lies on a GPU out of mpi4py's kinds of arrays.

    mpi4py passes any address on. hpccoll asks the CUDA driver, and refuses what is no device
    memory; how it treats what is, is tested by tests/mpi/test_cuda.py.
    """
    kinds = arrays.ArrayBackends
    kinds[:] = [kind for kind in kinds if not issubclass(kind, arrays.BaseFakeGPUArray)]


def cases(folder: str, plain: bool) -> list[unittest.TestCase]:
    """Return mpi4py's tests."""
    sys.path.insert(0, folder)
    mend_dlpack(importlib.import_module("dlpackimpl"))
    if not plain:
        leave_out_disguises(importlib.import_module("arrayimpl"))
    modules = [importlib.import_module(name) for name in MODULES]
    for value in itertools.chain.from_iterable(vars(module).values() for module in modules):
        is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
        if is_case and value.__module__ in MODULES and not plain:
            put_in(value)
    loader = unittest.TestLoader()
    suites: Any = [loader.loadTestsFromModule(module) for module in modules]
    return [test for suite in suites for case in suite for test in case]


def on_rank(folder: str, words: list[str], plain: bool) -> int:
    """Run the tests on this rank; ranks agree on each, so that a failure on one is one on all."""
    from mpi4py import MPI

    faulthandler.enable()
    calls: collections.Counter[str] = collections.Counter()
    count_calls(calls)
    world = MPI.COMM_WORLD.Dup()
    tests = [test for test in cases(folder, plain) if all(word in test.id() for word in words)]
    ran = skipped = excepted = red = 0
    for test in tests:
        # A rank that waits for one that failed ends here, and all the others with it.
        faulthandler.dump_traceback_later(TEST_LIMIT, exit=True)
        result = unittest.TestResult()
        test.run(result)
        wrong = [text for _, text in result.failures + result.errors]
        known = test.id() in EXCEPTIONS and not plain
        if wrong and not known:
            place = f"[rank {world.rank} of {world.size}]"
            print(f"FAILED {test.id()} {place}\n{wrong[0]}", flush=True)
        failed = world.allreduce(len(wrong))
        if result.skipped:
            skipped += 1
            continue
        ran += 1
        excepted += known and failed > 0
        red += known != (failed > 0)
        if known and not failed and world.rank == 0:
            print(f"STALE {test.id()} passes; wanted no exception for it", flush=True)
    faulthandler.cancel_dump_traceback_later()
    if not ran or not (plain or calls["hpccoll"]):
        red += 1
    if world.rank == 0:
        print(
            f"ranks {world.size}: {ran} tests run, {red} red, {skipped} skipped by mpi4py, "
            f"{excepted} exceptions; calls of rank 0: {calls['hpccoll']} through hpccoll, "
            f"{calls['native']} native",
            flush=True,
        )
    return 1 if red else 0


# -- outside ---------------------------------------------------------------------------------------


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=rank_counts, default=list(RANKS), metavar="1,2,3")
    parser.add_argument("--mpiexec", help="launcher to use (default: the one beside this Python)")
    parser.add_argument("-k", metavar="WORD", action="append", default=[], help="only such tests")
    parser.add_argument("--plain", action="store_true", help="on mpi4py's communicators")
    parser.add_argument("--on-rank", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        return on_rank(args.on_rank, args.k, args.plain)

    # As an exception, so that what was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    launcher = Launcher.find(args.mpiexec)
    program = [sys.executable, __file__, "--on-rank", str(fetched()), *sys.argv[1:]]
    red = 0
    for ranks in args.ranks:
        finished = launcher.run(ranks, program, LIMIT, lambda line: print(line, end="", flush=True))
        reported = f"ranks {ranks}: " in finished.output
        if finished.status or finished.ended_by_us or not reported:
            red += 1
            why = finished.ended_by_us or f"status {finished.status}"
            print(f"ranks {ranks}: FAILED, {why}{'' if reported else ', no report'}", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())

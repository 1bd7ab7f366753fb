"""Makes one pytest run out of the runs of all ranks under mpiexec.

Every rank runs the same tests in the same order. After each phase of a test (setup, call,
teardown) the ranks tell one another how it went, so that

* a test that failed on one rank has failed on all, and no rank goes on to a test, or into a
  teardown, that the others will not enter;
* rank 0, the only one that reports, shows the traceback of the rank that failed;
* a test that only some ranks skip is a failure.

Nothing here can hang for good: a `Watchdog` is armed from the start of the session to the end of
the process. What the ranks say travels on a duplicate of COMM_WORLD, out of the tests' way.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Generator, Hashable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hang_watchdog import Watchdog
from mpi4py import MPI

KINDS = ("passed", "skipped", "xfailed", "failed", "ended")
"""What a rank says of a phase of a test; the last: it has left the session and will not come."""

PATIENCE = 5.0
"""A rank that failed waits for the others at most this long before it shows its own failure.

Where the others hang, as in a collective that the failed rank never entered, this is what tells
the reason. It is cut to half the time limit of the test where that is less.
"""

GIVE_UP = 30.0
"""A rank that failed calls the run off when the others have not come for this long."""

SESSION_LIMIT = 120.0
"""Seconds for what is not a test: collection, the report, MPI_Finalize."""

SHOWN = 3
"""How many different failures of one test are shown in full; of the others, the last line."""


class RankFailures:
    """What pytest prints for a failed test: the failures of the ranks, each with its ranks."""

    def __init__(self, failures: list[tuple[str, Any]]) -> None:
        self._failures = failures
        title, longrepr = failures[0]
        # Makes the rank part of the line in the short summary.
        self.reprcrash = getattr(longrepr, "reprcrash", None) or SimpleNamespace(message=longrepr)
        self.reprcrash.message = f"{title} {self.reprcrash.message}"

    def __str__(self) -> str:
        return "\n".join(f"{title}\n{longrepr}" for title, longrepr in self._failures)

    def toterminal(self, writer: Any) -> None:
        """Print; pytest calls this."""
        for title, longrepr in self._failures[:SHOWN]:
            writer.line(title, bold=True)
            if hasattr(longrepr, "toterminal"):
                longrepr.toterminal(writer)
            else:
                writer.line(str(longrepr))
        for title, longrepr in self._failures[SHOWN:]:
            lines = str(longrepr).strip().splitlines()
            writer.line(f"{title} {lines[-1] if lines else ''}")


class MpiSession:
    """The pytest plugin of one rank; registered by conftest.py under ``--with-mpi``."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.limit = float(config.getini("faulthandler_timeout") or 60)
        # A copy of the real standard error: no test runs yet, so pytest captures nothing now.
        self.watchdog = Watchdog(f"[rank {self.rank} of {self.size}]", os.dup(2), self._flag())
        self.watchdog.arm(SESSION_LIMIT, "collection")
        self.collect_errors: list[str] = []
        self.ran = 0
        self._over = False
        # Not needed by tests that use hypothesis; to print its summary it would import hypothesis
        # on every rank, which takes longer than most of our tests.
        config.pluginmanager.unregister(name="hypothesispytest")
        self._devnull = open(os.devnull, "w") if self.rank else None  # noqa: SIM115, PTH123
        if self.rank:
            self._report_to(self._devnull)

    def _flag(self) -> memoryview:
        """Return a byte that all ranks of this node share; it is in a file without a name."""
        path = ""
        if self.rank == 0:
            descriptor, path = tempfile.mkstemp(prefix="hpccoll-tests-")
            os.write(descriptor, bytes(1))
            os.close(descriptor)
        path = self.comm.bcast(path)
        try:
            with Path(path).open("r+b") as file:
                flag = memoryview(mmap.mmap(file.fileno(), 1))
        except OSError:  # a rank on another node has only its time limit
            flag = memoryview(bytearray(1))
        self.comm.Barrier()
        if self.rank == 0:
            Path(path).unlink()
        return flag

    # One report ---------------------------------------------------------------------------------

    def _report_to(self, file: Any) -> None:
        """Give this rank a reporter that nobody sees.

        The plugin manager must not lack one: the explanation of a failed comparison, for
        instance, is made with the reporter's colours.
        """
        plugins = self.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(pytest.TerminalReporter(self.config, file), "terminalreporter")
        # As pytest-xdist marks its workers: pytest then leaves the cache and the junit file alone.
        self.config.workerinput = {"rank": self.rank}  # type: ignore[attr-defined]

    def pytest_report_header(self) -> str:
        """Name the number of ranks and the MPI library."""
        library = MPI.Get_library_version().replace("\0", "").split("\n")[0].split(",")[0]
        return f"mpi: {self.size} rank{'s' * (self.size > 1)}, {' '.join(library.split())}"

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Let nobody miss an error of the harness on a rank that does not report."""
        if self.rank:
            self.watchdog.write(f"internal error\n{excrepr}")

    # Same tests everywhere ----------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember what could not be collected."""
        if report.failed:
            self.collect_errors.append(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Stop before the first test where the ranks do not have the same tests to run."""
        names = [item.nodeid for item in session.items]
        self._wait_for_all("passed", "has collected its tests and waits for the other ranks")
        everyone = self.comm.allgather((names, self.collect_errors))
        if all(other == everyone[0] for other in everyone):
            return
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        for rank, (theirs, errors) in enumerate(everyone):
            for error in errors:
                reporter.write_line(f"[rank {rank} of {self.size}] could not collect:\n{error}")
            odd = sorted(set(theirs) ^ set(everyone[0][0]))
            if odd:
                reporter.write_line(
                    f"[rank {rank} of {self.size}] collected {len(theirs)} tests and rank 0 "
                    f"{len(everyone[0][0])}; they differ in {', '.join(odd[:5])}"
                )
        raise session.Interrupted("the ranks did not collect the same tests in the same order")

    # Same outcome everywhere --------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start the time limit of a test."""
        self.watchdog.arm(time_limit(item, self.limit), item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Make the outcome of each phase the same on all ranks."""
        report = yield
        kind = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        failure = f"{item.nodeid} failed on this rank:\n{report.longrepr}" if report.failed else ""
        patience = min(PATIENCE, GIVE_UP / 2, time_limit(item, self.limit) / 2)
        doing = f"has finished its {report.when} ({kind}) and waits for the other ranks"
        kinds = self._wait_for_all(kind, doing, failure, patience)
        if "failed" in kinds or len(set(kinds)) > 1:
            self._fail(report, kinds)
        return report

    def _wait_for_all(
        self, kind: str, doing: str, failure: str = "", patience: float = PATIENCE
    ) -> list[str]:
        """Exchange one word with all ranks; afterwards all of them are known to be here.

        Polled, not blocking: a waiting rank leaves its core to the others, and shows a failure of
        its own when the others do not come.
        """
        codes = bytearray(self.size)
        request = self.comm.Iallgather(bytearray([KINDS.index(kind)]), codes)
        started, polls = time.monotonic(), 0
        failed = bool(failure)
        with self.watchdog.waiting(doing):
            while not request.Test():
                polls += 1
                if polls < 200:
                    os.sched_yield()
                else:
                    time.sleep(0.0005)
                waited = time.monotonic() - started
                if failed and waited > GIVE_UP:
                    self.watchdog.call_off()
                if failure and waited > patience:
                    self.watchdog.write(f"waits for the other ranks; {failure}")
                    failure = ""
        kinds = [KINDS[other] for other in codes]
        if "ended" in kinds and kind != "ended":
            self._over = True
            gone = [rank for rank, other in enumerate(kinds) if other == "ended"]
            pytest.exit(f"{self._title(gone)} left the session early", pytest.ExitCode.TESTS_FAILED)
        return kinds

    def _fail(self, report: pytest.TestReport, kinds: list[str]) -> None:
        """Turn the report of this rank into the failure of all ranks."""
        hook = self.config.hook
        mine = None
        if report.failed:
            mine = hook.pytest_report_to_serializable(config=self.config, report=report)
        failed: dict[int, pytest.TestReport] = {
            rank: hook.pytest_report_from_serializable(config=self.config, data=data)
            for rank, data in enumerate(self.comm.allgather(mine))
            if data is not None
        }
        same = {rank: str(other.longrepr) for rank, other in failed.items()}
        failures: list[tuple[str, Any]] = [
            (self._title(ranks), failed[ranks[0]].longrepr) for ranks in _grouped(same)
        ]
        if not failures:
            outcomes = _grouped(dict(enumerate(kinds)))
            parts = [f"{kinds[ranks[0]]} on {self._title(ranks)}" for ranks in outcomes]
            failures = [("the ranks disagree:", ", ".join(parts))]
        sections = [
            (f"{name} {self._title([rank])}", text)
            for rank, other in list(failed.items())[:SHOWN]
            for name, text in other.sections
        ]
        report.outcome = "failed"
        report.longrepr = RankFailures(failures)  # type: ignore[assignment]
        report.sections = sections or report.sections
        if hasattr(report, "wasxfail"):
            del report.wasxfail

    def _title(self, ranks: list[int]) -> str:
        plural = "s" if len(ranks) > 1 else ""
        return f"[rank{plural} {', '.join(map(str, ranks))} of {self.size}]"

    # The end ------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the MPI tests that really ran."""
        skipped = report.skipped and not hasattr(report, "wasxfail")
        self.ran += report.when == "call" and "mpi" in report.keywords and not skipped

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Call a run that ran nothing a failure."""
        self.watchdog.arm(SESSION_LIMIT, "the end of the session")
        if exitstatus == pytest.ExitCode.OK and not self.ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say so."""
        if not self.ran:
            terminalreporter.write_line(f"no MPI test ran on {self.size} ranks", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Leave together: some launchers kill all ranks when one has ended with an error.

        The watchdog stays armed, for MPI_Finalize may hang as well.
        """
        self.watchdog.arm(SESSION_LIMIT, "the end of the process")
        if not self._over:
            self._wait_for_all("ended", "has ended and waits for the other ranks")
        if self._devnull is not None:
            self._devnull.close()


def time_limit(item: pytest.Item, default: float) -> float:
    """Return the seconds a test may take: those of its ``limit`` marker, or the default."""
    mark = item.get_closest_marker("limit")
    return float(mark.args[0]) if mark else default


def _grouped(values: dict[int, Hashable]) -> list[list[int]]:
    """Return the ranks that share a value together, in the order of the first of them."""
    groups: dict[Hashable, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return list(groups.values())

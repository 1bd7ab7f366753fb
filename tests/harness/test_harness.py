"""The harness tells the truth: small planted suites under mpiexec, most of which must fail."""

import contextlib
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import Finished, Launcher
from run import read

TESTS = Path(__file__).resolve().parents[1]
CLOSING = re.compile(r"^=* ?(?:\d+ \w+|no tests ran).* in [\d.]+s", re.MULTILINE)

HEAD = """\
import os, signal, time
import pytest
from mpi4py import MPI

comm = MPI.COMM_WORLD
"""

try:
    LAUNCHER = Launcher.find()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)


class Suite:
    """A folder with one test file, run with the conftest and the settings of this project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())

    def run(self, body: str, ranks: int = 2, limit: float = 20) -> Finished:
        """Run the tests in `body` on some ranks; each has `limit` seconds."""
        (self.folder / "test_planted.py").write_text(HEAD + body)
        settings = ["-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(self.folder)]
        settings += ["-o", f"faulthandler_timeout={limit}", "-p", "no:cacheprovider", "--color=no"]
        program = [sys.executable, "-m", "pytest", "--with-mpi", *settings, "test_planted.py"]
        return LAUNCHER.run(ranks, program, limit=50, cwd=self.folder)


@pytest.fixture
def suite(tmp_path):
    return Suite(tmp_path)


def is_red(finished, wrong=""):
    """Whether the run counts as failed for the caller of mpiexec and for the table of run.py."""
    row = read("planted", finished, may_be_empty=False)
    return finished.status != 0 and row.red and wrong in row.wrong


def test_a_good_suite_passes_with_one_report(suite):
    done = suite.run(
        """
@pytest.mark.mpi
def test_sum():
    assert comm.allreduce(1) == comm.size

@pytest.mark.mpi(min_size=3)
def test_of_three(): pass

@pytest.mark.mpi(min_size=4)
def test_of_four(): pass

@pytest.mark.mpi
@pytest.mark.xfail(strict=True)
def test_known_bug():
    assert comm.size == 0

@pytest.mark.mpi
@pytest.mark.slow
def test_slow(): pass
""",
        ranks=3,
    )
    assert done.status == 0, done.output
    assert len(CLOSING.findall(done.output)) == 1
    assert "mpi: 3 ranks" in done.output
    row = read("planted", done, may_be_empty=False)
    assert (row.passed, row.failed, row.skipped, row.wrong) == (3, 0, 1, "")


def test_a_failure_on_one_rank_fails_all_and_shows_its_traceback(suite):
    done = suite.run(
        """
@pytest.fixture
def broken_teardown():
    yield
    assert comm.rank != 2, "broken on rank 2"

@pytest.mark.mpi
def test_one_rank_fails():
    print("said by", comm.rank)
    if comm.rank == 1:
        value = 2
        assert value == 3

@pytest.mark.mpi
def test_runs_on_all_ranks_afterwards():
    comm.Barrier()

@pytest.mark.mpi
def test_skipped_by_one_rank():
    if comm.rank == 0:
        pytest.skip("no time")

@pytest.mark.mpi
def test_teardown(broken_teardown): pass
""",
        ranks=3,
    )
    assert is_red(done)
    assert len(CLOSING.findall(done.output)) == 1
    assert re.search(r"2 failed, 2 passed, 1 error in", done.output), done.output
    assert "[rank 1 of 3]" in done.output
    assert re.search(r"^E +assert 2 == 3$", done.output, re.MULTILINE)
    assert re.search(r"Captured stdout call \[rank 1 of 3\] -+\nsaid by 1\n", done.output)
    assert "FAILED test_planted.py::test_one_rank_fails - [rank 1 of 3]" in done.output
    assert "skipped on [rank 0 of 3], passed on [ranks 1, 2 of 3]" in done.output
    assert "AssertionError: broken on rank 2" in done.output


def test_a_hang_ends_and_every_rank_says_where_it_stands(suite):
    done = suite.run(
        """
@pytest.mark.mpi
def test_one_rank_fails_before_a_barrier():
    assert comm.rank != 1, "the reason for it all"
    comm.Barrier()  # never entered by rank 1
""",
        ranks=3,
        limit=3,
    )
    assert is_red(done, "without a report")
    assert done.seconds < 20
    assert not done.ended_by_us
    for rank in (0, 2):
        stands = rf"\[rank {rank} of 3\] time limit of 3 s .*: this rank stands at\n(?:  .*\n)*"
        said = re.search(stands, done.output)
        assert said, done.output
        assert "comm.Barrier()  # never entered by rank 1" in said[0]
    assert "[rank 1 of 3] waits for the other ranks" in done.output
    assert "AssertionError: the reason for it all" in done.output


def test_a_run_is_called_off_when_a_failed_rank_waits_in_vain(suite):
    """A long time limit is then not waited for."""
    done = suite.run(
        """
import mpi_session
mpi_session.GIVE_UP = 2

@pytest.mark.mpi
def test_one_rank_fails_before_a_barrier():
    assert comm.rank != 0, "the reason for it all"
    comm.Barrier()
""",
        limit=100,
    )
    assert is_red(done, "without a report")
    assert done.seconds < 30
    assert "[rank 1 of 2] the run is called off" in done.output
    assert "AssertionError: the reason for it all" in done.output


def test_a_hang_inside_compiled_code_ends(suite):
    """No Python thread can run in that rank: the code holds the interpreter's lock."""
    done = suite.run(
        """
@pytest.mark.mpi
@pytest.mark.limit(2)
def test_holds_the_interpreter():
    import ctypes
    if comm.rank == 1:
        ctypes.PyDLL(None).sleep(60)
"""
    )
    assert is_red(done, "without a report")
    assert done.seconds < 20
    assert "in test_holds_the_interpreter" in done.output
    assert "[rank 0 of 2] time limit of 2 s reached" in done.output


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_rank_that_dies_fails_the_run(suite, end):
    done = suite.run(
        f"""
@pytest.mark.mpi
def test_dies():
    if comm.rank == 1:
        {end}
    comm.Barrier()
"""
    )
    # MPICH's mpiexec itself may end with 0 here: the table of run.py counts, which wants a report.
    row = read("planted", done, may_be_empty=False)
    assert row.red
    assert "without a report" in row.wrong


def test_a_rank_that_leaves_the_session_ends_it(suite):
    done = suite.run(
        """
@pytest.mark.mpi
def test_leaves():
    if comm.rank == 1:
        pytest.exit("enough")
"""
    )
    assert is_red(done)
    assert "[rank 1 of 2] left the session early" in done.output


def test_ranks_that_collect_different_tests_do_not_start(suite):
    done = suite.run(
        """
if comm.rank == 1:
    import no_such_module

@pytest.mark.mpi
def test_never_runs(): comm.Barrier()
"""
    )
    assert is_red(done)
    assert "[rank 1 of 2] could not collect" in done.output
    assert "No module named 'no_such_module'" in done.output
    assert "did not collect the same tests" in done.output


def test_a_run_without_an_mpi_test_is_red(suite):
    done = suite.run(
        """
def test_unmarked(): pass

@pytest.mark.mpi(min_size=64)
def test_of_many_ranks(): pass
"""
    )
    assert done.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no MPI test ran on 2 ranks" in done.output


def test_a_misspelled_marker_is_an_error(suite):
    """pytest-mpi would run the first test on any number of ranks, and the second on none."""
    done = suite.run(
        """
@pytest.mark.mpi(minsize=2)
def test_word(): pass

@pytest.mark.mpi(2)
def test_no_word(): pass

@pytest.mark.limit(seconds=2)
def test_limit(): pass
"""
    )
    assert is_red(done)
    for name, message in [
        ("word", "pytest.mark.mpi(min_size=N)"),
        ("no_word", "pytest.mark.mpi(min_size=N)"),
        ("limit", "pytest.mark.limit(SECONDS)"),
    ]:
        assert done.output.count(f"ERROR: test_planted.py::test_{name}: write pytest.mark.") == 1
        assert message in done.output


def test_an_mpiexec_of_another_library_is_noticed(suite, monkeypatch):
    """It would start so many separate programs of one rank each, and all would pass."""
    monkeypatch.setattr(Launcher, "command", lambda self, ranks, program: list(program))
    done = suite.run("@pytest.mark.mpi\ndef test_alone(): assert comm.size == 1", ranks=2)
    assert is_red(done)
    assert "mpiexec was to start 2 ranks, and MPI counts 1" in done.output


def test_a_launch_past_its_limit_ends_with_all_its_processes():
    script = "import subprocess; subprocess.Popen(['sleep', '61'], start_new_session=True).wait()"
    done = LAUNCHER.run(2, [sys.executable, "-c", script], limit=2)
    assert done.ended_by_us == "ended after 2 s"
    assert done.seconds < 15
    assert read("planted", done, may_be_empty=False).red


def test_a_launch_ends_with_the_process_that_made_it():
    """As run.py does: a signal that asks for the end becomes an exception."""
    naptime = f"61.{random.randrange(10**9)}"
    script = f"""
import signal, sys
sys.path.insert(0, {str(TESTS)!r})
from launch import Launcher
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
Launcher.find().run(2, ["sleep", {naptime!r}], limit=50)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        wait_until(lambda: naps(naptime))
        process.terminate()
        assert process.wait(timeout=30) == 3
    assert not naps(naptime)


def naps(naptime):
    """Return the processes that sleep for just that time."""
    wanted = f"sleep\0{naptime}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [entry] if entry.read_bytes() == wanted else []
    return found


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def finished(output, status=0):
    return Finished(status, output, seconds=1.0)


@pytest.mark.parametrize(
    ("output", "status", "counts", "wrong"),
    [
        ("==== 3 passed, 2 skipped in 0.1s ====", 0, (3, 0, 2), ""),
        ("3 passed, 1 deselected, 1 xfailed in 61.12s (0:01:01)", 0, (4, 0, 0), ""),
        ("\x1b[32m\x1b[1m3 passed\x1b[0m\x1b[32m in 0.1s\x1b[0m\r", 0, (3, 0, 0), ""),
        ("1 failed, 3 passed, 2 errors in 1s", 1, (3, 3, 0), ""),
        ("2 skipped in 0.1s", 0, (0, 1, 2), "ran no test"),
        ("no tests ran in 0.1s", 5, (0, 1, 0), "ran no test"),
        ("3 passed in 1s\n3 passed in 1s", 0, (3, 1, 0), "2 reports in place of one"),
        ("3 passed in 1s", 9, (3, 1, 0), "ended with status 9"),
        ("test_x.py ..", 9, (0, 1, 0), "ended without a report, status 9"),
        ("", 0, (0, 1, 0), "ended without a report, status 0"),
    ],
)
def test_reading_a_report(output, status, counts, wrong):
    row = read("2", finished(output, status), may_be_empty=False)
    assert (row.passed, row.failed, row.skipped) == counts
    assert row.wrong == wrong
    assert row.red == bool(counts[1])


def test_with_a_name_filter_some_runs_may_be_empty():
    row = read("2", finished("5 deselected in 0.1s", 5), may_be_empty=True)
    assert not row.red

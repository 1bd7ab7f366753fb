"""`python -m hpccoll run`: programs run as Python runs them, and a rank that fails ends the job."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launch import Launcher

import hpccoll
from hpccoll import script
from hpccoll.__main__ import cli

ROOT = Path(hpccoll.__file__).parents[1]
RUN = ["-m", "hpccoll", "run"]

try:
    LAUNCHER = Launcher.find()
except FileNotFoundError:
    LAUNCHER = None

SHOW = """
import atexit, pickle, sys

class Mine:
    pass

def at_exit():
    print("at exit", pickle.loads(pickle.dumps(Mine())).__class__ is Mine)

atexit.register(at_exit)
print(sys.argv, sys.path[0], __name__, globals().get("__file__"), __spec__ and __spec__.name)
print([name for name in sys.modules if name.startswith("mpi4py")])

def fail():
    raise ValueError("ouch")

exec(sys.argv[1] if len(sys.argv) > 1 else "")
"""


def python(folder, *arguments):
    """Run Python in a folder; return its status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    """Give a folder with the program as a file, a link, a module, and a package."""
    program = tmp_path / "programs" / "show.py"
    (tmp_path / "package").mkdir()
    program.parent.mkdir()
    program.write_text(SHOW)
    (tmp_path / "link.py").symlink_to(program)
    (tmp_path / "package" / "__main__.py").write_text(SHOW)
    (tmp_path / "module.py").write_text(SHOW)
    (tmp_path / "wrong.py").write_text("x = (\n")
    return tmp_path


TARGETS = {
    "file": ["programs/show.py"],
    "link": ["link.py"],
    "module": ["-m", "module"],
    "package": ["-m", "package"],
    "folder": ["package"],
    "code": ["-c", SHOW],
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_program_runs_as_python_runs_it(folder, name):
    arguments = [*TARGETS[name], "pass", "-m", "--help", "--", "-c"]
    wanted = python(folder, *arguments)
    assert python(folder, *RUN, *arguments) == wanted
    assert wanted[0] == 0
    assert "at exit True" in wanted[1]


ENDS = {
    "an exception": ("fail()", 1),
    "a status": ("sys.exit(3)", 3),
    "status 0": ("sys.exit(0)", 0),
    "no status": ("sys.exit()", 0),
    "a text": ("sys.exit('a reason')", 1),
    "a cause": ("try:\n    fail()\nexcept ValueError as e:\n    raise KeyError from e", 1),
    "a hook": ("sys.excepthook = lambda *what: print('hook', *what[:2])\nfail()", 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_in_python(folder, end):
    code, status = ENDS[end]
    wanted = python(folder, "programs/show.py", code)
    assert python(folder, *RUN, "programs/show.py", code) == wanted
    assert wanted[0] == status
    assert "at exit True" in wanted[1]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_of_our_own_is_in_a_traceback(folder, name):
    status, output, error = python(folder, *RUN, *TARGETS[name], "fail()")
    assert status == 1
    assert "at exit True" in output
    file = "<string>" if name == "code" else output.split("'")[1]
    lines = [line for line in error.splitlines() if line.startswith("  File")]
    assert len(lines) == 3, error
    assert file in lines[0] or name in ("folder", "link"), error
    assert all("runpy" not in line and "hpccoll" not in line for line in lines), error


def test_a_program_that_is_none_is_told_as_in_python(folder):
    assert python(folder, *RUN, "wrong.py") == python(folder, "wrong.py")
    status, output, error = python(folder, *RUN, "missing.py")
    assert (status, output) == (1, "")
    assert error == "FileNotFoundError: [Errno 2] No such file or directory: 'missing.py'\n"
    assert python(folder, *RUN, "-m", "missing") == python(folder, "-m", "missing")


def test_an_interrupt_has_the_status_that_shells_give_it(folder):
    status, _, error = python(folder, *RUN, "-c", "raise KeyboardInterrupt")
    assert status == 130
    assert error.endswith("KeyboardInterrupt\n")
    assert "hpccoll" not in error


def test_help_tells_of_it(folder):
    status, output, _ = python(folder, *RUN, "--help")
    assert status == 0
    assert "ends by an exception" in output
    assert "python -m hpccoll run program.py" in output


def test_documents_name_commands_that_there_are():
    named = set()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Makefile"]:
        named |= set(re.findall(r"-m hpccoll (\w+)", page.read_text(encoding="utf-8")))
    assert "run" in named
    assert named <= set(cli.commands)


# Jobs.

JOB = """
import os, sys, time

rank = next(int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
            if name in os.environ)
before = sys.argv[1].startswith("before")
if before and rank == 1:
    time.sleep(0.2)
    exec(sys.argv[2])
import numpy as np
import hpccoll
from hpccoll import script
from mpi4py import MPI
handle = hpccoll.iallreduce(np.ones(100_000))
if sys.argv[1] != "in flight":
    handle.wait()
hpccoll.allreduce(np.ones(3))
if sys.argv[1] == "after":
    MPI.Finalize()
if not before and rank == 1:
    exec(sys.argv[2])
if sys.argv[1] != "after":
    hpccoll.allreduce(np.ones(3))
"""

FAIL = "raise ValueError('ouch')"

FAILURES = {
    "an exception": ("during", FAIL, "ValueError: ouch", 1),
    "a status": ("during", "sys.exit(3)", "SystemExit: 3", 3),
    "a text": ("during", "sys.exit('a reason')", "SystemExit: a reason", 1),
    "an interrupt": ("during", "raise KeyboardInterrupt", "KeyboardInterrupt", 130),
    "with a call in flight": ("in flight", FAIL, "ValueError: ouch", 1),
    "before MPI": ("before", FAIL, "ValueError: ouch", None),
    "before MPI, a status": ("before", "sys.exit(3)", "SystemExit: 3", None),
    "after MPI": ("after", FAIL, "ValueError: ouch", 1),
    "a hook that fails": ("during", f"sys.excepthook = None; {FAIL}", "ValueError: ouch", 1),
}


@pytest.mark.skipif(LAUNCHER is None, reason="there is no mpiexec")
@pytest.mark.parametrize("name", FAILURES)
def test_a_rank_that_fails_ends_the_job(tmp_path, name):
    when, code, line, status = FAILURES[name]
    program = tmp_path / "job.py"
    program.write_text(JOB)
    done = LAUNCHER.run(3, [sys.executable, *RUN, str(program), when, code], 40, cwd=ROOT)
    assert not done.ended_by_us, done.output
    assert done.status == status or (status is None and done.status), done.output
    output = done.output.replace("\0", "")  # Open MPI's
    assert output.count(line) == 1, output
    assert re.search(rf"^rank 1\b.*:\nTraceback .*\n  File \"{program}\"", output, re.M), output
    assert "hpccoll/script.py" not in output


@pytest.mark.skipif(LAUNCHER is None, reason="there is no mpiexec")
def test_a_job_that_does_not_fail_is_left_alone():
    code = (
        "import sys, hpccoll\n"
        "sys.stdout.write(f'sum {hpccoll.allreduce(1.0)}\\n')\n"
        "raise SystemExit"
    )
    done = LAUNCHER.run(3, [sys.executable, *RUN, "-c", code], 40, cwd=ROOT)
    assert done.status == 0, done.output
    assert sorted(done.output.split("\n")) == ["", *["sum 3.0"] * 3]


def test_a_rank_waits_for_its_last_words_to_be_read(monkeypatch):
    read, write = os.pipe()
    os.write(write, b"last words")
    reader = threading.Timer(0.1, os.read, (read, 100))
    reader.start()
    monkeypatch.setattr(script, "PATIENCE", 30)
    script._wait_for_reader(write)
    reader.join()
    os.write(write, b"last words")
    monkeypatch.setattr(script, "PATIENCE", 0.05)
    script._wait_for_reader(write)  # nobody reads
    assert os.read(read, 100) == b"last words"
    os.close(write)
    os.close(read)

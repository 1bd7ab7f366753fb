"""However the processes of a job end, all of them do, and nothing is left in /dev/shm."""

import os
import sys
import time
from pathlib import Path

import pytest
from launch import Launcher

import hpccoll

ROOT = Path(hpccoll.__file__).parents[1]
SHARED_MEMORY = Path("/dev/shm")

LIBRARIES_OWN = ("mpich_shm_", "ucx_shm_posix_", "sm_segment.", "vader_segment.")
"""What the names of files begin with that MPI libraries make at start. MPICH's stays where a job is
killed, with or without hpccoll. Windows, which hpccoll has them make, have other names."""

try:
    LAUNCHER = Launcher.find()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def files():
    """Return the files in shared memory that are not an MPI library's own."""
    names = set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()  # noqa: PTH208
    return {name for name in names if not name.startswith(LIBRARIES_OWN)}


def run(program, *arguments, before=(), ranks=3, limit=40):
    """Run a program on some ranks; check that no process and no file is left of it."""
    there = files()
    command = [sys.executable, *before, "-c", program, *arguments]
    done = LAUNCHER.run(ranks, command, limit, cwd=ROOT)
    assert not done.ended_by_us, done.output
    # Other jobs on this machine make theirs, and take them away again.
    deadline = time.monotonic() + 5
    while files() - there and time.monotonic() < deadline:
        time.sleep(0.05)
    assert files() - there == set()
    return done


# Deaths.

DEATH = """
import os, resource, signal, sys, threading, time
import numpy as np
import hpccoll
from mpi4py import MPI

comm = hpccoll.Comm(MPI.COMM_WORLD)
out = np.empty(200_000)
ours = hpccoll.zeros(200_000)
for x in (np.ones(3), np.ones(200_000), ours):
    comm.Allreduce(x, out[:x.size])
    comm.Iallreduce(x, out[:x.size]).Wait()
request = comm.Iallreduce(ours, out)
when, how = sys.argv[1:]
if comm.rank == 1:
    if when == "in a call":
        threading.Timer(0.3, lambda: exec(how)).start()
    elif when == "between calls":
        exec(how)
elif when == "in a call" and comm.rank == 0:
    time.sleep(1)
comm.Allreduce(ours, out)
request.Wait()
if when == "in a call":
    comm.Barrier()
    comm.Allreduce(MPI.IN_PLACE, ours)
    time.sleep(1)
print("came to its end")
"""

DEATHS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "crashed": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "left": "os._exit(3)",
    "aborted": "MPI.COMM_WORLD.Abort(3)",
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_rank_dies_while_all_are_in_a_call(name):
    done = run(DEATH, "in a call", DEATHS[name])
    assert done.status != 0


@pytest.mark.parametrize(
    ("sharing", "when"),
    [("window", "in a call"), ("off", "in a call"), ("window", "between calls")],
)
def test_a_rank_is_killed(monkeypatch, sharing, when):
    monkeypatch.setenv("HPCCOLL_NODE", sharing)
    done = run(DEATH, when, DEATHS["killed"])
    assert done.status != 0
    assert "came to its end" not in done.output


def test_a_rank_ends_by_an_exception():
    done = run(DEATH, "between calls", "1 / 0", before=["-m", "hpccoll", "run"])
    assert done.status == 1
    assert done.output.count("ZeroDivisionError") == 1


@pytest.mark.parametrize("sharing", ["arena", "window"])
def test_all_ranks_end_as_they_should(monkeypatch, sharing):
    monkeypatch.setenv("HPCCOLL_NODE", sharing)
    done = run(DEATH, "never", "")
    assert done.status == 0, done.output
    assert done.output.count("came to its end") == 3


# Ends of the main program with something still to be done. tests/mpi/test_nonblocking.py has those
# in which all ranks do the same.

EXIT = """
import gc, sys, time
import numpy as np
import hpccoll
from mpi4py import MPI

comm = hpccoll.Comm(MPI.COMM_WORLD)
n = int(sys.argv[2])
x, out = np.ones(n), np.empty(n)
odd = comm.rank == 1

def new():
    made = comm.Dup()
    made.Allreduce(x, out)
    made.Iallreduce(x, out).Wait()
    return made

exec(sys.argv[1])
"""

EXITS = {
    "one does not wait": """
request = comm.Iallreduce(x, out)
if not odd:
    request.Wait()
""",
    "one does not wait for what it started": """
step = comm.Allreduce_init(x, out)
step.Start()
if not odd:
    step.Wait()
""",
    "one drops what it started": """
step = new().Allreduce_init(x, out)
step.Start()
if odd:
    del step
    gc.collect()
else:
    step.Wait()
""",
    "communicators are never freed": """
kept = new(), comm.Split(0)
new()
hpccoll.allreduce(x, comm=kept[1])
""",
    "one forgets a communicator": """
made = new()
if odd:
    del made
    gc.collect()
comm.Allreduce(x, out)
""",
    "one frees late": """
made = new()
request = made.Iallreduce(x, out)
if odd:
    time.sleep(0.5)
made.Free()
""",
    "one begins what the others do not": """
comms = [new() for _ in range(10)]
steps = [made.Allreduce_init(x, out) for made in comms]
for made, step in zip(comms, steps):
    if odd:
        made.Iallreduce(x, out)
        step.Start()
""",
}


@pytest.mark.parametrize(
    ("name", "n"), [*((name, 3) for name in EXITS), ("one does not wait", 100_000)]
)
def test_a_program_may_end_with_something_to_be_done(name, n):
    done = run(EXIT, EXITS[name], str(n))
    assert done.status == 0, done.output

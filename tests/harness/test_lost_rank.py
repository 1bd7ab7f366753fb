"""A rank that is killed in the middle of its calls: the others are told, and told which it was."""

import sys
from pathlib import Path

import pytest
from launch import Launcher, run

PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from mpi4py import MPI
import hpccoll

comm = hpccoll.Comm(MPI.COMM_WORLD, timeout=1.0)
x, out = np.full({count}, comm.rank + 1.0), np.empty({count})
comm.Allreduce(x, out)
if comm.rank == 1:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        comm.Allreduce(x, out)
        assert (out == 6).all()
except (hpccoll.CollectiveTimeoutError, MPI.Exception) as error:
    notes = " ".join(getattr(error, "__notes__", ()))
    text = f"{{type(error).__name__}} {{getattr(error, 'ranks', None)}} {{error}} {{notes}}"
    (Path(sys.argv[1]) / str(comm.rank)).write_text(text)
# MPI_Finalize would wait for the dead.
while len(list(Path(sys.argv[1]).iterdir())) < 2:
    pass
os._exit(0)
"""

WAYS = {
    "node": {},
    "messages": {"HPCCOLL_NODE": "off"},
    "two nodes": {"HPCCOLL_NODES": "0,0,1"},
}


@pytest.mark.parametrize("count", [1000, 1_000_000])
@pytest.mark.parametrize("way", WAYS)
def test_survivors_are_told_which_rank_was_lost(monkeypatch, tmp_path, way, count):
    launcher = Launcher.find()
    if launcher.kind != "mpich":
        pytest.skip("this launcher ends all ranks when one is lost")
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    # The launcher sees a shell that ends well, and tells the others by a signal at most.
    survive = ["sh", "-c", "trap '' USR1; \"$@\"; true", "sh"]
    told = tmp_path / "told"
    told.mkdir()
    program = [sys.executable, "-c", PROGRAM.format(count=count), str(told)]
    command = [launcher.mpiexec, "-disable-auto-cleanup", "-n", "3", *survive, *program]
    done = run(command, launcher.environment(3), 40)
    assert not done.ended_by_us, done.output
    texts = {path.name: path.read_text() for path in Path(told).iterdir()}
    assert sorted(texts) == ["0", "2"], done.output
    for rank, text in texts.items():
        if text.startswith("Exception None ") and way != "node":
            # MPI was copying from the memory of the dead one, and found that out by itself, while
            # this rank waited for that or another message.
            assert "process_vm_readv failed" in text
            if sys.version_info >= (3, 11):
                assert f"rank {rank} was waiting for a message to or from rank " in text, texts
            continue
        assert text.startswith("CollectiveTimeoutError (1,) Allreduce: "), texts
        assert "No sign of rank 1. The communicator" in text

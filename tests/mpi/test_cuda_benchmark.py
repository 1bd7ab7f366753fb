"""The benchmark of vectors in device memory: every collective, and what it is compared with."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cuda_session import devices  # noqa: F401 - a fixture
from mpi4py import MPI

import hpccoll
from hpccoll.__main__ import run
from hpccoll.algorithms import COLLECTIVES
from hpccoll.benchmark import command
from hpccoll.benchmark.options import Options, candidates
from hpccoll.benchmark.sweep import sweep
from hpccoll.cuda import copies
from hpccoll.cuda.driver import get_device

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

WITH_ELEMENTS = [name for name in COLLECTIVES if name != "barrier"]


@pytest.fixture(name="way")
def default_way(monkeypatch):
    """Let calls go as they do by default; no fake MPI library takes device memory."""
    monkeypatch.setenv("HPCCOLL_CUDA", "staged")
    return "default"


@pytest.fixture(name="ranks")
def plain_communicator(gpu, comm):
    """Give a communicator of MPI's own, whose channel goes before the devices do."""
    if comm.size > 4:
        pytest.skip("four ranks show the same in less time")
    made = comm.Dup()
    yield made
    made.Free()


@pytest.mark.parametrize("name", WITH_ELEMENTS)
def test_each_collective_comes_out_right(ranks, name):
    options = Options(
        (20_000,),
        types=("int16", "float32"),
        places=("out", "in"),
        iterations=1,
        warmup=0,
        collective=name,
        root=SIZE - 1,
        device="cuda",
    )
    notes = []
    cases = list(sweep(options, ranks, notes.append))
    assert cases
    # NCCL is installed on few machines, and wants a device for each rank.
    left_out = ("nccl",) if any(note.startswith("nccl cannot run ") for note in notes) else ()
    wanted = [one for one in candidates(name, "cuda") if one not in left_out]
    for rows in cases:
        assert [row.algorithm for row in rows] == wanted
        assert {row.wrong for row in rows if row.time_us is not None} == {0}


def test_the_command_tells_where_vectors_are(ranks, capsys, monkeypatch):
    monkeypatch.setattr(command, "start_mpi", lambda: ranks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        words = "bench allreduce --device cuda -b 64 -e 32K -f 512 -n 1 -w 0 -a auto,ring --json"
        assert run([*words.split(), str(path)]) == 0
        document = json.loads(path.read_text()) if RANK == 0 else None
    said = capsys.readouterr()
    assert said.err == ""
    if RANK:
        return
    where = (
        f"# vectors in the memory of GPUs ({get_device(0).name} at rank 0); mpi: copied to pinned"
    )
    assert where in said.out
    assert document["gpu"] == get_device(0).name
    assert said.out.endswith("# 6 rows, no wrong elements\n")
    assert document["options"]["device"] == "cuda"
    assert [row["algorithm"] for row in document["rows"]] == 2 * ["mpi", "ring", "auto"]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("place", ["out", "in"])
def test_one_wrong_element_on_a_device_is_found(ranks, place, monkeypatch):
    right = hpccoll.Comm.Allreduce

    def wrong(self, sendbuf, recvbuf, op=MPI.SUM):
        right(self, sendbuf, recvbuf, op)
        if self.settings.algorithm == "ring" and self.rank == self.size - 1:
            place = recvbuf.array.ctypes.data
            copies.copy_up(recvbuf.device, place, np.array([1e9], np.float32), recvbuf.stream)

    monkeypatch.setattr(hpccoll.Comm, "Allreduce", wrong)
    options = Options(
        (64, 32768), algorithms=("ring", "auto"), places=(place,), iterations=1, device="cuda"
    )
    for rows in sweep(options, ranks):
        assert [row.wrong for row in rows] == [0, 1, 0]

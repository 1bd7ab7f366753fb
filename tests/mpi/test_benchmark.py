"""The benchmark on several ranks: one table, one explanation, one exit status."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.__main__ import run
from hpccoll.algorithms import COLLECTIVES
from hpccoll.benchmark.options import Options, candidates
from hpccoll.benchmark.sweep import sweep
from hpccoll.cuda import foreign_arrays

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

CANDIDATES = candidates("allreduce")

COMMAND = "bench allreduce -b 64 -e 32K -f 512 -n 2 -w 1"


@pytest.fixture
def folder():
    """Give a folder of this rank's own.

    Not pytest's: on leaving, its ranks race to remove old ones.
    """
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def run_line(*words):
    return run(" ".join(map(str, words)).split())


def rows_of(text):
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.mpi
def test_rank_0_prints_the_table(capsys, folder):
    path = folder / "rows.json"
    assert run_line(COMMAND, "--both", "--json", path) == 0
    said = capsys.readouterr()
    assert said.err == ""
    if RANK:
        assert said.out == ""
        return
    assert f"  {SIZE} rank{'s' * (SIZE > 1)} on 1 host  " in said.out
    rows = rows_of(said.out)
    assert [row[0] for row in rows] == (["64"] * len(CANDIDATES) + ["32768"] * len(CANDIDATES)) * 2
    assert [row[5] for row in rows] == list(CANDIDATES) * 4
    assert {row[-2] for row in rows} == {"0"}
    assert said.out.endswith(f"# {4 * len(CANDIDATES)} rows, no wrong elements\n")
    document = json.loads(path.read_text())
    assert document["ranks"] == SIZE
    assert {len(row["times_us"]) for row in document["rows"]} == {2}


@pytest.mark.mpi
@pytest.mark.parametrize("type_name", ["bool", "int8", "bfloat16", "complex128"])
def test_all_operations_come_out_right(type_name):
    options = Options(
        sizes=(100, 20000),
        types=(type_name,),
        ops=tuple(hpccoll.ops.OPERATIONS),
        algorithms=("auto",),
        places=("out", "in"),
        iterations=1,
        warmup=0,
    )
    wrong = [row.wrong for rows in sweep(options) for row in rows if row.algorithm != "mpi"]
    assert wrong
    assert not any(wrong)


@pytest.mark.mpi
def test_ranks_agree_on_rows():
    options = Options((64, 20000), iterations=3)
    rows = [list(case) for case in sweep(options)]
    assert all(other == rows for other in MPI.COMM_WORLD.allgather(rows))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("place", ["--in-place", "--out-of-place"])
def test_one_wrong_element_on_one_rank_fails_all(place, monkeypatch, capsys):
    right = hpccoll.Comm.Allreduce

    def wrong(self, sendbuf, recvbuf, op=MPI.SUM):
        right(self, sendbuf, recvbuf, op)
        if self.settings.algorithm == "ring" and self.rank == self.size - 1:
            recvbuf[0] += 1

    monkeypatch.setattr(hpccoll.Comm, "Allreduce", wrong)
    assert run_line(COMMAND, "-a", "ring,auto", place) == 1
    if RANK == 0:
        text = capsys.readouterr().out
        assert [row[-2] for row in rows_of(text)] == ["0", "1", "0"] * 2
        assert text.endswith("# WRONG: 2 elements in 2 rows\n")


@pytest.mark.mpi(min_size=2)
def test_an_error_late_in_the_run_counts_too(monkeypatch):
    right = hpccoll.Comm.Allreduce
    calls = 0

    def wrong(self, sendbuf, recvbuf, op=MPI.SUM):
        nonlocal calls
        right(self, sendbuf, recvbuf, op)
        calls += 1
        if calls == 4 and self.rank == 0:  # the first to see, one to warm up, two that are timed
            recvbuf[:3] += 1

    monkeypatch.setattr(hpccoll.Comm, "Allreduce", wrong)
    options = Options((32768,), algorithms=("ring",), iterations=2, warmup=1)
    [[_, row]] = list(sweep(options))
    assert row.wrong == 3


@pytest.mark.mpi
def test_what_an_algorithm_refuses_is_left_out(monkeypatch):
    right = hpccoll.Comm.Allreduce

    def refuse(self, sendbuf, recvbuf, op=MPI.SUM):
        if self.settings.algorithm == "ring":
            raise ValueError("'ring' cannot run this")
        right(self, sendbuf, recvbuf, op)

    monkeypatch.setattr(hpccoll.Comm, "Allreduce", refuse)
    notes = []
    options = Options((64, 128), algorithms=("ring", "auto"), iterations=1)
    cases = list(sweep(options, MPI.COMM_WORLD, notes.append))
    assert [[row.algorithm for row in rows] for rows in cases] == [["mpi", "auto"]] * 2
    assert notes == ["ring cannot run sum on float32: 'ring' cannot run this"]


@pytest.mark.mpi
def test_bad_options_are_explained_once(capsys):
    assert run(["bench", "allreduce", "-a", "rings"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("unknown algorithm 'rings'") == (RANK == 0)


@pytest.mark.mpi
def test_a_file_that_rank_0_cannot_write_stops_all(capsys, folder):
    path = folder / ("nowhere" if RANK == 0 else "") / "rows.json"
    assert run_line(COMMAND, "--json", path) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert ("cannot write" in said.err) == (RANK == 0)


@pytest.mark.mpi
def test_segments_and_warm_buffers(capsys):
    assert run_line(COMMAND, "-a", "ring", "--warm", "--segment-bytes", "1K", "-d", "int16") == 0
    if RANK == 0:
        assert "# warm: input never rewritten" in capsys.readouterr().out


# The other collectives.

FAMILY = [name for name in COLLECTIVES if name != "allreduce"]


@pytest.mark.mpi
@pytest.mark.parametrize("name", FAMILY)
def test_each_collective_comes_out_right(name, capsys, folder):
    path = folder / "rows.json"
    words = ["bench", name, "-n", "2", "-w", "1", "--json", path]
    if name != "barrier":
        words += ["-b", "64", "-e", "32K", "-f", "512", "-d", "int16,complex64"]
    if name in ("reduce_scatter", "allgather", "reduce"):
        words.append("--both")
    if name in ("reduce", "broadcast"):
        words += ["--root", SIZE - 1]
    assert run_line(*words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    if RANK:
        assert said.out == ""
        return
    document = json.loads(path.read_text())
    assert document["collective"] == name
    cases = {"broadcast": 4, "barrier": 1}.get(name, 8)
    rows = document["rows"]
    assert [row["algorithm"] for row in rows] == list(candidates(name)) * cases
    assert {row["wrong"] for row in rows} == ({None} if name == "barrier" else {0})
    for row in rows:
        if name == "barrier":
            assert (row["algbw_gbps"], row["busbw_gbps"]) == (None, None)
        else:
            assert row["algbw_gbps"] == pytest.approx(row["nbytes"] / row["time_us"] / 1000)
            factor = COLLECTIVES[name].busbw_factor(SIZE)
            assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * factor)
        if name in ("reduce_scatter", "allgather"):
            assert row["count"] % SIZE == 0


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["allgather", "broadcast"])
@pytest.mark.parametrize("type_name", ["bool", "bfloat16"])
def test_all_types_are_moved(name, type_name):
    options = Options(
        (100, 20000), types=(type_name,), iterations=1, warmup=0, collective=name, root=SIZE // 2
    )
    rows = [row for rows in sweep(options) for row in rows]
    assert [row.algorithm for row in rows] == list(candidates(name)) * 2
    assert {row.wrong for row in rows} == {0}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("name", "method", "buffer"),
    [
        ("reduce_scatter", "Reduce_scatter_block", 1),
        ("allgather", "Allgather", 1),
        ("reduce", "Reduce", 1),
        ("broadcast", "Bcast", 0),
    ],
)
@pytest.mark.parametrize("place", ["out", "in"])
def test_one_wrong_element_is_found(name, method, buffer, place, monkeypatch):
    # On the last rank; of a reduction, and a broadcast, one that it should not have touched.
    right = getattr(hpccoll.Comm, method)

    def wrong(self, *arguments):
        right(self, *arguments)
        if self.settings.algorithm == "auto" and self.rank == self.size - 1:
            arguments[buffer][0] += 1

    monkeypatch.setattr(hpccoll.Comm, method, wrong)
    root = SIZE - 1 if name == "broadcast" else 0
    options = Options((64, 32768), places=(place,), iterations=1, collective=name, root=root)
    for rows in sweep(options):
        assert [row.wrong for row in rows] == [0] * (len(rows) - 1) + [1]


@pytest.mark.mpi
def test_a_root_that_is_no_rank_is_explained_once(capsys):
    assert run(["bench", "reduce", "--root", str(SIZE)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count(f"--root is {SIZE}; the ranks are 0 to {SIZE - 1}") == (RANK == 0)


@pytest.mark.mpi
def test_a_rank_without_a_device_is_explained_once(capsys, monkeypatch):
    def start(argument):
        if RANK == SIZE - 1:
            raise ImportError("there is no CUDA driver")
        return SimpleNamespace(device_count=lambda: 1)

    monkeypatch.setattr(foreign_arrays, "start", start)
    assert run(["bench", "allreduce", "--device", "cuda"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    text = f"--device cuda: there is no CUDA driver (rank {SIZE - 1})"
    assert said.err.count(text) == (RANK == 0)

"""The benchmark without mpiexec: options, data, the loop, the table, the command line."""

import csv
import gc
import importlib.util
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _kernels
from hpccoll.__main__ import run
from hpccoll.algorithms import COLLECTIVES
from hpccoll.benchmark import command, data, report
from hpccoll.benchmark.measure import FEWEST, MOST_CALLS, measure
from hpccoll.benchmark.options import (
    CANDIDATES,
    FRESH_BYTES,
    NATIVE,
    Case,
    Options,
    parse_size,
    size_range,
)
from hpccoll.benchmark.sweep import Row, sweep
from hpccoll.ops import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]

NO_MPI = """
import importlib.abc, runpy, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            raise ImportError("no libmpi.so here")
sys.meta_path.insert(0, Block())
sys.argv = ["hpccoll", *sys.argv[1:]]
runpy.run_module("hpccoll", run_name="__main__")
"""


def run_line(line):
    return run(line.split())


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, timeout=60, capture_output=True, text=True
    )


# Options.


@pytest.mark.parametrize(
    ("text", "nbytes"), [("0", 0), ("8", 8), ("64K", 1 << 16), ("1m", 1 << 20), ("2GiB", 2 << 30)]
)
def test_sizes_are_read(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-8", "1.5M", "8X", "1e3"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=f"^{re.escape(repr(text))} is no size"):
        parse_size(text)


def test_sizes_go_up_to_the_end():
    assert size_range(8, 64, 2) == (8, 16, 32, 64)
    assert size_range(8, 63, 2) == (8, 16, 32)
    assert size_range(8, 8, 2) == (8,)


def test_cases_are_whole_elements():
    options = Options((1, 4, 12, 16), types=("float64",))
    assert [(case.count, case.nbytes) for case in options.cases()] == [(1, 8), (2, 16)]


def test_large_cases_have_fresh_data():
    sizes = (FRESH_BYTES - 4, FRESH_BYTES)
    assert [case.fresh for case in Options(sizes).cases()] == [False, True]
    assert [case.fresh for case in Options(sizes, warm=True).cases()] == [False, False]


def test_the_mpi_library_is_always_a_candidate():
    assert Options((8,), algorithms=("auto", "ring")).candidates == (NATIVE, "ring", "auto")
    assert Options((8,)).candidates == CANDIDATES


def test_pairs_that_make_no_sense_are_left_out():
    options = Options((8,), types=("bool", "float32"), ops=("sum", "lor", "band"))
    found = [(case.type, case.op) for case in options.cases()]
    assert found == [("bool", "lor"), ("bool", "band"), ("float32", "sum"), ("float32", "lor")]


# The loop.


class Recorder:
    """A candidate that notes when it is called, and leaves the right result."""

    def __init__(self, name, log, vectors):
        self.name, self.log, self.vectors = name, log, vectors

    def __call__(self):
        self.log.append(self.name)
        self.vectors.out[...] = self.vectors.x


def record(case, options):
    log = []
    vectors = data.Vectors(case, 0, 1)
    calls = [Recorder(name, log, vectors) for name in "abc"]
    timing = measure(MPI.COMM_SELF, calls, vectors, options)
    assert gc.isenabled()
    return timing, log


def test_candidates_take_turns():
    case = Case("float32", "sum", "out", 10000, 40000, True)
    timing, log = record(case, Options((8,), iterations=7, warmup=2))
    assert timing.seconds.shape == (3, 7)
    assert (timing.seconds > 0).all()
    assert timing.calls == 1
    assert timing.wrong == [0, 0, 0]
    rounds = ["".join(log[start : start + 3]) for start in range(0, len(log), 3)]
    assert len(rounds) == 2 + 7
    assert all(sorted(each) == list("abc") for each in rounds)
    assert len(set(rounds)) > 3


def test_small_calls_come_in_batches():
    case = Case("float32", "sum", "out", 2, 8, False)
    timing, log = record(case, Options((8,), iterations=3, warmup=0))
    assert timing.seconds.shape == (3, 3)
    assert 1 <= timing.calls <= MOST_CALLS
    assert len({log.count(name) for name in "abc"}) == 1
    assert len(log) >= 3 * 3 * timing.calls


@pytest.mark.parametrize("nbytes", [8, 40000])
def test_few_samples_where_time_is_short(nbytes):
    case = Case("float32", "sum", "out", nbytes // 4, nbytes, nbytes > 8)
    timing, _ = record(case, Options((8,), seconds=1e-9))
    assert timing.seconds.shape == (3, FEWEST)


def test_a_result_that_is_not_written_is_found():
    case = Case("float32", "sum", "out", 10000, 40000, True)
    vectors = data.Vectors(case, 0, 1)
    data.fill(vectors.out, data.expected(1, "float32", "sum"))
    timing = measure(MPI.COMM_SELF, [lambda: None], vectors, Options((8,), iterations=2))
    assert timing.wrong == [len(range(0, 10000, data.SPARSE))]


def test_calls_in_place_keep_their_values():
    case = Case("float16", "sum", "in", 4, 8, False)
    vectors = data.Vectors(case, 0, 1)
    measure(
        MPI.COMM_SELF,
        [lambda: np.add(vectors.out, vectors.out, vectors.out)],
        vectors,
        Options((8,), iterations=5),
    )
    assert np.isfinite(vectors.out).all()


def test_a_sweep_on_one_rank():
    options = Options((8, 32768), types=("float32", "bool"), places=("out", "in"), iterations=1)
    notes = []
    cases = list(sweep(options, MPI.COMM_SELF, notes.append))
    assert notes == ["left out, since they do not go together: sum on bool"]
    assert [len(rows) for rows in cases] == [len(CANDIDATES)] * 4
    assert [rows[0].place for rows in cases] == ["out", "out", "in", "in"]
    for rows in cases:
        assert tuple(row.algorithm for row in rows) == CANDIDATES
        assert rows[0].vs_mpi == 1
        assert rows[-1].ran in CANDIDATES[1:-1]
        for row in rows:
            assert row.wrong == 0
            assert row.min_us <= row.time_us <= row.p99_us
            assert row.busbw_gbps == 0
            assert row.algbw_gbps == pytest.approx(row.nbytes / row.time_us / 1000)


def test_what_mpi_cannot_do_has_no_time():
    options = Options((8,), ops=("mean",), algorithms=("auto",), iterations=1)
    notes = []
    [[native, auto]] = list(sweep(options, MPI.COMM_SELF, notes.append))
    assert (native.time_us, native.wrong, native.vs_mpi) == (None, None, None)
    assert auto.time_us > 0
    assert auto.vs_mpi is None
    assert notes == ["mpi cannot run mean on float32: MPI has no such operation"]


# The table and the files.

ROW = Row(
    nbytes=1 << 20,
    count=1 << 18,
    type="float32",
    op="sum",
    place="out",
    algorithm="auto",
    ran="ring",
    time_us=512.0,
    min_us=500.25,
    p99_us=1234.5,
    algbw_gbps=2.048,
    busbw_gbps=3.072,
    wrong=0,
    vs_mpi=1.5,
    fresh=True,
    calls=1,
    times_us=[500.25, 512.0, 1234.5],
)

EMPTY = Row(
    8, 2, "float32", "mean", "in", NATIVE, NATIVE, *[None] * 7, fresh=False, calls=0, times_us=[]
)


def test_a_row_has_its_columns():
    assert " ".join(report.row_line(ROW).split()) == (
        "1048576 262144 float32 sum out auto (ring) 512.00 500.25 1234 2.048 3.072 0 1.50"
    )
    assert " ".join(report.row_line(EMPTY).split()) == "8 2 float32 mean in mpi - - - - - - -"


def test_columns_line_up():
    names, units = report.column_lines()
    assert names[0] == units[0] == "#"
    lines = [names, report.row_line(ROW), report.row_line(EMPTY)]
    assert len({len(line) for line in lines}) == 1
    assert len(units) == len(names)


@pytest.mark.parametrize("name", [algorithm.name for algorithm in hpccoll.algorithms()])
def test_names_fit(name):
    width = next(width for column, _, width in report.COLUMNS if column == "algorithm")
    assert len(f"auto ({name})") <= width


def test_json_comes_back():
    file = io.StringIO()
    machine = report.Machine(4, 1)
    document = machine.document("allreduce", Options((8,)), [ROW, EMPTY])
    report.write_json(file, document)
    read = json.loads(file.getvalue())
    assert read == json.loads(json.dumps(document))
    assert read["schema"] == "hpccoll-bench/1"
    assert (read["ranks"], read["hosts"]) == (4, 1)
    assert read["rows"][0]["times_us"] == [500.25, 512.0, 1234.5]
    assert read["rows"][1]["time_us"] is None
    assert {"when", "versions", "mpi", "kernel", "cpu", "options", "environment"} <= set(read)


def test_csv_has_a_line_per_row():
    file = io.StringIO()
    report.write_csv(file, [ROW, EMPTY])
    [row, empty] = csv.DictReader(io.StringIO(file.getvalue()))
    assert (row["algorithm"], row["time_us"], row["wrong"]) == ("auto", "512.0", "0")
    assert "times_us" not in row
    assert empty["time_us"] == ""


def test_only_variables_that_matter_are_recorded(monkeypatch):
    for name in ("HPCCOLL_X", "UCX_TLS", "OMP_NUM_THREADS", "MY_PASSWORD", "OMPI_MCA_num_procs"):
        monkeypatch.setenv(name, "1")
    recorded = report.Machine(1, 1).environment
    assert {"HPCCOLL_X", "UCX_TLS", "OMP_NUM_THREADS"} <= set(recorded)
    assert not {"MY_PASSWORD", "OMPI_MCA_num_procs"} & set(recorded)


def test_the_last_line_says_whether_all_is_right():
    assert report.closing([ROW], checked=True)[0] == "1 row, no wrong elements"
    assert report.closing([ROW], checked=False)[0] == "1 row, results not checked"
    wrong = [ROW, replace(ROW, wrong=3), replace(ROW, wrong=4)]
    assert report.closing(wrong, checked=True)[0] == "WRONG: 7 elements in 2 rows"


def test_the_sweep_for_the_readme_writes_markdown():
    path = ROOT / "bench" / "collectives.py"
    if not path.exists():
        pytest.skip("bench/ is not part of an installation")
    spec = importlib.util.spec_from_file_location("bench_collectives", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native = replace(ROW, algorithm=NATIVE, ran=NATIVE, time_us=800.0, vs_mpi=1.0)
    ring = replace(ROW, algorithm="ring", time_us=50.0, vs_mpi=16.0)
    auto = replace(ROW, ran="rabenseifner", time_us=200.0, vs_mpi=4.0)
    small = {name: replace(row, vs_mpi=1.0) for name, row in (("ring", ring), ("auto", auto))}
    cases = [{NATIVE: native, "ring": ring, "auto": auto}, {NATIVE: native, **small}]
    lines = module.table(cases)
    assert lines[2] == "| 1 MiB | 800 | 200 | 4.00 | 50.0 | 16.00 | ring (auto: rabenseifner) |"
    assert lines[-1] == "| geometric mean | | | 2.00 | | 4.00 | |"


# The command line.


def test_the_help_names_what_there_is(capsys):
    assert tuple(command.TYPES.split(", ")) == _kernels.TYPES
    assert run(["bench", "allreduce", "--help"]) == 0
    words = set(re.findall(r"[\w#]+", capsys.readouterr().out))
    assert {*_kernels.TYPES, *OPERATIONS, *CANDIDATES} <= words
    assert f"From {FRESH_BYTES >> 10} KiB up" in command.allreduce.help


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["bench", "allreduce", "-a", "rings"],
            "unknown algorithm 'rings'; choose from mpi, naive",
        ),
        (["bench", "allreduce", "-d", "float31"], "unknown type 'float31'; choose from bool, int8"),
        (["bench", "allreduce", "-o", "sum,plus"], "unknown op 'plus'; choose from sum, mean"),
        (["bench", "allreduce", "-b", "1X"], "'1X' is no size"),
        (["bench", "allreduce", "-b", "0"], "wanted at least 1"),
        (["bench", "allreduce", "-b", "2", "-e", "1"], "there is no size between them"),
        (["bench", "allreduce", "-n", "1", "--seconds", "1"], "exclude each other"),
        (["bench", "allreduce", "-d", "bool"], "op 'sum' cannot run on bool"),
        (["bench", "allreduce", "-e", "8", "--json", "/nowhere/x"], "cannot write /nowhere/x"),
        (["bench", "allgather"], "No such command 'allgather'"),
        (["simulate", "rings", "--size", "4", "--count", "1"], "unknown algorithm 'rings'"),
        (["simulate", "ring", "--size", "4"], "give one of --nbytes and --count"),
        (["simulate", "ring", "--size", "4", "--nbytes", "5"], "no multiple of itemsize"),
        (
            ["simulate", "ring", "-p", "2", "--counts", "1,x", "--collective", "allgather"],
            "--counts is '1,x'; wanted a number of elements for each rank",
        ),
        (
            ["simulate", "ring", "-p", "2", "--count", "1", "--collective", "barrier"],
            "a barrier has no vector",
        ),
        (
            ["simulate", "binomial", "-p", "2", "--count", "1", "--root", "1"],
            "unknown algorithm 'binomial'; choose from naive_root, ring",
        ),
        (["simulate", "ring", "-p", "2", "--count", "1", "--root", "1"], "allreduce has no root"),
        (["algorithms", "scan"], "'scan' is not one of 'allreduce', 'reduce_scatter'"),
    ],
)
def test_bad_options_are_explained(arguments, text, capsys):
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("Error: ") == 1
    assert text in said.err


def test_a_run_on_one_rank(tmp_path):
    line = (
        "-m hpccoll bench allreduce -b 8 -e 32K -f 4096 -a ring,auto -n 2 --both --json {} --csv {}"
    )
    done = python(*line.format(tmp_path / "rows.json", tmp_path / "rows.csv").split())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"# hpccoll {hpccoll.__version__}  allreduce  1 rank on 1 host  ")
    assert "fresh data: from 16 KiB" in done.stdout
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[0] for row in rows] == ["8"] * 3 + ["32768"] * 3 + ["8"] * 3 + ["32768"] * 3
    assert lines[-1] == "# 12 rows, no wrong elements"
    document = json.loads((tmp_path / "rows.json").read_text())
    assert [len(row["times_us"]) for row in document["rows"]] == [2] * 12
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 13


def test_a_wrong_element_is_told(monkeypatch, capsys):
    right = hpccoll.Comm.Allreduce

    def wrong(self, sendbuf, recvbuf, op=MPI.SUM):
        right(self, sendbuf, recvbuf, op)
        recvbuf[-1] += self.settings.algorithm == "ring"

    monkeypatch.setattr(hpccoll.Comm, "Allreduce", wrong)
    line = "bench allreduce -b 8 -e 32K -f 4096 -a ring,auto -n 1 -w 0"
    assert run_line(line) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[-2] for row in rows] == ["0", "1", "0"] * 2
    assert lines[-1] == "# WRONG: 2 elements in 2 rows"
    assert run_line(f"{line} --no-check") == 0


def test_simulate_prints_the_simulation(capsys):
    assert run_line("simulate ring --size 100 --nbytes 1M") == 0
    assert capsys.readouterr().out == f"{hpccoll.simulate('ring', size=100, nbytes=1 << 20)}\n"


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("binomial --collective reduce --root 3 --count 8", {"root": 3, "count": 8}),
        ("ring --collective allgather --counts 1,0,2,0", {"counts": (1, 0, 2, 0)}),
        ("dissemination --collective barrier", {}),
    ],
)
def test_simulate_knows_the_other_collectives(line, arguments, capsys):
    name, _, collective, *_ = line.split()
    assert run_line(f"simulate {line} --size 4") == 0
    told = hpccoll.simulate(name, size=4, collective=collective, **arguments)
    assert capsys.readouterr().out == f"{told}\n"


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_algorithms_are_listed(collective, capsys):
    assert run(["algorithms", collective]) == 0
    text = capsys.readouterr().out
    for algorithm in hpccoll.algorithms(collective):
        assert f" {algorithm.name} " in text
        assert algorithm.purpose in text
    if collective == "allreduce":
        assert run(["algorithms"]) == 0
        assert capsys.readouterr().out == text


def test_the_version_is_told(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"hpccoll, version {hpccoll.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--help", "simulate"),
        ("bench --help", "allreduce"),
        ("bench allreduce --help", "--algorithm"),
        ("algorithms", "rabenseifner"),
        ("simulate ring --size 100 --nbytes 1M", "198 steps"),
        ("info", "not available: no libmpi.so here"),
    ],
)
def test_what_measures_nothing_needs_no_mpi(arguments, text):
    done = python("-c", NO_MPI, *arguments.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert text in done.stdout


def test_a_benchmark_without_mpi_says_so():
    done = python("-c", NO_MPI, "bench", "allreduce")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: MPI is not available: no libmpi.so here\n"


def test_the_package_imports_neither_mpi_nor_the_command_line():
    code = "import sys, hpccoll; print({'mpi4py', 'click', 'rich'} & {*sys.modules})"
    assert python("-c", code).stdout == "set()\n"

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
from hpccoll.benchmark import command, data, report, texts
from hpccoll.benchmark.measure import FEWEST, MOST_CALLS, measure
from hpccoll.benchmark.options import (
    FRESH_BYTES,
    METHODS,
    NATIVE,
    NONE,
    Case,
    Options,
    candidates,
    parse_size,
    size_range,
)
from hpccoll.benchmark.sweep import Row, sweep
from hpccoll.ops import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]

CANDIDATES = candidates("allreduce")

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
    assert [(case.count, case.nbytes) for case in options.cases(1)] == [(1, 8), (2, 16)]


def test_large_cases_have_fresh_data():
    sizes = (FRESH_BYTES - 4, FRESH_BYTES)
    assert [case.fresh for case in Options(sizes).cases(1)] == [False, True]
    assert [case.fresh for case in Options(sizes, warm=True).cases(1)] == [False, False]


def test_the_mpi_library_is_always_a_candidate():
    assert Options((8,), algorithms=("auto", "ring")).candidates == (NATIVE, "ring", "auto")
    assert Options((8,)).candidates == CANDIDATES
    for name in COLLECTIVES:
        known = tuple(entry.name for entry in hpccoll.algorithms(name))
        assert Options((8,), collective=name).candidates == (NATIVE, *known, "auto")


def test_pairs_that_make_no_sense_are_left_out():
    options = Options((8,), types=("bool", "float32"), ops=("sum", "lor", "band"))
    found = [(case.type, case.op) for case in options.cases(1)]
    assert found == [("bool", "lor"), ("bool", "band"), ("float32", "sum"), ("float32", "lor")]


@pytest.mark.parametrize("name", ["reduce_scatter", "allgather"])
def test_chunks_are_equal(name):
    cases = Options((1, 100, 64 << 10), types=("float64",), collective=name).cases(3)
    assert [(case.count, case.nbytes) for case in cases] == [(3, 24), (12, 96), (8190, 65520)]


def test_what_a_collective_does_not_have_is_left_out():
    [case] = Options((8,), collective="broadcast", places=("out",), root=2).cases(3)
    assert (case.op, case.place, case.count, case.pattern.root) == (NONE, "in", 2, 2)
    assert str(case) == "float32"
    [case] = Options((8, 16), collective="barrier", types=("int8", "bool"), root=2).cases(3)
    assert (case.type, case.op, case.place) == (NONE,) * 3
    assert (case.count, case.fresh, case.pattern.root) == (0, False, 0)
    assert str(case) == "barrier"
    [case] = Options((8,), collective="reduce").cases(3)
    assert str(case) == "sum on float32"


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


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_sweep_of_each_collective(name):
    options = Options((8, 32768), places=("out", "in"), iterations=1, collective=name)
    cases = list(sweep(options))
    assert len(cases) == {"broadcast": 2, "barrier": 1}.get(name, 4)
    for rows in cases:
        assert tuple(row.algorithm for row in rows) == candidates(name)
        for row in rows:
            assert row.collective == name
            assert row.wrong == (None if name == "barrier" else 0)
            assert row.vs_mpi > 0


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
    collective="allreduce",
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
    "allreduce",
    8,
    2,
    "float32",
    "mean",
    "in",
    NATIVE,
    NATIVE,
    *[None] * 7,
    fresh=False,
    calls=0,
    times_us=[],
)


def test_a_row_has_its_columns():
    assert " ".join(report.row_line(ROW).split()) == (
        "1048576 262144 float32 sum out auto (ring) 512.00 500.25 1234 2.048 3.072 0 1.50"
    )
    assert " ".join(report.row_line(EMPTY).split()) == "8 2 float32 mean in mpi - - - - - - -"
    moved = report.row_line(replace(ROW, op=NONE))
    assert " ".join(moved.split()).startswith("1048576 262144 float32 - out auto (ring) ")


def test_columns_line_up():
    names, units = report.column_lines()
    assert names[0] == units[0] == "#"
    lines = [names, report.row_line(ROW), report.row_line(EMPTY)]
    assert len({len(line) for line in lines}) == 1
    assert len(units) == len(names)


@pytest.mark.parametrize(
    "name", sorted({entry.name for each in COLLECTIVES for entry in hpccoll.algorithms(each)})
)
def test_names_fit(name):
    width = next(width for column, _, width in report.COLUMNS if column == "algorithm")
    assert len(f"auto ({name})") <= width


def test_nccl_is_a_candidate_on_devices_alone():
    assert "nccl" not in candidates("allreduce")
    assert candidates("allreduce", "cuda")[-2:] == ("nccl", "auto")
    assert "nccl" not in candidates("barrier", "cuda")
    assert "nccl" not in Options((8,)).candidates
    assert "nccl" in Options((8,), device="cuda").candidates


def test_json_comes_back():
    file = io.StringIO()
    machine = report.Machine(4, 1)
    document = machine.document(Options((8,)), [ROW, EMPTY])
    report.write_json(file, document)
    read = json.loads(file.getvalue())
    assert read == json.loads(json.dumps(document))
    assert read["schema"] == "hpccoll-bench/1"
    assert (read["collective"], read["ranks"], read["hosts"]) == ("allreduce", 4, 1)
    assert read["rows"][0]["times_us"] == [500.25, 512.0, 1234.5]
    assert read["rows"][1]["time_us"] is None
    assert {"when", "versions", "mpi", "kernel", "cpu", "options", "environment"} <= set(read)


def test_csv_has_a_line_per_row():
    file = io.StringIO()
    report.write_csv(file, [ROW, EMPTY])
    [row, empty] = csv.DictReader(io.StringIO(file.getvalue()))
    assert (row["collective"], row["algorithm"]) == ("allreduce", "auto")
    assert (row["time_us"], row["wrong"]) == ("512.0", "0")
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
    barrier = replace(ROW, collective="barrier", wrong=None)
    assert report.closing([barrier], checked=False)[0] == "1 row, no elements to check"


@pytest.fixture
def script(monkeypatch):
    """Give a function that imports a script of bench/."""

    def load(name):
        path = ROOT / "bench" / f"{name}.py"
        if not path.exists():
            pytest.skip("bench/ is not part of an installation")
        monkeypatch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclass looks for it
        spec.loader.exec_module(module)
        return module

    return load


def test_the_sweep_for_the_readme_writes_markdown(script):
    native = replace(ROW, algorithm=NATIVE, ran=NATIVE, time_us=800.0, vs_mpi=1.0)
    ring = replace(ROW, algorithm="ring", time_us=50.0, vs_mpi=16.0)
    auto = replace(ROW, ran="rabenseifner", time_us=200.0, vs_mpi=4.0)
    small = {name: replace(row, vs_mpi=1.0) for name, row in (("ring", ring), ("auto", auto))}
    cases = [{NATIVE: native, "ring": ring, "auto": auto}, {NATIVE: native, **small}]
    lines = script("collectives").table(cases)
    assert lines[2] == "| 1 MiB | 800 | 200 | 4.00 | 50.0 | 16.00 | ring (auto: rabenseifner) |"
    assert lines[-1] == "| geometric mean | | | 2.00 | | 4.00 | |"


def test_the_contest_takes_turns_and_finds_what_is_wrong(script):
    contest = script("contest")
    log = []

    def contestant(name, wrong=0):
        return contest.Contestant(
            lambda: log.append(name), lambda: log.append(f"({name})"), lambda: wrong
        )

    right = {name: contestant(name) for name in "abc"}
    race = contest.Contest(MPI.COMM_SELF, right, number=2)
    race.check("8 B")
    times = race.times(1e-9)
    assert list(times) == ["a", "b", "c"]
    assert all(value > 0 for value in times.values())
    text = "".join(log)
    assert text[:12] == "(a)aa(b)bb(c"
    assert [text.count(name) for name in "abc"] == [3 * (3 + contest.FEWEST)] * 3
    with pytest.raises(SystemExit, match=r"^b: 3 wrong elements on rank 0 at 8 B$"):
        contest.Contest(MPI.COMM_SELF, {"a": right["a"], "b": contestant("b", 3)}).check("8 B")


def test_the_bars_of_the_family_are_markdown(script, capsys):
    family = script("family")
    assert set(family.COLLECTIVES) == {*COLLECTIVES} - {"allreduce", "barrier"}
    for collective in family.COLLECTIVES:
        family.table(collective, (8, 65536), 1e-9, MPI.COMM_SELF)
        lines = capsys.readouterr().out.splitlines()
        assert f"  {collective}" in lines[1]
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
        assert [row[0] for row in rows] == ["size", "8 B", "64 KiB", "geometric mean"]
        assert {len(row) for row in rows} == {6}


# The command line.


def test_the_help_names_what_there_is(capsys):
    assert tuple(command.TYPES.split(", ")) == _kernels.TYPES
    assert run(["bench", "allreduce", "--help"]) == 0
    words = set(re.findall(r"[\w#]+", capsys.readouterr().out))
    assert {*_kernels.TYPES, *OPERATIONS, *CANDIDATES} <= words
    assert f"From {FRESH_BYTES >> 10} KiB up" in command.bench.commands["allreduce"].help


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_collective_has_the_options_that_make_sense(name, capsys):
    assert run(["bench", name, "--help"]) == 0
    words = {*re.findall(r"[\w#-]+", capsys.readouterr().out)}
    assert {*candidates(name), METHODS[name], "--json", "--iterations"} <= words
    one, elements = COLLECTIVES[name], name != "barrier"
    assert ("--op" in words) == one.reduces
    assert ("--root" in words) == one.rooted
    assert ("--both" in words) == (name not in ("broadcast", "barrier"))
    options = {"--begin", "--type", "--check", "--segment-bytes", "--warm"}
    assert words & options == (options if elements else set())
    if elements:
        factor = texts.FACTORS[name].replace("2(", "2 * (") or " * 1"
        for size in (1, 2, 7):
            value = eval("1" + factor.replace("p", str(size)))
            assert value == pytest.approx(one.busbw_factor(size))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["bench", "allreduce", "-a", "rings"],
            "unknown algorithm 'rings'; choose from mpi, naive",
        ),
        (["bench", "allreduce", "-a", "ring,nccl"], "nccl runs on GPUs; add --device cuda"),
        (["bench", "allreduce", "-d", "float31"], "unknown type 'float31'; choose from bool, int8"),
        (["bench", "allreduce", "-o", "sum,plus"], "unknown op 'plus'; choose from sum, mean"),
        (["bench", "allreduce", "-b", "1X"], "'1X' is no size"),
        (["bench", "allreduce", "-b", "0"], "wanted at least 1"),
        (["bench", "allreduce", "-b", "2", "-e", "1"], "there is no size between them"),
        (["bench", "allreduce", "-n", "1", "--seconds", "1"], "exclude each other"),
        (["bench", "allreduce", "-d", "bool"], "op 'sum' cannot run on bool"),
        (["bench", "allreduce", "-e", "8", "--json", "/nowhere/x"], "cannot write /nowhere/x"),
        (["bench", "alltoall"], "No such command 'alltoall'"),
        (["bench", "allgather", "-a", "rabenseifner"], "choose from mpi, ring"),
        (["bench", "allgather", "-o", "sum"], "No such option"),
        (["bench", "reduce", "--root", "1"], "--root is 1; the ranks are 0 to 0"),
        (["bench", "broadcast", "--in-place"], "No such option"),
        (["bench", "barrier", "-n", "1", "--seconds", "1"], "exclude each other"),
        (["simulate", "rings", "--size", "4", "--count", "1"], "unknown algorithm 'rings'"),
        (["simulate", "ring", "--size", "4"], "give one of --nbytes and --count"),
        (["simulate", "ring", "--size", "4", "--nbytes", "5"], "no multiple of itemsize"),
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


def test_a_barrier_has_no_elements(capsys):
    assert run_line("bench barrier -n 1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "rewrite" not in "".join(lines)
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:6] for row in rows] == [
        ["0", "0", "-", "-", "-", name] for name in candidates("barrier")
    ]
    assert {tuple(row[-4:-1]) for row in rows} == {("-", "-", "-")}
    assert lines[-1] == f"# {len(rows)} rows, no elements to check"


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


def test_algorithms_are_listed(capsys):
    assert run(["algorithms"]) == 0
    text = capsys.readouterr().out
    for algorithm in hpccoll.algorithms():
        assert f" {algorithm.name} " in text
        assert algorithm.purpose in text


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

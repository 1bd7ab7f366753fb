"""bench/cluster.py: right results across nodes, and nothing left behind, however a run ends."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from launch import Finished, Launcher, run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "cluster.py"
RATE = 10**9

ALL_REDUCES = """
import numpy as np
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll

NODES, EACH = {nodes}, {each}
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
number = comm.rank // EACH
assert comm.size == NODES * EACH
assert (node.size, node.rank) == (EACH, comm.rank % EACH), (node.size, node.rank)
assert set(node.allgather(number)) == {{number}}
assert MPI.Get_processor_name() == f"node{{number}}"

window = MPI.Win.Allocate_shared(8, 8, comm=node)
mine = np.frombuffer(window.Shared_query(node.rank)[0], np.int64)
mine[0] = 100 + comm.rank
node.Barrier()
theirs = [np.frombuffer(window.Shared_query(r)[0], np.int64)[0] for r in range(EACH)]
assert theirs == [100 + number * EACH + r for r in range(EACH)], theirs
window.Free()

for algorithm in [*hpccoll.algorithms(), "auto"]:
    name = getattr(algorithm, "name", algorithm)
    for count in (0, 1, 7, 5000, 300_001):
        x = contribution(comm.rank, count, "float32", "sum", comm.size)
        y = hpccoll.allreduce(x, algorithm=name)
        assert y.tobytes() == expected(count, "float32", "sum", comm.size).tobytes(), (name, count)
print(f"rank {{comm.rank}} is right", flush=True)
"""

WAITS = """
import time
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("all wait", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> ModuleType:
    """The script as a module; it needs no root to be imported."""
    if not SCRIPT.exists():
        pytest.skip("bench/ is not part of an installation")
    spec = importlib.util.spec_from_file_location("bench_cluster", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_cluster"] = module  # where dataclass looks for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def able(cluster: ModuleType) -> ModuleType:
    """The same, where a cluster can be made: one is."""
    try:
        cluster.check_machine()
        mpiexec = cluster.find_mpiexec()
        with cluster.Cluster(2, RATE).built() as probe:
            probe.run(mpiexec, 1, ["true"])
    except cluster.Refused as error:
        pytest.skip(f"no cluster here: {error.message}")
    return cluster


class Launch:
    """Runs the script, and knows what it may have left."""

    def __init__(self, module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = module
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.pid = 0
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        path = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    def program(self, text: str) -> list[str]:
        file = self.folder / "program.py"
        file.write_text(text, encoding="utf-8")
        return ["--command", f"{sys.executable} {file}"]

    def __call__(
        self, *arguments: str, on_line: Callable[[str], None] = print, limit: float = 90
    ) -> Finished:
        """Run it as the leader of its process group, as a shell would."""
        leader = ["setsid", "sh", "-c", 'echo "pid $$"; exec "$@"', "sh"]

        def watch(line: str) -> None:
            if line.startswith("pid "):
                self.pid = int(line.split()[1])
            on_line(line)

        command = [*leader, sys.executable, str(SCRIPT), *arguments]
        return run(command, dict(os.environ), limit, watch, ROOT)

    def left(self) -> list[str]:
        """Return what is still there of the run; of its processes `Finished.ended_by_us` tells."""
        names: list[str] = self.module.namespaces(f"{self.module.NAME}-{self.pid}")
        links = json.loads(self.module.call("ip", "-j", "link", "show"))
        names += [link["ifname"] for link in links if re.fullmatch(r"p\d+|e0", link["ifname"])]
        return names + [path.name for path in self.temporary.iterdir()]


@pytest.fixture
def launch(able: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    return Launch(able, tmp_path, monkeypatch)


# Without root -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1gbit", 10**9), ("2.5Gbit", 25 * 10**8), ("100mbit", 10**8), ("1000000bit", 10**6)],
)
def test_a_rate_is_read_as_tc_writes_it(cluster: ModuleType, text: str, rate: int) -> None:
    assert cluster.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "1", "1gb", "-1gbit", "1 gbit/s", "999kbit"])
def test_a_rate_that_is_none_is_refused_by_name(cluster: ModuleType, text: str) -> None:
    done = CliRunner().invoke(cluster.main, ["--rate", text])
    assert done.exit_code == 2
    assert f"{text!r} is no rate" in done.output


def test_share_of_the_link(cluster: ModuleType) -> None:
    # Of 4 nodes each sends 1.5 vectors: 1.5 * 8 * 10^6 bits.
    assert cluster.share_of_link(10**6, 4, 0.012, RATE) == pytest.approx(1)
    assert cluster.share_of_link(10**6, 4, 0.024, RATE) == pytest.approx(0.5)
    assert cluster.share_of_link(10**6, 2, 0.080, RATE // 10) == pytest.approx(1)


def test_share_table(cluster: ModuleType) -> None:
    row = {"nbytes": 10**6, "type": "float32", "op": "sum", "algorithm": "mpi", "ran": "mpi"}
    rows = [
        {**row, "time_us": 24000.0, "vs_mpi": 1.0},
        {**row, "algorithm": "auto", "ran": "ring", "time_us": 15000.0, "vs_mpi": 1.6},
        {**row, "algorithm": "circulant", "time_us": 16000.0, "vs_mpi": None},
        {**row, "time_us": None, "vs_mpi": None},
    ]
    lines = [line.split() for line in cluster.share_table(rows, 4, RATE)]
    assert len(lines) == 4  # nothing of what did not run
    assert lines[1][3:] == ["mpi", "24000", "50.0%", "1.00"]
    assert lines[2][3:] == ["auto", "(ring)", "15000", "80.0%", "1.60"]
    assert lines[3][-2:] == ["75.0%", "-"]


@pytest.mark.parametrize("arguments", [["--json", "a.json", "-q"], ["-q", "--json=a.json"]])
def test_the_rows_are_read_from_the_file_that_the_user_wants(
    cluster: ModuleType, arguments: list[str]
) -> None:
    assert cluster.json_file(["allreduce", *arguments]) == Path("a.json")
    assert cluster.json_file(["allreduce", "-b", "8"]) is None


def refusal(cluster: ModuleType, *arguments: str) -> str:
    done = CliRunner().invoke(cluster.main, list(arguments))
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1
    return done.output


@pytest.mark.parametrize("arguments", [[], ["--clean"]])
def test_without_root_it_says_so(
    cluster: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root: run it with sudo" in refusal(cluster, *arguments)


@pytest.mark.parametrize(("name", "package"), [("tc", "iproute2"), ("unshare", "util-linux")])
def test_without_its_tools_it_names_the_package(
    cluster: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        cluster.shutil, "which", lambda program, path: None if program == name else program
    )
    assert f"needs {package}: there is no '{name}' here" in refusal(cluster)


def test_the_launcher_of_open_mpi_is_refused(
    cluster: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Launcher("/opt/mpiexec", "openmpi")
    monkeypatch.setattr(cluster, "check_machine", lambda: None)
    monkeypatch.setattr(cluster.Launcher, "find", lambda: found)
    assert "/opt/mpiexec is Open MPI's" in refusal(cluster)


def test_only_what_belongs_to_dead_processes_is_dead(cluster: ModuleType) -> None:
    mine = cluster.run_name(os.getpid())
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not cluster.dead(f"{mine}-node0")
    assert cluster.dead(f"{mine}9-node0")  # the same number, another start: it has come again
    assert cluster.dead(f"{cluster.NAME}-{gone.pid}-1-node0")
    assert not cluster.dead("hpccoll-other")
    assert not cluster.dead("somebody-1-1-else")


# With namespaces ----------------------------------------------------------------------------------


@pytest.mark.limit(120)
def test_all_reduces_are_right_across_nodes(launch: Launch) -> None:
    nodes, each = 3, 2
    program = launch.program(ALL_REDUCES.format(nodes=nodes, each=each))
    done = launch("--nodes", str(nodes), "--ranks-per-node", str(each), *program)
    assert done.status == 0, done.output
    assert done.output.count("is right") == nodes * each
    assert not launch.left()
    assert not done.ended_by_us


@pytest.mark.limit(120)
def test_what_the_benchmark_sends_goes_over_the_links(launch: Launch) -> None:
    size, samples = 256 << 10, 5
    options = ["-b", str(size), "-e", str(size), "-n", str(samples), "-w", "0", "-a", "ring"]
    done = launch("-N", "2", "-k", "2", "--", "allreduce", *options)
    assert done.status == 0, done.output
    assert "4 ranks on 2 hosts" in done.output
    shares = re.findall(r"^ *262144 +float32 +sum +(mpi|ring) .*%", done.output, re.MULTILINE)
    assert shares == ["mpi", "ring"], done.output
    traffic = re.findall(r"^node\d +([\d.]+) +([\d.]+)$", done.output, re.MULTILINE)
    assert len(traffic) == 2, done.output
    # Each call of the ring sends 2 (p-1)/p vectors between neighbours, and one more call tries it.
    least = (samples + 1) * 2 * 3 / 4 * size / 1e6
    assert all(float(count) > least for line in traffic for count in line), done.output
    assert not launch.left()


@pytest.mark.limit(60)
def test_both_directions_of_each_link_are_limited(able: ModuleType) -> None:
    with able.Cluster(2, RATE // 4).built() as cluster:
        ends = [(cluster.node(number), able.DEVICE) for number in range(2)]
        ends += [(cluster.switch, f"p{number}") for number in range(2)]
        for name, device in ends:
            said = able.call("tc", "-n", name, "qdisc", "show", "dev", device)
            assert re.match(r"qdisc tbf \S+ root .*\brate 250Mbit\b", said), (name, said)


@pytest.mark.limit(60)
def test_a_program_that_fails_hands_on_its_status(launch: Launch) -> None:
    done = launch("-N", "2", *launch.program("raise SystemExit(3)"), limit=45)
    assert done.status == 3, done.output
    assert not launch.left()
    assert not done.ended_by_us


@pytest.mark.limit(90)
@pytest.mark.parametrize(
    ("name", "send"), [("SIGINT", os.killpg), ("SIGTERM", os.kill), ("SIGHUP", os.killpg)]
)
def test_a_signal_ends_all_and_leaves_nothing(
    launch: Launch, name: str, send: Callable[[int, int], None]
) -> None:
    number = signal.Signals[name]  # Ctrl-C and a closed terminal reach the whole process group

    def interrupt(line: str) -> None:
        if line.startswith("all wait"):
            assert len(launch.left()) >= 3  # there is something that could stay
            send(launch.pid, number)

    done = launch("-N", "2", "-k", "2", *launch.program(WAITS), on_line=interrupt, limit=60)
    assert done.status == 128 + number, done.output
    assert not done.ended_by_us
    assert not launch.left()


@pytest.mark.limit(90)
def test_what_a_killed_run_leaves_can_be_removed(launch: Launch) -> None:
    cleaned = []

    def clean() -> str:
        command = [sys.executable, str(SCRIPT), "--clean"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def kill(line: str) -> None:
        if line.startswith("all wait"):
            clean()
            there = launch.left()
            assert len(there) == 4, there  # a switch, two nodes, a folder: it lives
            os.kill(launch.pid, signal.SIGKILL)
            while not launch.module.dead(there[0]):
                time.sleep(0.01)
            cleaned.append(clean())

    done = launch("-N", "2", *launch.program(WAITS), on_line=kill, limit=60)
    assert done.status == -signal.SIGKILL, done.output
    assert cleaned[0].count(f"-{launch.pid}-") == 4, cleaned
    assert not done.ended_by_us
    assert not launch.left()


@pytest.mark.limit(60)
def test_what_was_built_is_removed_where_the_rest_fails(
    able: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, called = able.call, []

    def fail(name: str, *arguments: str, **more: object) -> str:
        called.append(name)
        if name == "tc":
            assert len(able.namespaces(able.run_name(os.getpid()))) == 3
            raise able.Refused("no such thing")
        said: str = call(name, *arguments, **more)
        return said

    monkeypatch.setattr(able, "call", fail)
    with pytest.raises(able.Refused, match="no such thing"), able.Cluster(2, RATE).built():
        pass
    assert "tc" in called
    assert not able.namespaces(able.run_name(os.getpid()))

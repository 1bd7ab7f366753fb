"""A cluster on one machine: nodes joined by links of a given rate, and MPI running across them.

    sudo .venv/bin/python bench/cluster.py --nodes 4 --ranks-per-node 2 -- allreduce -b 1M -e 16M
    sudo .venv/bin/python bench/cluster.py --command "python my_program.py"
    sudo .venv/bin/python bench/cluster.py --clean

A node is a network namespace with one link, e0, to a bridge in a namespace of its own. Both
directions of each link are limited. The processes of a node also have host name, shared memory and
process numbers of their own, without which MPI would find that all nodes are one machine and send
nothing over the links. The machine's own network is not touched, and all is removed at the end.

What follows `--` goes to `python -m hpccoll bench`, or to --command. Afterwards there are the bytes
that went over each link, and for a benchmark of all-reduce how much of the link each row used:
2 (N-1)/N n, the least that each of N nodes must send for a vector of n bytes, over the time.

Linux, root, iproute2, util-linux and MPICH are needed.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from launch import NESTED, Launcher

NAME = "hpccoll"
"""Namespaces are hpccoll-PID-START-node0, ..., and hpccoll-PID-START-switch; see `run_name`."""

DEVICE = "e0"
NETWORK = "10.0.0"
HEAD = 254
"""Number of the switch, where mpiexec runs; nodes count from 1."""

BURST_SECONDS = 1e-3
"""What a link that has rested may send at once, as a time at its rate.

More would flatter short messages: at 1 Gbit/s, 1 MiB gains at most 125 kB in 1.6 MB. With less, a
machine whose cores are all busy does not come round in time to send at the full rate: with half of
it, 4 nodes on 2 cores came to half of the rate.
"""

LATENCY = "50ms"
"""What may queue before a link, as a time at its rate."""

HEADERS = 0.044
"""Share of a full packet on the link that is Ethernet, IP and TCP headers: 66 of 1514 bytes."""

PATIENCE = 5.0
"""Seconds that mpiexec has to end its ranks, and killed processes to go."""

DEFAULT = ("allreduce", "-b", "1M", "-e", "16M", "-f", "4")
"""Arguments of the benchmark where none are given."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ENTER = Path(__file__).with_name("enter_node.sh")


class Refused(click.ClickException):
    """The cluster cannot be made here."""

    exit_code = 2


def parse_rate(text: str) -> int:
    """Read a rate as tc writes it, 1gbit or 2.5gbit or 100mbit, and return bits per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.strip().lower())
    rate = float(match[1]) * 1000 ** " kmg".index(match[2] or " ") if match else 0
    if rate < 1e6:
        message = f"{text!r} is no rate; wanted at least 1mbit, such as 100mbit or 2.5gbit"
        raise click.BadParameter(message)
    return int(rate)


def share_of_link(nbytes: int, nodes: int, seconds: float, rate: int) -> float:
    """Return 2 (N-1)/N n over the time, as a fraction of a link's rate in bits per second."""
    return 2 * (nodes - 1) / nodes * nbytes * 8 / seconds / rate


def share_table(rows: Sequence[dict[str, Any]], nodes: int, rate: int) -> list[str]:
    """Return the lines that tell how much of the link each row of a benchmark used."""
    line = "{:>11} {:>10} {:>5}  {:<25} {:>11} {:>7} {:>7}".format
    lines = [line("size (B)", "type", "redop", "algorithm", "time (us)", "link", "vs MPI")]
    for row in rows:
        name, ran, time_us = row["algorithm"], row["ran"], row["time_us"]
        if time_us is None:
            continue
        share = share_of_link(row["nbytes"], nodes, time_us / 1e6, rate)
        ratio = "-" if row["vs_mpi"] is None else f"{row['vs_mpi']:.2f}"
        label = name if name == ran else f"{name} ({ran})"
        cells = (row["nbytes"], row["type"], row["op"], label, f"{time_us:.0f}")
        lines.append(line(*cells, f"{share:.1%}", ratio))
    return lines


def tool(name: str) -> str:
    """Return the path of a program; also where /usr/sbin is not on PATH."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        package = "iproute2" if name in ("ip", "tc") else "util-linux"
        message = f"a cluster of namespaces needs {package}: there is no {name!r} here"
        raise Refused(message)
    return path


def call(
    name: str, *arguments: str, lines: Sequence[str] = (), env: dict[str, str] | None = None
) -> str:
    """Run a program, with `lines` as its input, and return what it printed."""
    command = [tool(name), *arguments]
    done = subprocess.run(
        command, input="\n".join(lines), env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        message = f"`{shlex.join([name, *arguments])}` failed: {said or done.returncode}"
        raise Refused(message)
    return done.stdout


@contextmanager
def signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle the signals that end a program in another way for a while."""
    before = [(number, signal.signal(number, handler)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def leave(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that all is removed on the way; further signals change nothing."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def run_name(pid: int) -> str | None:
    """Return what the namespaces of a process begin with; None if it is gone.

    With the time at which it started, since process numbers come again.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    status = text.rpartition(")")[2].split()  # from the third field on: state, ..., start
    return None if status[0] in "ZX" else f"{NAME}-{pid}-{status[19]}"


def namespaces(beginning: str) -> list[str]:
    """Return the network namespaces whose names begin so."""
    names = [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line]
    return [name for name in names if name.startswith(f"{beginning}-")]


def remove(names: Sequence[str]) -> None:
    """End what runs in network namespaces, and remove them with their links."""
    deadline = time.monotonic() + PATIENCE
    while pids := [int(pid) for name in names for pid in call("ip", "netns", "pids", name).split()]:
        if time.monotonic() > deadline:
            message = f"processes in {', '.join(names)} do not end: {pids}"
            raise Refused(message)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for name in names:
        call("ip", "netns", "delete", name)


def dead(name: str) -> bool:
    """Whether a namespace or folder belongs to a run whose process is gone."""
    match = re.match(rf"({NAME}-(\d+)-\d+)-", name)
    return match is not None and run_name(int(match[2])) != match[1]


def clean() -> list[str]:
    """Remove the namespaces and folders of runs whose process is gone; return their names."""
    names = [name for name in namespaces(NAME) if dead(name)]
    remove(names)
    for folder in Path(tempfile.gettempdir()).glob(f"{NAME}-*-*-*"):
        if dead(folder.name) and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder)
            names.append(str(folder))
    return names


@dataclass(frozen=True)
class Cluster:
    """Nodes, links and a bridge; they are there inside of `built`.

    Parameters
    ----------
    nodes : int
        How many.
    rate : int
        Of each link and direction, in bits per second.
    name : str
        What the names of the namespaces begin with.
    """

    nodes: int
    rate: int
    name: str = field(default_factory=lambda: run_name(os.getpid()) or NAME)

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-switch"

    def node(self, number: int) -> str:
        """Return the namespace of a node."""
        return f"{self.name}-node{number}"

    @contextmanager
    def built(self) -> Iterator["Cluster"]:
        """Build it, and at the end, or where building fails, end all in it and remove it."""
        try:
            self._build()
            yield self
        finally:
            with signals(signal.SIG_IGN):
                remove(namespaces(self.name))

    def _build(self) -> None:
        burst = max(int(self.rate / 8 * BURST_SECONDS), 16 << 10)
        shape = f"root tbf rate {self.rate}bit burst {burst}b latency {LATENCY}"
        numbers = range(self.nodes)
        for name in (self.switch, *map(self.node, numbers)):
            call("ip", "netns", "add", name)
        bridge = [f"link add {DEVICE} type bridge"]
        for number in numbers:
            peer = f"peer name {DEVICE} netns {self.node(number)}"
            bridge += [
                f"link add p{number} type veth {peer}",
                f"link set p{number} master {DEVICE} addrgenmode none up",
            ]
        call("ip", "-n", self.switch, "-batch", "-", lines=[*bridge, *_up(HEAD)])
        down = [f"qdisc add dev p{number} {shape}" for number in numbers]
        call("tc", "-n", self.switch, "-batch", "-", lines=down)
        for number in numbers:
            call("ip", "-n", self.node(number), "-batch", "-", lines=_up(number + 1))
            up = [f"qdisc add dev {DEVICE} {shape}"]
            call("tc", "-n", self.node(number), "-batch", "-", lines=up)

    def traffic(self) -> list[tuple[int, int]]:
        """Return the bytes that each node has sent and received over its link."""
        found = []
        for number in range(self.nodes):
            text = call("ip", "-n", self.node(number), "-s", "-j", "link", "show", DEVICE)
            counts = json.loads(text)[0]["stats64"]
            found.append((counts["tx"]["bytes"], counts["rx"]["bytes"]))
        return found

    def run(self, mpiexec: str, ranks_per_node: int, program: Sequence[str]) -> int:
        """Run a program on all nodes, with the user's environment, and return its exit status."""
        hosts = [f"{NETWORK}.{number + 1}:{ranks_per_node}" for number in range(self.nodes)]
        ranks = str(self.nodes * ranks_per_node)
        env = {name: value for name, value in os.environ.items() if not NESTED.match(name)}
        env["BENCH_CLUSTER"] = self.name  # for ENTER
        env["UCX_NET_DEVICES"] = DEVICE
        env["UCX_TLS"] = "tcp,self" + (",posix,sysv,cma" if ranks_per_node > 1 else "")
        call(str(ENTER), f"{NETWORK}.1", "true", env=env)  # where it cannot, this says why
        command = [tool("ip"), "netns", "exec", self.switch, mpiexec]
        command += ["-launcher", "ssh", "-launcher-exec", str(ENTER), "-iface", DEVICE]
        command += ["-hosts", ",".join(hosts), "-n", ranks, *program]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
        try:
            return process.wait()
        finally:
            process.terminate()  # if it runs; it then ends its ranks
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def _up(number: int) -> list[str]:
    """Return the lines for ip that give a namespace its address."""
    return [
        "link set lo up",
        f"link set {DEVICE} addrgenmode none up",
        f"address add {NETWORK}.{number}/24 dev {DEVICE}",
    ]


def check_machine() -> None:
    """Raise where namespaces cannot be made for want of root or of programs."""
    if os.geteuid() != 0:
        message = "a cluster of namespaces needs root: run it with sudo, or in a container as root"
        raise Refused(message)
    for name in ("ip", "tc", "unshare"):
        tool(name)


def find_mpiexec() -> str:
    """Return MPICH's mpiexec."""
    try:
        launcher = Launcher.find()
    except FileNotFoundError as error:
        raise Refused(str(error)) from None
    if launcher.kind != "mpich":
        message = f"{launcher.mpiexec} is Open MPI's; the cluster knows MPICH's launcher only"
        raise Refused(message)
    return launcher.mpiexec


def report(cluster: Cluster, before: list[tuple[int, int]], rows: list[dict[str, Any]]) -> None:
    """Print what went over the links, and how much of them each row of a benchmark used."""
    click.echo(f"\n{'link of':<8} {'sent (MB)':>12} {'received (MB)':>14}   10^6 B, all of the run")
    for number, (old, new) in enumerate(zip(before, cluster.traffic(), strict=True)):
        sent, received = (late - early for early, late in zip(old, new, strict=True))
        click.echo(f"{f'node{number}':<8} {sent / 1e6:>12.2f} {received / 1e6:>14.2f}")
    if rows:
        click.echo(
            f"\nlink: 2 (N-1)/N size, N = {cluster.nodes}, over time, of "
            f"{cluster.rate / 1e6:g} Mbit/s; headers take {HEADERS:.1%} of a link, so "
            f"{1 - HEADERS:.1%} is all there is"
        )
        click.echo("\n".join(share_table(rows, cluster.nodes, cluster.rate)))


def json_file(arguments: Sequence[str]) -> Path | None:
    """Return the file that the benchmark's arguments name for its rows."""
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option == "--json" or option.startswith("--json="):
            return Path(option.partition("=")[2] or value)
    return None


def run(cluster: Cluster, ranks_per_node: int, command: str, arguments: list[str]) -> int:
    """Run a program or the benchmark on a cluster, report, and return its exit status."""
    mpiexec = find_mpiexec()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{cluster.name}-"))
        stack.enter_context(cluster.built())
        file = None
        if command:
            program = [*shlex.split(command), *arguments]
        else:
            program = [sys.executable, "-m", "hpccoll", "bench", *arguments]
            file = json_file(arguments)
            if file is None and arguments[0] == "allreduce":
                file = Path(folder, "rows.json")
                program += ["--json", str(file)]
        before = cluster.traffic()
        status = cluster.run(mpiexec, ranks_per_node, program)
        found = json.loads(file.read_text(encoding="utf-8")) if file and not status else {}
        rows = found["rows"] if found.get("collective") == "allreduce" else []
        report(cluster, before, rows)
    return status


@click.command(
    help=(__doc__ or "").replace("\n\n    ", "\n\n\b\n    "),
    context_settings={"show_default": True, "allow_interspersed_args": False},
)
@click.option("-N", "--nodes", type=click.IntRange(2, HEAD - 1), default=4)
@click.option("-k", "--ranks-per-node", type=click.IntRange(1), default=1)
@click.option("-r", "--rate", type=parse_rate, default="1gbit", help="Of a link, each direction.")
@click.option("--command", default="", help="A program to run in place of the benchmark.")
@click.option("--clean", "wants_clean", is_flag=True, help="Remove what killed runs have left.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    nodes: int,
    ranks_per_node: int,
    rate: int,
    command: str,
    wants_clean: bool,
    arguments: tuple[str, ...],
) -> None:
    check_machine()
    if wants_clean:
        click.echo("\n".join(f"removed {name}" for name in clean()) or "nothing to remove")
        return
    with signals(leave):
        cluster = Cluster(nodes, rate)
        given = arguments or (() if command else DEFAULT)
        sys.exit(run(cluster, ranks_per_node, command, list(given)))


if __name__ == "__main__":
    main()

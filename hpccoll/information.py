"""`info`: what this process runs with. It looks, and changes nothing: MPI is not started by it."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

MINE = ("HPCCOLL_",)
RELEVANT = (*MINE, "OMPI_MCA_", "MPICH_", "UCX_", "I_MPI_", "OMP_NUM_THREADS")
"""What the environment variables that change a collective's time begin with. Only these are ever
recorded: the rest of an environment is nobody's business, and may hold secrets."""

LAUNCHERS_OWN = {
    "OMPI_MCA_PREFIXES",
    "OMPI_MCA_cpu_type",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_num_procs",
}
"""Variables that Open MPI's launcher sets for every rank."""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Where launchers tell a process its rank."""


def info(comm: "MPI.Intracomm | None" = None) -> dict[str, Any]:
    """Return versions, the MPI library, the kernels and the machine, as this process sees them.

    MPI is not started. Where ``mpi4py.MPI`` has not been imported yet, which starts it, nothing is
    known of the MPI library, and ``["mpi"]["note"]`` says so. A local call.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_WORLD
        Whose nodes are told.

    Returns
    -------
    dict
        Text, numbers, bools, None, and lists and dicts of them; ``json.dumps`` takes it.

        versions : dict
            Of hpccoll, python, numpy, and, where they are installed, mpi4py and ml_dtypes.
        mpi_started : bool
            Whether MPI is initialised, and not finalised, in this process.
        mpi : dict
            ``library`` and ``version`` ("MPICH", "5.0.2"), ``standard`` ("5.0") and
            ``thread_level`` ("single", "funneled", "serialized", "multiple"); None where unknown.
            ``note`` says why something is unknown, and is empty otherwise.
        kernel : dict
            ``target``, the CPU target whose loops run, and ``available``, those that could.
            ``note`` as above.
        nodes : dict
            ``text`` ("2 nodes of 4 ranks"), ``of_ranks``, the node number of each rank, ``memory``,
            what ranks of a node share ("arena", "window" or "none"), and ``reads_peers``, whether
            they may read each other's private memory; None where unknown, which is so until the
            first collective call on `comm`. ``note`` as above.
        nonblocking : dict
            ``progress``, how calls that were begun go on: by a "thread" of their communicator, or
            "in test and wait" only, which is so below ``MPI.THREAD_MULTIPLE``; None where unknown.
            ``note`` as above; it also says why there is no thread.
        cuda_aware : dict
            Whether the MPI library takes pointers to device memory: ``answer``, "yes", "no" or
            "unknown", and ``how`` that is known. Where it says that it does and there is a device,
            that was tried in a child process, which takes seconds the first time.
        cpu : dict
            ``model``, and ``cores_usable``: how many this process may run on.
        platform : str
            Operating system and architecture.
        environment : dict
            The variables ``HPCCOLL_...`` that are set.

    Examples
    --------
    >>> sorted(info())
    ['cpu', 'cuda_aware', 'environment', 'kernel', 'mpi', 'mpi_started', 'nodes', 'nonblocking',
    'platform', 'versions']
    >>> info()["kernel"]["target"] in info()["kernel"]["available"]
    True
    """
    started, mpi = _mpi()
    return {
        "versions": _versions(),
        "mpi_started": started,
        "mpi": mpi,
        "kernel": _kernel(),
        "nodes": _nodes(comm, started),
        "nonblocking": _nonblocking(started, mpi["note"]),
        "cuda_aware": _cuda_aware(started, mpi["note"]),
        "cpu": {"model": _cpu_model(), "cores_usable": _cores_usable()},
        "platform": platform.platform(),
        "environment": environment(MINE),
    }


def environment(beginnings: tuple[str, ...] = RELEVANT) -> dict[str, str]:
    """Return the environment variables whose names begin with one of these, by name."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(beginnings) and name not in LAUNCHERS_OWN
    }


def launcher_rank() -> int | None:
    """Return this process' rank as its launcher tells it, without MPI; None where there is none."""
    for name in RANK_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


def _versions() -> dict[str, str]:
    from hpccoll import __version__

    versions = {
        "hpccoll": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": _version("mpi4py"),
        "ml_dtypes": _version("ml_dtypes"),
    }
    return {name: version for name, version in versions.items() if version is not None}


def _version(name: str) -> str | None:
    """Return the version of a package, without importing it; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _mpi() -> tuple[bool, dict[str, str | None]]:
    found: dict[str, str | None] = dict.fromkeys(("library", "version", "standard", "thread_level"))
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        note = "not started: mpi4py.MPI has not been imported"
        if not _installed("mpi4py"):
            note = "not available: mpi4py is not installed"
        return False, {**found, "note": note}
    library, numbers = module.get_vendor()
    found["library"] = library
    found["version"] = ".".join(map(str, numbers))
    found["standard"] = ".".join(map(str, module.Get_version()))
    if not module.Is_initialized():
        return False, {**found, "note": "not started: mpi4py.MPI has been imported, uninitialised"}
    if module.Is_finalized():
        return False, {**found, "note": "not started: MPI has been finalised"}
    levels = {
        module.THREAD_SINGLE: "single",
        module.THREAD_FUNNELED: "funneled",
        module.THREAD_SERIALIZED: "serialized",
        module.THREAD_MULTIPLE: "multiple",
    }
    found["thread_level"] = levels.get(module.Query_thread())
    return True, {**found, "note": ""}


def _installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ValueError:  # sys.modules holds None in its place
        return False


def _kernel() -> dict[str, Any]:
    # A diagnosis must not die of what it is asked about: HPCCOLL_KERNEL may name a target that does
    # not run here, and the module may not have been compiled.
    try:
        from hpccoll import _kernels
    except (ImportError, ValueError) as error:
        return {"target": None, "available": [], "note": f"not available: {error}"}
    return {"target": _kernels.target(), "available": list(_kernels.targets()), "note": ""}


def _nodes(comm: "MPI.Intracomm | None", started: bool) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("text", "of_ranks", "memory", "reads_peers"))
    channel = None
    if started and "hpccoll.channel" in sys.modules:  # else no call can have been made
        from mpi4py import MPI

        from hpccoll.channel import find_channel

        channel = find_channel(MPI.COMM_WORLD if comm is None else comm)
    if channel is None:
        return {**found, "note": "not known: no collective call yet on this communicator"}
    return {
        "text": channel.topology.text(),
        "of_ranks": list(channel.topology.nodes),
        "memory": channel.meeting.memory,
        "reads_peers": channel.meeting.reads_peers,
        "note": channel.meeting.why_not,
    }


def _nonblocking(started: bool, note: str | None) -> dict[str, str | None]:
    if not started:
        return {"progress": None, "note": f"not known: MPI is {note}"}
    try:
        from hpccoll.progress import thread_levels
    except (ImportError, ValueError) as error:  # as in `_kernel`
        return {"progress": None, "note": f"not available: {error}"}
    return {**thread_levels()}


def _cuda_aware(started: bool, note: str | None) -> dict[str, str]:
    if not started:
        return {"answer": "unknown", "how": f"MPI is {note}"}
    from hpccoll.cuda.awareness import cuda_aware

    return cuda_aware()._asdict()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _cores_usable() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def lines(report: Mapping[str, Any]) -> list[str]:
    """Write what `info` returns as lines of text, one per entry."""
    mpi, kernel, cpu = report["mpi"], report["kernel"], report["cpu"]
    library = f"{mpi['library']} {mpi['version']}, standard {mpi['standard']}"
    if mpi["thread_level"]:
        library += f", threads {mpi['thread_level']}"
    known = [library] if mpi["library"] else []
    loops = f"{kernel['target']} (runs here: {', '.join(kernel['available'])})"
    rows = {
        **report["versions"],
        "MPI": "; ".join([*known, *([mpi["note"]] if mpi["note"] else [])]),
        "kernel": kernel["note"] or loops,
        "nodes": _text_of_nodes(report["nodes"]),
        "non-blocking": _text_of_nonblocking(report["nonblocking"]),
        "CUDA-aware": f"{report['cuda_aware']['answer']}: {report['cuda_aware']['how']}",
        "CPU": f"{cpu['model']}, {cpu['cores_usable']} cores usable",
        "platform": report["platform"],
        "environment": " ".join(f"{k}={v}" for k, v in report["environment"].items()) or "-",
    }
    width = max(map(len, rows))
    return [f"{name.ljust(width)}  {value}" for name, value in rows.items()]


def _text_of_nodes(nodes: Mapping[str, Any]) -> str:
    if nodes["text"] is None:
        return str(nodes["note"])
    reads = "read each other's memory" if nodes["reads_peers"] else "do not read private memory"
    note = f" ({nodes['note']})" if nodes["note"] else ""
    return f"{nodes['text']}; they share: {nodes['memory']}{note}, and {reads}"


def _text_of_nonblocking(nonblocking: Mapping[str, Any]) -> str:
    if nonblocking["progress"] is None:
        return str(nonblocking["note"])
    note = f" ({nonblocking['note']})" if nonblocking["note"] else ""
    return f"calls progress: {nonblocking['progress']}{note}"

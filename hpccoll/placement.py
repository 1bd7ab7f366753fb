"""Finds out which ranks of a communicator share a node: from MPI, or as the environment says."""

import os
from collections.abc import Iterable
from pathlib import Path

from mpi4py import MPI

from hpccoll.topology import VARIABLE, Topology, parse

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def discover(comm: MPI.Intracomm) -> Topology:
    """Return which ranks of a communicator share a node. Collective.

    The environment variable ``HPCCOLL_NODES`` goes first. It describes the ranks of
    ``MPI.COMM_WORLD``, so that it holds for parts of that as well. Otherwise MPI tells, unless it
    says that no rank shares a node with another one although some run on the same machine, as
    some builds do; then the machine counts.

    Raises
    ------
    ValueError
        On all ranks, if the variable cannot be read, or differs between ranks.
    """
    text = os.environ.get(VARIABLE, "").strip()
    node, error = 0, ""
    if text:
        try:
            node = parse(text, MPI.COMM_WORLD.size)[MPI.COMM_WORLD.rank]
        except ValueError as reason:
            error = str(reason)
    # Also where the variable is set: perhaps it is not on all ranks, and this is collective.
    told = comm.allgather((text, node, error, _lowest_with_shared_memory(comm), _machine()))
    texts, nodes, errors, lowest, machines = zip(*told, strict=True)
    raise_first(errors)
    for rank, other in enumerate(texts):
        if other != texts[0]:
            said = [repr(value) if value else "not set" for value in (texts[0], other)]
            message = (
                f"environment variable {VARIABLE} is {said[0]} on rank 0 and {said[1]} on rank "
                f"{rank}; wanted the same on all ranks"
            )
            raise ValueError(message)
    if text:
        return Topology.of_labels(nodes)
    return Topology.of_labels(_labels(lowest, machines))


def raise_first(errors: Iterable[str]) -> None:
    """Raise the first of the errors that all ranks gathered, if any: so it is the same on all.

    Parameters
    ----------
    errors : iterable of str
        Empty for a rank that has none.

    Raises
    ------
    ValueError
        With that text.
    """
    error = next(filter(None, errors), "")
    if error:
        raise ValueError(error)


def _labels(lowest: tuple[int, ...], machines: tuple[tuple[str, str], ...]) -> tuple[object, ...]:
    """Return what tells nodes apart: what MPI says, or machines where that cannot be."""
    alone = len(set(lowest)) == len(lowest)
    return machines if alone and len(set(machines)) < len(machines) else lowest


def _lowest_with_shared_memory(comm: MPI.Intracomm) -> int:
    """Return the lowest rank that can share memory with this one, as MPI sees it."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    here, all_ranks = shared.Get_group(), comm.Get_group()
    (lowest,) = here.Translate_ranks([0], all_ranks)
    here.Free()
    all_ranks.Free()
    shared.Free()
    return int(lowest)


def _machine() -> tuple[str, str]:
    """Return what tells this machine from others: its name, and on Linux the boot it is in.

    Names alone do not: clones of one image may have the same.
    """
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return MPI.Get_processor_name(), boot

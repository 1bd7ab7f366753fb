"""How ranks of a node wait for each other: spinning, letting others run, or sleeping.

A rank that spins sees a change first, and one that lets others run does not keep a core from the
rank that it waits for. Which is better depends on whether every rank has a core for itself.
"""

import os
from dataclasses import dataclass

from mpi4py import MPI

from hpccoll.placement import raise_first
from hpccoll.topology import Topology

VARIABLE = "HPCCOLL_WAIT"

LOCAL_SIZE_VARIABLES = (
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
"""Where launchers tell how many ranks of the job are on this node."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How to wait.

    Attributes
    ----------
    spins : int
        Looks at what is waited for before anything else is done.
    yield_nanoseconds : int
        For so long, others are let run between looks. After that the rank sleeps, longer the
        longer it waits, up to 1 ms.
    crowded : bool
        Whether some node has fewer cores for its ranks than there are ranks; equal on all ranks.
    nap_nanoseconds : int
        Longest sleep between two looks at a message from another node; 0: MPI waits, and spins.
    spare : bool
        Whether every node has two cores for each of its ranks, so that a thread beside a rank has
        one of its own; equal on all ranks.
    """

    spins: int
    yield_nanoseconds: int
    crowded: bool
    nap_nanoseconds: int
    spare: bool = False

    @classmethod
    def agree(cls, comm: MPI.Intracomm, topology: Topology) -> "Waiting":
        """Choose, by setting and by cores. Collective.

        Raises
        ------
        ValueError
            On all ranks, if ``HPCCOLL_WAIT`` of any cannot be read.
        """
        text = os.environ.get(VARIABLE, "").strip() or "auto"
        why = ""
        if text not in (*SETTINGS, "auto"):
            why = (
                f"environment variable {VARIABLE} is {text!r}; wanted one of "
                f"{', '.join(['auto', *SETTINGS])}"
            )
        told = comm.allgather((why, _cores(), _local_size()))
        raise_first(why for why, _, _ in told)
        crowded, spare = False, True
        for node in range(topology.node_count):
            here = [told[member] for member in topology.members(node)]
            cores = frozenset().union(*(cores for _, cores, _ in here))
            ranks = max(len(here), *(local for _, _, local in here))
            crowded |= ranks > len(cores)
            spare &= 2 * ranks <= len(cores)
        if text == "auto":
            text = "yield" if crowded else "spin"
        spins, yield_nanoseconds, nap_nanoseconds = SETTINGS[text]
        return cls(spins, yield_nanoseconds, crowded, nap_nanoseconds, spare)


SETTINGS = {
    "spin": (2000, 1_000_000, 0),
    "yield": (0, 2_000_000, 50_000),
    "sleep": (0, 0, 50_000),
}
"""Spins, nanoseconds of yielding, longest nap. About 100 us of spinning: longer than what a rank
does between two looks of its peers at it, shorter than a time slice. A nap is shorter than the
way of a message from another node."""


def _cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return frozenset(range(os.cpu_count() or 1))


def _local_size() -> int:
    """Return how many ranks of the whole job the launcher put on this node, as far as it tells."""
    texts = (os.environ.get(name, "") for name in LOCAL_SIZE_VARIABLES)
    return max((int(text) for text in texts if text.isdecimal()), default=0)

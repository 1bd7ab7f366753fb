"""Which algorithm runs: "auto" and what overrides it. A function of values equal on all ranks.

The thresholds come from bench/collectives.py, those inside a node from bench/node.py, those between
nodes from bench/cluster.py; docs/architecture.md says how to measure them again. A user overrides
them with the argument `algorithm`, or for a whole run with the environment variable
``HPCCOLL_ALGORITHM`` (read on rank 0).
"""

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from hpccoll.algorithms import ALGORITHMS, AUTO, REGISTRY, Algorithm, find
from hpccoll.algorithms.flat import by_count
from hpccoll.time_limits import check_timeout
from hpccoll.topology import Topology

VARIABLE = "HPCCOLL_ALGORITHM"

NCCL = "nccl"
"""The name that leaves a call on arrays in GPU memory to NCCL (`hpccoll.cuda.nccl`); it is in no
registry."""

NCCL_COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "reduce", "broadcast")

SMALL_BYTES = 32 << 10
"""Up to here the number of messages decides: whole vectors, fewest steps."""

NO_LIMIT = 1 << 60
"""Bytes; more than any vector has."""

NODE_SEGMENT_BYTES = 256 << 10
"""Most of one of the buffers through which private vectors go inside a node: a part of a
second-level cache."""

FAR_NANOSECONDS = 200
"""What takes longer to be seen by another rank crosses more than a shared cache. Vectors that go
through slots cross twice, once for the store and once for the load, and pay that price twice."""


class NodeLimits(NamedTuple):
    """Which design runs inside a node at which size; docs/architecture.md has the designs.

    Attributes
    ----------
    gather_bytes : int
        Up to here every rank reads all vectors and reduces them itself: one wait per segment.
    slot_bytes : int
        Up to here vectors that are not shared go through the slots; above, ranks read each
        other's private memory, where the system allows that.
    shared_bytes : int
        From here on, vectors that are shared are reduced where they lie.
    segment_bytes : int
        What goes through a buffer of a slot at once: a multiple of 64, up to `NODE_SEGMENT_BYTES`.
    """

    gather_bytes: int
    slot_bytes: int
    shared_bytes: int
    segment_bytes: int


def node_limits(size: int, crowded: bool, crossing: int) -> NodeLimits:
    """Return the limits for the ranks of a node, from bench/node.py.

    Parameters
    ----------
    size : int
        Number of ranks.
    crowded : bool
        Whether there are fewer cores than ranks.
    crossing : int
        Nanoseconds until other ranks see what one has stored; 0 where unknown.
    """
    far = crossing > FAR_NANOSECONDS
    # Ranks move between cores while they run: what is far now may be near then, and crowded ranks
    # are both. Large vectors go the way that costs little where they are near and gains where not.
    slot_bytes = (128 << 10) if far else (2 << 20) if crowded else (8 << 20)
    return NodeLimits(
        gather_bytes=(32 if size == 2 and not crowded else 8) << 10,
        slot_bytes=slot_bytes,
        shared_bytes=8 << 10,
        segment_bytes=(64 << 10) if crowded else NODE_SEGMENT_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What a communicator or a call asks for; equal on all ranks.

    Attributes
    ----------
    algorithm : str
        A name of the registry, or "auto".
    segment_bytes : int or None
        Upper limit of one message in bytes; None for the engine's default.
    timeout : float or None
        Seconds that a rank waits for one thing; None for the default of the environment. It may
        differ between ranks, and makes no other plan.
    checked : bool or None
        Whether ranks compare what they call before they do it; None for the default of the
        environment.
    """

    algorithm: str = AUTO
    segment_bytes: int | None = None
    timeout: float | None = field(default=None, compare=False)
    checked: bool | None = None

    def check(self) -> None:
        """Raise TypeError or ValueError where a setting cannot be used."""
        check_timeout("timeout", self.timeout)
        if not (self.checked is None or isinstance(self.checked, bool)):
            message = (
                f"check is {self.checked!r} of type {type(self.checked).__name__}; wanted a bool "
                "or None"
            )
            raise TypeError(message)
        if not isinstance(self.algorithm, str):
            message = (
                f"algorithm is {self.algorithm!r} of type {type(self.algorithm).__name__}; "
                f"wanted one of {', '.join([AUTO, *ALGORITHMS])}"
            )
            raise TypeError(message)
        if self.algorithm != AUTO:
            check_name(self.algorithm)
        if self.segment_bytes is None:
            return
        if isinstance(self.segment_bytes, bool) or not isinstance(self.segment_bytes, int):
            message = (
                f"segment_bytes is {self.segment_bytes!r} of type "
                f"{type(self.segment_bytes).__name__}; wanted a positive int or None"
            )
            raise TypeError(message)
        if self.segment_bytes <= 0:
            message = f"segment_bytes is {self.segment_bytes}; wanted a positive int or None"
            raise ValueError(message)


def requested(
    settings: Settings, environment: str, collective: str = "allreduce", *, on_device: bool = False
) -> str:
    """Return the algorithm asked for: the argument, else the environment's, else "auto".

    A communicator and the environment name one algorithm for all collectives; those that have none
    of that name are left to "auto".

    Parameters
    ----------
    settings, environment
        What was asked for.
    collective : str
        Which one.
    on_device : bool
        Whether the arrays are in GPU memory.

    Raises
    ------
    ValueError
        The environment names an algorithm that no collective has; the text lists the names. Or
        "nccl" was asked for, and the arrays are in host memory.
    """
    name = settings.algorithm
    if name == AUTO and environment not in ("", AUTO):
        name = environment
        try:
            check_name(name)
        except ValueError as error:
            message = f"environment variable {VARIABLE}: {error}"
            raise ValueError(message) from None
    if name == NCCL and collective in NCCL_COLLECTIVES:
        if on_device:
            return NCCL
        if settings.algorithm == NCCL:
            message = f"algorithm {NCCL!r} is for arrays in GPU memory, and these are in the host's"
            raise ValueError(message)
    return name if _has(collective, name) else AUTO


def check_name(name: str) -> None:
    """Raise ValueError where no collective has an algorithm of that name."""
    first = name.partition(":")[0]
    if name == NCCL or any(_has(collective, name) for collective in REGISTRY):
        return
    find(name, next((each for each, known in REGISTRY.items() if first in known), "allreduce"))


def _has(collective: str, name: str) -> bool:
    """Whether a collective has an algorithm of that name, also of a flat one between nodes."""
    first, colon, _ = name.partition(":")
    if first not in REGISTRY[collective] or not colon:
        return first in REGISTRY[collective]
    try:
        find(name, collective)
    except ValueError:
        return False
    return True


def from_environment() -> str:
    """Return the value of ``HPCCOLL_ALGORITHM`` in this process, or an empty string."""
    return os.environ.get(VARIABLE, "").strip()


def select(*, size: int, nbytes: int, count: int, collective: str = "allreduce") -> str:
    """Return the name of the algorithm that "auto" takes where all goes by messages.

    Parameters
    ----------
    size : int
        Number of ranks.
    nbytes, count : int
        Bytes and elements of the vector.
    collective : str
        Whose algorithms there are to choose from.

    Returns
    -------
    str
        The one with fewest steps where the number of messages decides, else the one with least
        bytes; for all-reduce what `hpccoll.algorithms.flat.by_count` says.
    """
    few_steps, few_bytes = MESSAGE_CHOICES[collective]
    if nbytes <= SMALL_BYTES:
        return few_steps
    return few_bytes or by_count(size, count)


MESSAGE_CHOICES = {
    "allreduce": ("recursive_doubling", ""),
    "reduce_scatter": ("circulant", "circulant"),
    "allgather": ("circulant", "circulant"),
    "reduce": ("binomial", "reduce_scatter_gather"),
    "broadcast": ("binomial", "scatter_allgather"),
    "barrier": ("dissemination", "dissemination"),
}
"""By collective: the algorithm of fewest steps and that of least bytes."""

FEW_STEPS_BETWEEN = {
    "allreduce": "recursive_doubling",
    "reduce": "binomial",
    "broadcast": "binomial",
}
"""By collective: what runs between nodes where the number of messages decides."""


def choose(
    settings: Settings,
    environment: str,
    *,
    topology: Topology,
    nbytes: int,
    count: int,
    through_memory: bool,
    collective: str = "allreduce",
    on_device: bool = False,
) -> Algorithm | None:
    """Return the algorithm that runs a call; None for the node path.

    Parameters
    ----------
    settings, environment
        What was asked for; a named algorithm always runs as itself.
    topology : Topology
        Which ranks share a node.
    nbytes, count : int
        Bytes and elements of the vector.
    through_memory : bool
        Whether ranks of a node share memory, and the loops of the call can run there.
    collective : str
        Which one.
    on_device : bool
        Whether the arrays are in GPU memory. What NCCL runs has the algorithm that would else.
    """
    name = requested(settings, environment, collective, on_device=on_device)
    if name not in (AUTO, NCCL):
        return find(name, collective)
    if through_memory and topology.is_one_node:
        return None
    if through_memory and "two_level" in REGISTRY[collective]:
        # One leader per node fills the links that this was measured on (bench/cluster.py).
        few_steps = FEW_STEPS_BETWEEN.get(collective) if nbytes <= SMALL_BYTES else None
        return find(f"two_level:{few_steps}" if few_steps else "two_level", collective)
    flat = select(size=topology.size, nbytes=nbytes, count=count, collective=collective)
    return find(flat, collective)

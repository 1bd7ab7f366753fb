"""What the registry knows of an algorithm."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from hpccoll.schedule import Schedule
from hpccoll.topology import Topology

COMMUTATIVE_ONLY = "commutative operations only"


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the registry.

    Attributes
    ----------
    name : str
        What users call it.
    schedule : callable
        ``schedule(rank, size, count) -> Schedule``, pure.
    purpose : str
        What it is for, in one line.
    restrictions : str
        ``"none"``, or what it refuses.
    ordered : bool
        Whether operands keep rank order, so that operations that do not commute come out right.
    one_tree : bool
        Whether all elements are worked out by the same expression, so that an element's bits do
        not depend on where in the vector it lies.
    cost : str
        Predicted time.
    steps_formula, sent_formula, scratch_formula : str
        Steps of the rank that has most; bytes that a rank sends; scratch of an unsegmented run at
        the rank that needs most.
    steps : callable
        ``steps(size)``: steps of the rank that has most, where no chunk is empty.
    sent, reduced : callable
        ``sent(size, count)`` and ``reduced(size, count)``: elements sent, and elements reduced, by
        all ranks together. Exact for any count.
    scratch : callable
        ``scratch(size, count)``: elements of scratch in an unsegmented run, at the rank that needs
        most.
    source : str
        Where it was published.
    network : str
        Of a hierarchical algorithm: the flat one that runs between nodes; empty for the usual one.
    topology : Topology or None
        Of a hierarchical algorithm: what `schedule` and the formulas are for; None for any number
        of ranks that share one node.
    place : callable or None
        What makes an algorithm hierarchical: ``place(algorithm, topology)`` returns it with the
        schedule and the formulas for that topology.
    leaders : callable
        ``leaders(topology)``: of a hierarchical algorithm, how many ranks speak for each node.
    """

    name: str
    schedule: Callable[[int, int, int], Schedule]
    purpose: str
    restrictions: str
    ordered: bool
    one_tree: bool
    cost: str
    steps_formula: str
    sent_formula: str
    scratch_formula: str
    steps: Callable[[int], int]
    sent: Callable[[int, int], int]
    reduced: Callable[[int, int], int]
    scratch: Callable[[int, int], int]
    source: str
    network: str = ""
    topology: Topology | None = None
    place: Callable[["Algorithm", Topology], "Algorithm"] | None = None
    leaders: Callable[[Topology], int] = lambda topology: 0

    @property
    def hierarchical(self) -> bool:
        """Whether the schedule depends on which ranks share a node."""
        return self.place is not None

    def on(self, topology: Topology | None) -> "Algorithm":
        """Return the algorithm as it runs on a topology: itself if it is flat, or for None."""
        if topology is None or self.place is None or self.topology == topology:
            return self
        return self.place(self, topology)


def for_any_count(
    schedule: Callable[[int, int, int], Schedule],
) -> Callable[[int, int, int], Schedule]:
    """Let a schedule for fewer elements than ranks be a part of that for one element per rank.

    So which message goes where does not depend on the count, and where ranks pass different counts,
    each message meets one that it can be compared with.
    """

    @functools.wraps(schedule)
    def for_any_count(rank: int, size: int, count: int) -> Schedule:
        if count >= size:
            return schedule(rank, size, count)
        return schedule(rank, size, size).first(count)

    return for_any_count

"""What the registry knows of an algorithm."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from hpccoll.algorithms.collective import COLLECTIVES
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
    collective : str
        What it does: a name of `hpccoll.algorithms.COLLECTIVES`.
    root : int
        Of a collective that has one: the root that `schedule` and the formulas are for.
    counts : tuple of int or None
        Of a collective that is split: how many elements the chunk of each rank has, where
        `schedule` and the formulas are for those; None for chunks that differ by one at most.
    hierarchical : bool
        Whether the schedule depends on which ranks share a node.
    network : str
        Of a hierarchical algorithm: the flat one that runs between nodes; empty for the usual one.
    topology : Topology or None
        Of a hierarchical algorithm: what `schedule` and the formulas are for; None for any number
        of ranks that share one node.
    place : callable or None
        ``place(algorithm, topology, root, counts)`` returns the algorithm with the schedule and the
        formulas for these; None where there is nothing to place.
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
    collective: str = "allreduce"
    root: int = 0
    counts: tuple[int, ...] | None = None
    hierarchical: bool = False
    network: str = ""
    topology: Topology | None = None
    place: "Place | None" = None
    leaders: Callable[[Topology], int] = lambda topology: 0

    def on(
        self,
        topology: Topology | None = None,
        *,
        root: int = 0,
        counts: tuple[int, ...] | None = None,
    ) -> "Algorithm":
        """Return the algorithm as it runs on a topology, for a root and for chunks of given sizes.

        Parameters
        ----------
        topology : Topology, optional
            Which ranks share a node. A flat algorithm does not care; None leaves it as it is.
        root : int
            The root, of a collective that has one.
        counts : tuple of int, optional
            Elements of each rank's chunk, of a collective that is split. By default chunks differ
            by one element at most.

        Returns
        -------
        Algorithm
            Itself, if nothing changes.

        Raises
        ------
        ValueError
            If the collective has no root, or its caller sees no chunks.
        """
        collective = COLLECTIVES[self.collective]
        if root and not collective.rooted:
            raise ValueError(f"{self.collective} has no root; got root={root!r}")
        if counts is not None and not collective.split:
            raise ValueError(f"{self.collective} has no chunks of given sizes; got {counts!r}")
        if topology is None or not self.hierarchical:
            topology = self.topology
        if self.place is None or (topology, root, counts) == (
            self.topology,
            self.root,
            self.counts,
        ):
            return self
        return self.place(self, topology, root, counts)

    def check(self, size: int, count: int) -> None:
        """Check that root, chunk sizes and topology fit `size` ranks and `count` elements.

        Raises
        ------
        ValueError
            If not. The text tells what came and what was wanted.
        """
        if not 0 <= self.root < size:
            raise ValueError(f"root must be 0 to {size - 1}; got {self.root}")
        if self.counts is not None:
            if len(self.counts) != size:
                raise ValueError(
                    f"counts must have a number for each of {size} ranks; got {len(self.counts)}"
                )
            if min(self.counts) < 0:
                raise ValueError(f"a number in counts must be at least 0; got {min(self.counts)}")
            if sum(self.counts) != count:
                raise ValueError(
                    f"counts must add up to the {count} elements of the vector; "
                    f"they add up to {sum(self.counts)}"
                )
        if self.topology is not None and self.topology.size != size:
            raise ValueError(
                f"the topology is that of {self.topology.size} ranks, and there are {size}"
            )


Place = Callable[[Algorithm, Topology | None, int, tuple[int, ...] | None], Algorithm]
"""How an algorithm is placed: see `Algorithm.place`."""


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

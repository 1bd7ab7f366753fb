"""The simulator: what an algorithm sends, and how long it takes, without running it.

It walks the same schedules that the engine runs and the prover checks, so what it counts is what
travels. The predicted time is a model's, and says as much about a machine as alpha, beta and gamma
do. No MPI is needed, and no machine of that size either.
"""

import math
import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpccoll.algorithms import Algorithm, find
from hpccoll.chunks import Range
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology, parse
from hpccoll.traffic import RankTraffic, Simulation

ALPHA = 2e-6
"""Seconds per message. This and the others are round figures for a cluster, not measured ones."""
BETA = 1 / 10e9
"""Seconds per byte sent: 10 GB/s."""
GAMMA = 1 / 20e9
"""Seconds per byte reduced: 20 GB/s."""
ALPHA_WITHIN = 0.5e-6
"""Seconds per message between ranks that share a node."""
BETA_WITHIN = 1 / 20e9
"""Seconds per byte sent between ranks that share a node: 20 GB/s."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def simulate(
    algorithm: str | Algorithm,
    *,
    size: int,
    count: int | None = None,
    nbytes: int | None = None,
    collective: str = "allreduce",
    root: int = 0,
    counts: Sequence[int] | None = None,
    itemsize: int = 4,
    partial_itemsize: int | None = None,
    nodes: str | Sequence[int] | None = None,
    alpha: float = ALPHA,
    beta: float = BETA,
    gamma: float = GAMMA,
    alpha_within: float | None = None,
    beta_within: float | None = None,
) -> Simulation:
    """Count what an algorithm sends, and predict how long it takes.

    A step starts when its rank and its peers have reached it. It lasts the longer of what it sends
    and what it receives, alpha + beta * bytes for each, since a rank sends and receives at the
    same time, one message each way; gamma * bytes to be reduced are added. Ranks do not wait for
    each other otherwise. Messages are not cut into segments.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name of the registry, or an entry like those in it.
    size : int
        Number of ranks, at least 1.
    count, nbytes : int
        Elements or bytes of the vector: exactly one of them.
    collective : str
        What the algorithm of that name is to do; an entry of the registry knows by itself. The
        vector of a barrier has one token per rank, and its messages hold no bytes: give neither
        `count` nor `nbytes`.
    root : int
        The root, of a collective that has one.
    counts : sequence of int, optional
        Elements of each rank's chunk, of a collective that is split: `count` is their sum. By
        default chunks differ by one element at most.
    itemsize : int
        Bytes per element.
    partial_itemsize : int, optional
        Bytes per element of messages that hold partial sums, if they differ: 4 for half types,
        whose partial sums travel in float32.
    nodes : str or sequence of int, optional
        Which ranks share a node: how many there are on each ("4,4"), or a node number for each
        rank. By default a hierarchical algorithm has them all on one, and for a flat one, each
        counts as a node of its own.
    alpha, beta, gamma : float
        Seconds per message, per byte sent, per byte reduced. The defaults, `ALPHA`, `BETA` and
        `GAMMA`, are there to compare algorithms; measure your own to predict times.
    alpha_within, beta_within : float, optional
        Instead of alpha and beta, for messages within a node. By default `ALPHA_WITHIN` and
        `BETA_WITHIN` where `nodes` is given, else alpha and beta.

    Returns
    -------
    Simulation

    Raises
    ------
    TypeError
        If `size`, `count`, `nbytes` or an item size is no integer, or not exactly one of `count`
        and `nbytes` is given.
    ValueError
        If there is no such algorithm, a number is too small, `nbytes` is no multiple of
        `itemsize`, or `nodes`, `root` or `counts` does not fit.

    Examples
    --------
    >>> simulation = simulate("ring", size=4, nbytes=1 << 20)
    >>> simulation.steps, simulation.units[0]
    (6, 1.5)
    >>> simulate("ring", size=4, nbytes=1 << 20, nodes="2,2").total_bytes_between
    3145728
    """
    if not isinstance(algorithm, Algorithm):
        algorithm = find(algorithm, collective, auto=False)
    barrier = algorithm.collective == "barrier"
    if barrier and count is None and nbytes is None:
        count = size
    if counts is not None:
        counts = tuple(_integer("a number in counts", number, at_least=0) for number in counts)
        if count is None and nbytes is None:
            count = sum(counts)
    if (count is None) == (nbytes is None):
        given = "neither" if count is None else f"count={count!r} and nbytes={nbytes!r}"
        raise TypeError(f"simulate() takes exactly one of count and nbytes; got {given}")
    size = _integer("size", size, at_least=1)
    itemsize = _integer("itemsize", itemsize, at_least=1)
    if partial_itemsize is None:
        partial_itemsize = itemsize
    partial_itemsize = _integer("partial_itemsize", partial_itemsize, at_least=1)
    if count is not None:
        count = _integer("count", count, at_least=0)
    else:
        count, rest = divmod(_integer("nbytes", nbytes, at_least=0), itemsize)
        if rest:
            raise ValueError(f"nbytes={nbytes} is no multiple of itemsize={itemsize}")
    topology = algorithm.topology
    if nodes is not None:
        topology = _topology(nodes, size)
    elif algorithm.hierarchical and topology is None:
        topology = Topology.one_node(size)
    # An entry may have been placed before: what is not given stays as it is.
    root = _integer("root", root, at_least=0) or algorithm.root
    algorithm = algorithm.on(topology, root=root, counts=counts or algorithm.counts)
    algorithm.check(size, count)
    if alpha_within is None:
        alpha_within = alpha if nodes is None else ALPHA_WITHIN
    if beta_within is None:
        beta_within = beta if nodes is None else BETA_WITHIN
    for name, seconds in (
        ("alpha", alpha),
        ("beta", beta),
        ("gamma", gamma),
        ("alpha_within", alpha_within),
        ("beta_within", beta_within),
    ):
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(
                f"{name} must be a finite number of seconds, at least 0; got {seconds!r}"
            )

    steps = _Steps(algorithm, size, count)
    width = np.where(steps.reduces, partial_itemsize, 0 if barrier else itemsize)
    sent, received = steps.sent * width, steps.received * width
    reduced = received * steps.reduces
    sends_within = steps.within(topology, steps.send_to)
    receives_within = steps.within(topology, steps.receive_from)
    duration = np.maximum(
        np.where(sends_within, alpha_within, alpha) * (steps.send_to >= 0)
        + np.where(sends_within, beta_within, beta) * sent,
        np.where(receives_within, alpha_within, alpha) * (steps.receive_from >= 0)
        + np.where(receives_within, beta_within, beta) * received,
    )
    columns = (
        steps.per_rank,
        steps.sums(steps.send_to >= 0),
        steps.sums(steps.receive_from >= 0),
        steps.sums(sent),
        steps.sums(received),
        steps.sums(reduced),
        steps.sums(sent * sends_within),
        steps.largest(reduced),
    )
    return Simulation(
        algorithm=algorithm.name,
        collective=algorithm.collective,
        root=algorithm.root,
        size=size,
        nbytes=0 if barrier else count * itemsize,
        topology=topology,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        alpha_within=alpha_within,
        beta_within=beta_within,
        ranks=tuple(
            RankTraffic(rank, *row)
            for rank, row in enumerate(zip(*(column.tolist() for column in columns), strict=True))
        ),
        time=steps.walk(duration + gamma * reduced),
    )


def _topology(nodes: str | Sequence[int], size: int) -> Topology:
    """Return what the argument `nodes` says."""
    if isinstance(nodes, str):
        return Topology.of_labels(parse(nodes, size, "nodes"))
    numbers = [_integer("a number in nodes", number, at_least=0) for number in nodes]
    if len(numbers) != size:
        raise ValueError(f"nodes must have a number for each of {size} ranks; got {len(numbers)}")
    return Topology.of_labels(numbers)


def separate_hub_units(workers: int) -> int:
    """Return what a hub beside `workers` workers handles, in vectors: one in, one out for each.

    A parameter server is such a hub. A hub that is one of the p ranks, the root of `naive_root`,
    has its own vector already and handles 2(p-1).

    Examples
    --------
    >>> separate_hub_units(16), separate_hub_units(100)
    (32, 200)
    >>> simulate("naive_root", size=16, nbytes=1 << 20).units_handled[0]
    30.0
    """
    return 2 * _integer("workers", workers, at_least=1)


def _integer(name: str, value: object, *, at_least: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # TypeError is the point
    except TypeError:
        raise TypeError(
            f"{name} must be an integer; got {value!r} of type {type(value).__name__}"
        ) from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {number}")
    return number


class _Steps:
    """The steps of all ranks as columns of numbers, one rank after the other."""

    def __init__(self, algorithm: Algorithm, size: int, count: int) -> None:
        # Each schedule becomes numbers at once: the objects of a thousand ranks are many.
        tables = [_table(algorithm.schedule(rank, size, count)) for rank in range(size)]
        self.size = size
        self.per_rank: Integers = np.array([len(table) for table in tables])
        self.rank: Integers = np.repeat(np.arange(size), self.per_rank)
        self.send_to, self.sent, self.receive_from, self.received, reduces = np.concatenate(
            tables
        ).T
        self.reduces = reduces.astype(bool)

    def within(self, topology: Topology | None, peer: Integers) -> npt.NDArray[np.bool_]:
        """Tell for each step whether it and its peer share a node; without a peer they do not."""
        if topology is None:
            return np.zeros(len(peer), bool)
        node = np.array([*topology.nodes, -1])  # the last one is found by a peer of -1
        same: npt.NDArray[np.bool_] = node[self.rank] == node[peer]
        return same

    def sums(self, values: npt.NDArray[np.generic]) -> Integers:
        """Add up over the steps of each rank."""
        totals = np.zeros(self.size, np.int64)
        np.add.at(totals, self.rank, values)
        return totals

    def largest(self, values: Integers) -> Integers:
        """Return the largest over the steps of each rank."""
        largest = np.zeros(self.size, np.int64)
        np.maximum.at(largest, self.rank, values)
        return largest

    def walk(self, duration: Floats) -> float:
        """Return when the last rank finishes, if each step lasts `duration`."""
        send_partner, receive_partner = self._partners()
        ends = np.cumsum(self.per_rank)[self.per_rank > 0]
        last = np.zeros(len(duration), bool)
        last[ends - 1] = True
        posted = np.full(len(duration), np.nan)  # not a number: not reached yet
        waiting = (np.cumsum(self.per_rank) - self.per_rank)[self.per_rank > 0]
        posted[waiting] = 0.0
        finish = 0.0
        while waiting.size:
            peers = np.maximum(posted[send_partner[waiting]], posted[receive_partner[waiting]])
            start = np.maximum(posted[waiting], peers)
            ready = ~np.isnan(start)
            if not ready.any():
                raise ValueError("the schedules deadlock; hpccoll.prover.prove tells where")
            done = waiting[ready]
            end = start[ready] + duration[done]
            finish = max(finish, float(end.max()))
            goes_on = ~last[done]
            following = done[goes_on] + 1
            posted[following] = end[goes_on]
            waiting = np.concatenate((waiting[~ready], following))
        return finish

    def _partners(self) -> tuple[Integers, Integers]:
        """Return, per step, the step that receives what it sends, and the one that sends to it.

        The k-th message from one rank to another meets the k-th receive. A step that does not
        send, or does not receive, gets itself for a partner: it waits for no one.
        """
        sends = np.flatnonzero(self.send_to >= 0)
        receives = np.flatnonzero(self.receive_from >= 0)
        from_to = self.rank[sends] * self.size + self.send_to[sends]
        to_from = self.receive_from[receives] * self.size + self.rank[receives]
        by_send, by_receive = np.argsort(from_to, kind="stable"), np.argsort(to_from, kind="stable")
        sends, receives = sends[by_send], receives[by_receive]
        if not (
            np.array_equal(from_to[by_send], to_from[by_receive])
            and np.array_equal(self.sent[sends], self.received[receives])
        ):
            raise ValueError("sends and receives do not pair up; hpccoll.prover.prove tells where")
        send_partner, receive_partner = np.arange(len(self.rank)), np.arange(len(self.rank))
        send_partner[sends] = receives
        receive_partner[receives] = sends
        return send_partner, receive_partner


def _table(schedule: Schedule) -> Integers:
    numbers: list[int] = []
    for send_to, send, receive_from, receive, action in schedule.steps:
        numbers += (
            -1 if send_to is None else send_to,
            _elements(send),
            -1 if receive_from is None else receive_from,
            _elements(receive),
            action.reduces,
        )
    return np.array(numbers, dtype=np.int64).reshape(-1, 5)


def _elements(ranges: tuple[Range, ...]) -> int:
    total = 0
    for start, stop in ranges:
        total += stop - start
    return total

"""Ranks that are threads, for the tests of the engine: `run` gives each one its plan and data."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.algorithms import find
from hpccoll.engine import make_plan
from hpccoll.local_transport import LocalRanks, LocalTransport
from hpccoll.ops import OPERATIONS
from hpccoll.pattern import NO_OPERATION, Pattern
from hpccoll.reduction import Reduction, find_reduction, without_loops
from hpccoll.scratch import Memory
from hpccoll.task import Task
from hpccoll.topology import Topology


class CountingTransport(LocalTransport):
    """Remembers the size of every request that it made."""

    def __init__(self, world: LocalRanks, rank: int) -> None:
        super().__init__(world, rank)
        self.sends: list[int] = []
        self.receives: list[int] = []

    def send_request(self, address, nbytes, peer, tag):
        self.sends.append(nbytes)
        return super().send_request(address, nbytes, peer, tag)

    def receive_request(self, address, nbytes, peer):
        self.receives.append(nbytes)
        return super().receive_request(address, nbytes, peer)


class Rank:
    """One rank: makes plans as a channel does, with memory and a transport that last."""

    def __init__(self, world: LocalRanks, rank: int) -> None:
        self.rank = rank
        self.size = world.size
        self.transport = CountingTransport(world, rank)
        self.memory = Memory()
        self.unsettled = False

    def plan(
        self,
        algorithm: str,
        op: str,
        x: np.ndarray,
        out: np.ndarray,
        segment_bytes: int | None = None,
        reduction: Reduction | None = None,
        topology: Topology | None = None,
    ) -> Any:
        """Make the plan of an all-reduce of `x` into `out`, which may be `x`."""
        reduction = reduction or find_reduction(OPERATIONS[op], x.dtype, self.size)
        entry = find(algorithm)
        task = Task("allreduce", entry, op, reduction, x.size, segment_bytes, topology)
        where = (x.ctypes.data, out.ctypes.data)
        return make_plan(self.transport, self.memory, task, *where)

    def collective(
        self,
        pattern: Pattern,
        algorithm: str,
        op: str,
        count: int,
        x: np.ndarray | None,
        out: np.ndarray | None,
        segment_bytes: int | None = None,
        topology: Topology | None = None,
    ) -> "Bound":
        """Make the plan of a collective on `count` elements, as a job does.

        `x` is None where this rank brings nothing, or what it brings stands in `out`; `out` where
        it wants nothing.
        """
        dtype = (out if x is None else x).dtype
        reduction = without_loops(dtype)
        if pattern.reduces:
            reduction = find_reduction(OPERATIONS[op], dtype, self.size)
        entry = find(algorithm, pattern.collective)
        name = op if pattern.reduces else NO_OPERATION
        task = Task(
            pattern.collective, entry, name, reduction, count, segment_bytes, topology, pattern
        )
        target = 0 if out is None else out.ctypes.data
        source = target if x is None else x.ctypes.data
        plan = make_plan(self.transport, self.memory, task, source, target)
        return Bound(self, plan, source + plan.own_offset if x is None else source, target)

    def allreduce(
        self, algorithm, op, x, out, segment_bytes=None, reduction=None, topology=None
    ) -> Any:
        """Run an all-reduce of `x` into `out` and return the plan."""
        plan = self.plan(algorithm, op, x, out, segment_bytes, reduction, topology)
        Bound(self, plan, x.ctypes.data, out.ctypes.data).run()
        return plan


@dataclass
class Bound:
    """A plan and its arrays."""

    rank: Rank
    plan: Any
    source: int
    target: int

    def run(self) -> None:
        """Run the plan, and remember what is to be done where it fails, as a channel does."""
        if self.rank.unsettled:
            self.rank.transport.settle()
            self.rank.unsettled = False
        try:
            self.plan.run(self.source, self.target)
        except BaseException:
            self.rank.unsettled = not self.plan.usable
            raise


def outcomes(size: int, job: Callable[[Rank], Any], time_limit: float = 10.0) -> list[Any]:
    """Run ``job(rank)`` on that many ranks; return what each returned, or its exception."""
    world = LocalRanks(size, time_limit)
    results: list[Any] = [None] * size

    def work(number: int) -> None:
        try:
            results[number] = job(Rank(world, number))
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queues = [*world.sends.items(), *world.receives.items()]
    left = [route for route, queue in queues if queue]
    if left and not any(isinstance(result, Exception) for result in results):
        raise AssertionError(f"messages were left behind: {left}")
    return results


def run(size: int, job: Callable[[Rank], Any]) -> list[Any]:
    """Run ``job(rank)`` on that many ranks; return what each returned, or raise what one raised."""
    results = outcomes(size, job)
    for number, result in enumerate(results):
        if isinstance(result, Exception):
            raise AssertionError(f"rank {number} of {size}: {result!r}") from result
    return results

"""Ranks of a node that are threads: they share slots and an arena as processes would."""

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpccoll import _node
from hpccoll._plans import Loops
from hpccoll.node import make_node_plan
from hpccoll.ops import OPERATIONS
from hpccoll.plan_info import PlanInfo
from hpccoll.reduction import find_reduction
from hpccoll.selection import NodeLimits
from hpccoll.task import Task

EVERYTHING = 1 << 60

BYTES = np.dtype(np.uint8)

NOBODY = 2**22 + 1
"""A number that no process has."""

LIMITS = {
    "gathered": NodeLimits(EVERYTHING, EVERYTHING, EVERYTHING, EVERYTHING),
    "slotted": NodeLimits(0, EVERYTHING, EVERYTHING, EVERYTHING),
    "read_from_peers": NodeLimits(0, 0, EVERYTHING, EVERYTHING),
    "shared": NodeLimits(0, EVERYTHING, 0, EVERYTHING),
}
"""Limits under which one design runs at all sizes that do not fit into a header."""


class NodeRank:
    """One rank: a node, arrays in the arena, and plans."""

    def __init__(self, world: "LocalNode", rank: int, limits: NodeLimits) -> None:
        self.rank = rank
        self.size = world.size
        self.world = world
        self.node = _node.Node(
            rank,
            world.slots,
            buffer_bytes=world.segment_bytes,
            arenas=[world.arena.ctypes.data] * world.size,
            arena_bytes=world.arena.nbytes,
            processes=[NOBODY if rank == world.blind else os.getpid()] * world.size,
            members=[10 * rank for rank in range(world.size)],
            limits=limits,
            spins=0,
            yield_time=1_000_000,
            watch=world.watch,
        )

    def plan(self, op: str, dtype: Any, count: int) -> Any:
        reduction = find_reduction(OPERATIONS[op], np.dtype(dtype), self.size)
        task = Task("allreduce", None, op, reduction, count, None)
        return make_node_plan(self.node, task, self.rank, self.size)

    def allreduce(self, op: str, x: np.ndarray, out: np.ndarray) -> Any:
        """Run an all-reduce of `x` into `out`, which may be `x`, and return the plan."""
        plan = self.plan(op, x.dtype, x.size)
        plan.run(x.ctypes.data, out.ctypes.data)
        return plan

    def run(
        self,
        collective: str,
        x: np.ndarray | None,
        out: np.ndarray | None,
        *,
        count: int,
        op: str = "sum",
        root: int = 0,
        starts: Sequence[int] = (),
    ) -> Any:
        """Run any collective on a vector of `count` elements, and return the plan."""
        dtype = next((array.dtype for array in (x, out) if array is not None), np.dtype("f4"))
        reduces = collective in ("allreduce", "reduce", "reduce_scatter")
        reduction = find_reduction(OPERATIONS[op], dtype if reduces else BYTES, self.size)
        plan = _node.NodePlan(
            self.node,
            reduction.loops if reduces else Loops(0),
            itemsize=dtype.itemsize,
            partial_itemsize=reduction.partial_dtype.itemsize if reduces else dtype.itemsize,
            kind=zlib.crc32(f"{op} {dtype.name}".encode()) % (1 << 16),
            count=count,
            info=PlanInfo(
                Task(collective, None, op, reduction, count, None), self.rank, self.size, 0, 0
            ),
            collective=collective,
            root=root,
            starts=starts,
        )
        plan.run(*(0 if array is None else array.ctypes.data for array in (x, out)))
        return plan

    def shared(self, count: int, dtype: Any, which: int = 0) -> np.ndarray:
        """Return an array in the arena, apart from those of other ranks and with other numbers."""
        room = self.world.arena.nbytes // (2 * self.size) // 64 * 64
        start = (2 * self.rank + which) * room
        nbytes = count * np.dtype(dtype).itemsize
        assert nbytes <= room
        return self.world.arena[start : start + nbytes].view(dtype)


class LocalNode:
    """The memory of one test's ranks."""

    def __init__(
        self,
        size: int,
        segment_bytes: int = 1024,
        watch: Callable[[Any], Any] = lambda late: None,
        blind: int = -1,
    ) -> None:
        self.size = size
        self.blind = blind  # a rank that cannot read its peers' memory
        self.segment_bytes = segment_bytes
        self.watch = watch
        nbytes = _node.slot_bytes(segment_bytes)
        nbytes += -nbytes % _node.ALIGNMENT
        self._memory = np.zeros(size * nbytes + _node.ALIGNMENT, np.uint8)
        start = -self._memory.ctypes.data % _node.ALIGNMENT + self._memory.ctypes.data
        self.slots = [start + rank * nbytes for rank in range(size)]
        self.arena = np.zeros(1 << 20, np.uint8)

    def outcomes(self, limits: NodeLimits, job: Callable[[NodeRank], Any]) -> list[Any]:
        """Run ``job(rank)`` on all ranks; return what each returned, or its exception."""
        results: list[Any] = [None] * self.size

        def work(number: int) -> None:
            try:
                results[number] = job(NodeRank(self, number, limits))
            except Exception as error:
                results[number] = error

        threads = [
            threading.Thread(target=work, args=(number,), name=f"rank {number}")
            for number in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def run(
    size: int, limits: NodeLimits, job: Callable[[NodeRank], Any], segment_bytes: int = 1024
) -> list[Any]:
    """Run ``job(rank)`` on that many ranks; return what each returned, or raise what one raised."""
    results = LocalNode(size, segment_bytes).outcomes(limits, job)
    for number, result in enumerate(results):
        if isinstance(result, Exception):
            raise AssertionError(f"rank {number} of {size}: {result!r}") from result
    return results

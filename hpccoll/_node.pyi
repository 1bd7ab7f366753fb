"""Collectives among ranks that share memory (kernels/_node.pyx)."""

from collections.abc import Callable, Sequence
from typing import Any, final

from typing_extensions import Self

from hpccoll._plans import CallClock, Levels, Loops, Plan

ALIGNMENT: int
GIVEN_UP_TAG: int
DESIGNS: tuple[str, ...]
COLLECTIVES: tuple[str, ...]
ROOTED: tuple[str, ...]
CHUNKED: tuple[str, ...]

def slot_bytes(buffer_bytes: int) -> int: ...
def can_read(process: int, there: int, here: int, nbytes: int) -> bool: ...

@final
class Node:
    """One rank's view of the slots of a node."""

    members: tuple[int, ...]
    broken: bool

    def __new__(
        cls,
        rank: int,
        slots: Sequence[int],
        *,
        buffer_bytes: int,
        arenas: Sequence[int],
        arena_bytes: int,
        processes: Sequence[int],
        members: Sequence[int],
        limits: Sequence[int],
        spins: int,
        yield_time: int,
        watch: Callable[[list[int]], Any],
        clock: CallClock | None = None,
    ) -> Self: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def calls_by_messages(self) -> int: ...
    def set_limits(self, limits: Sequence[int]) -> None: ...
    def crossing_time(self) -> int: ...
    def counters(self) -> tuple[int, ...]: ...
    def catch_up(self, counters: Sequence[int]) -> None: ...

@final
class NodePlan(Plan):
    """One collective among the ranks of a node."""

    nbytes: int
    disagrees: bool
    differs: bool

    def __new__(
        cls,
        node: Node,
        loops: Loops,
        *,
        itemsize: int,
        partial_itemsize: int,
        kind: int,
        count: int,
        info: Any,
        collective: str = "allreduce",
        root: int = 0,
        starts: Sequence[int] = (),
    ) -> Self: ...
    @property
    def design(self) -> str: ...
    @property
    def segment_bytes(self) -> int: ...

@final
class NodeLevels(Levels):
    """What a hierarchical all-reduce does inside the node."""

    def __new__(
        cls,
        node: Node,
        loops: Loops,
        *,
        itemsize: int,
        partial_itemsize: int,
        kind: int,
        count: int,
        leader_ranks: Sequence[int],
        pieces: int,
        input: int,
        partial: int,
        output: int,
        info: Any,
    ) -> Self: ...

@final
class DeviceLevels(Levels):
    """What ranks of a node tell each other in a hierarchical plan on device memory."""

    def __new__(
        cls, node: Node, begin: Callable[[], object], end: Callable[[], object]
    ) -> Self: ...

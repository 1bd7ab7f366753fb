"""The loop that runs a program of messages (kernels/_executor.pyx)."""

from collections.abc import Sequence
from typing import Any, final

from hpccoll._plans import DeviceWork, Levels, Loops, Plan

OPCODES: dict[str, int]
abandoned: list[MessagePlan]

@final
class MessagePlan(Plan):
    """A program bound to memory, requests and loops."""

    def __init__(
        self,
        instructions: Sequence[tuple[int, int, int, int, int, int]],
        sends: Sequence[tuple[Any, int, int, int, int]],
        receives: Sequence[tuple[Any, int, int, int, int]],
        loops: Loops,
        *,
        itemsize: int,
        partial_itemsize: int,
        levels: Levels | None = None,
        device: DeviceWork | None = None,
        stage_in: int = 0,
        in_nbytes: int = 0,
        stage_out: int = 0,
        out_nbytes: int = 0,
        transport: Any,
        status: Any,
        keep: object,
        info: Any,
    ) -> None: ...
    @property
    def hierarchical(self) -> bool: ...
    def count_at(self, address: int) -> None: ...

"""What is submitted to a CUDA device, and how the host waits for it (kernels/_device.pyx)."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from typing_extensions import Buffer

from hpccoll._plans import CallClock, DeviceWork

COMPUTE: int
DOWN: int
UP: int

REDUCE: int
FINISH: int
WIDEN: int
COPY: int
COPY_DOWN: int
COPY_UP: int
LAUNCH: int

ABSOLUTE: int
SOURCE: int
TARGET: int

QUEUE_EVENTS: int
abandoned: list[BoundWorks]

@final
class DeviceQueue:
    """Three streams of one device, and the order between them and the caller's stream."""

    def __init__(
        self,
        functions: Mapping[str, int],
        context: int,
        streams: Sequence[int],
        events: Sequence[int],
        clock: CallClock,
        *,
        device: int = 0,
    ) -> None: ...
    @property
    def context(self) -> int: ...
    @property
    def streams(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int: ...
    def follow(self, stream: int) -> None: ...
    def lead(self, stream: int) -> None: ...
    def launch(
        self, function: int, arguments: Buffer, grid: int, block: int, queue: int = 0
    ) -> None: ...
    def copy(self, out: int, source: int, nbytes: int, queue: int = 0) -> None: ...
    def record(self, event: int, queue: int) -> None: ...
    def wait_for(self, event: int, queue: int) -> None: ...
    def await_event(self, event: int, what: str) -> None: ...
    def drain(self, what: str) -> None: ...
    def leave(self) -> bool: ...

@final
class BoundWorks(DeviceWork):
    """The works of a plan, bound to kernels and to memory."""

    def __init__(
        self,
        queue: DeviceQueue,
        works: Sequence[tuple[Any, ...]],
        *,
        reduce: int,
        finish: int,
        widen: int,
        divisor: float,
        itemsize: int,
        partial_itemsize: int,
        events: Sequence[int],
        multiprocessors: int,
        keep: object,
    ) -> None: ...
    def set_arguments(self, index: int, arguments: Buffer) -> None: ...
    def begin_call(self, source: int, target: int) -> None: ...
    def submit_one(self, index: int) -> int: ...
    def wait_for_one(self, index: int) -> None: ...
    def leave_call(self) -> None: ...

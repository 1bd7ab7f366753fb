"""The loop that runs a program, and the table that finds it again (kernels/_executor.pyx)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

OPCODES: dict[str, int]
FAILED_TAG: int
abandoned: list[Plan]

@final
class Loops:
    """The loops of one operation on one type."""

    def __init__(
        self,
        reduce: int | Callable[[int, int, int, int], None],
        divide: int | Callable[[int, float, int], None] | None = None,
        widen: int = 0,
        narrow: int = 0,
        divisor: float = 0,
    ) -> None: ...

@final
class Plan:
    """A program bound to memory, requests and loops."""

    info: Any
    usable: bool
    in_place: bool
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    messages_sent: int
    messages_received: int

    def __init__(
        self,
        instructions: Sequence[tuple[int, int, int, int, int, int]],
        sends: Sequence[tuple[Any, int, int, int]],
        receives: Sequence[tuple[Any, int, int, int]],
        loops: Loops,
        *,
        itemsize: int,
        partial_itemsize: int,
        nbytes: int,
        stage_in: int = 0,
        stage_out: int = 0,
        transport: Any,
        status: Any,
        keep: object,
        info: Any,
    ) -> None: ...
    def run(self, source: int, target: int) -> None: ...
    def free(self) -> None: ...

@final
class PlanCache:
    """The plans of one communicator and one set of settings."""

    closed: bool

    def __init__(
        self,
        operations: Iterable[tuple[object, str]],
        in_place: object,
        lock: AbstractContextManager[Any],
        on_failure: Callable[[Plan], None],
    ) -> None: ...
    def repeat(self, sendbuf: object, recvbuf: object, op: object) -> Plan | None: ...
    def find(
        self, source: int, target: int, nbytes: int, type_number: int, name: str
    ) -> Plan | None: ...
    def keep(
        self, source: int, target: int, nbytes: int, type_number: int, name: str, plan: Plan
    ) -> None: ...
    def clear(self) -> None: ...

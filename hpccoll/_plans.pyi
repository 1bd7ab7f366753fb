"""What a call runs by, and the table that finds it again (kernels/_plans.pyx)."""

from collections.abc import Callable, Iterable
from typing import Any, final

from typing_extensions import disjoint_base

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
    @property
    def compiled(self) -> bool: ...

@final
class CallClock:
    """Counts the calls of one channel, and says how long a rank waits in them."""

    number: int
    limit: int
    warning: int
    warned: bool
    broken: str

    def lose(self) -> None: ...

@disjoint_base
class Plan:
    """One collective on vectors of one size, type and operation; a base class."""

    info: Any
    usable: bool
    in_place: bool
    compares: bool
    own_offset: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    messages_sent: int
    messages_received: int

    def run(self, source: int, target: int) -> None: ...
    def free(self) -> None: ...

@disjoint_base
class Levels:
    """What a hierarchical plan does inside its node, piece by piece; a base class."""

@disjoint_base
class DeviceWork:
    """What a plan has a device do with elements, work by work; a base class."""

@final
class Turn:
    """A lock that threads take turns with, and one thread may take again."""

    def __enter__(self) -> Turn: ...
    def __exit__(self, *exception: object) -> None: ...

PART_IN_PLACE: int

@final
class PlanCache:
    """The plans of one communicator and one set of settings."""

    closed: bool
    checked: bool

    def __init__(
        self,
        operations: Iterable[tuple[object, str]],
        in_place: object,
        turn: Turn,
        on_failure: Callable[[Plan, BaseException], None],
        clock: CallClock,
        *,
        part_in_place: bool = False,
    ) -> None: ...
    def repeat(
        self, sendbuf: object, recvbuf: object, op: object, limit: int = 0
    ) -> Plan | None: ...
    def find(self, key: tuple[int, int, int, int, int, str]) -> Plan | None: ...
    def keep(self, key: tuple[int, int, int, int, int, str], plan: Plan) -> None: ...
    def clear(self) -> None: ...

"""The part of persistent calls that every start and wait goes through (kernels/_requests.pyx)."""

from collections.abc import Callable
from typing import Any, final

from typing_extensions import disjoint_base

from hpccoll._plans import CallClock, Plan, Turn

@final
class Line:
    """Who is next: what threads of one process must agree on without a lock, under the GIL."""

    held: Persistent | None
    queued: int
    closed: bool
    ended: bool

    def hand_over(self, queue: Any, request: Persistent, ticket: Any) -> bool: ...

@disjoint_base
class Persistent:
    """A collective call that is prepared once and started many times."""

    active: bool
    freed: bool
    has_run: bool

    def __init__(
        self,
        line: Line,
        queue: Callable[[Any], Any],
        take_over: Callable[[Any], object],
        complete: Callable[[Any], object],
    ) -> None: ...
    def bind(
        self,
        plan: Plan,
        turn: Turn,
        clock: CallClock,
        limit: int,
        source: int,
        target: int,
        on_failure: Callable[[Plan, BaseException], None],
        small: bool,
    ) -> None: ...
    @property
    def bound(self) -> Plan | None: ...
    def run_bound(self) -> None: ...
    def Start(self) -> None: ...  # noqa: N802
    def Wait(self, status: Any = None) -> bool: ...  # noqa: N802
    def Test(self, status: Any = None) -> bool: ...  # noqa: N802
    def Free(self) -> None: ...  # noqa: N802
    def wait(self, status: Any = None) -> bool: ...
    def test(self, status: Any = None) -> bool: ...
    def sentence(self, method: str, state: str) -> str: ...

"""The schedule: what one rank sends and receives, step by step. Data only: no MPI, no arrays.

An algorithm is a pure function ``schedule(rank, size, count) -> Schedule``. Three things consume
what it returns, and none of them knows which algorithm made it: the prover (`hpccoll.prover`),
the simulator (`hpccoll.simulator`) and the engine (`hpccoll.compiler` and `hpccoll.engine`).
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.chunks import Range


class Action(enum.Enum):
    """What a receiver does with the elements of a step."""

    COPY = "copy"
    """The message holds finished values, and replaces the receiver's."""
    REDUCE_LEFT = "reduce_left"
    """The message holds partial values, and is the left operand: ``incoming op mine``."""
    REDUCE_RIGHT = "reduce_right"
    """The message holds partial values, and is the right operand: ``mine op incoming``."""

    @property
    def reduces(self) -> bool:
        """Whether the message holds partial values, to be reduced by its receiver."""
        return self is not Action.COPY


class Step(NamedTuple):
    """One exchange of one rank: a send and a receive, posted together and finished together.

    Attributes
    ----------
    send_to, receive_from : int or None
        The peers; None where the step only receives or only sends. They may differ.
    send, receive : tuple of Range
        Elements of the vector that are sent and received, in message order. What one rank sends
        is, range by range, what its peer receives.
    action : Action
        What this rank does with what it receives. What it sends is of the same kind, partial or
        finished, but its receiver may apply the other side. Elements that a step receives to
        reduce are applied after its own send has left, so that a step may send and reduce the
        same elements.
    """

    send_to: int | None
    send: tuple[Range, ...]
    receive_from: int | None
    receive: tuple[Range, ...]
    action: Action


@dataclass(frozen=True, slots=True)
class Schedule:
    """All steps of one rank, in order."""

    rank: int
    size: int
    count: int
    steps: tuple[Step, ...]

    def first(self, count: int) -> "Schedule":
        """Return the part of this schedule that moves the first `count` elements."""
        builder = ScheduleBuilder(self.rank, self.size, count)
        for step in self.steps:
            builder.add(step, Range(0, count))
        return builder.finish()


class ScheduleBuilder:
    """Collects the steps of one rank; drops what would be empty.

    A message without elements is never sent. Both sides leave it out by the same rule, since
    ranges depend on `size` and `count` alone.
    """

    def __init__(self, rank: int, size: int, count: int) -> None:
        self.rank = rank
        self.size = size
        self.count = count
        self._steps: list[Step] = []

    def send(self, peer: int, ranges: Iterable[Range], action: Action) -> None:
        """Add a step that only sends; `action` is what the receiver will do."""
        self.exchange(peer, ranges, peer, (), action)

    def receive(self, peer: int, ranges: Iterable[Range], action: Action) -> None:
        """Add a step that only receives."""
        self.exchange(peer, (), peer, ranges, action)

    def exchange(
        self,
        send_to: int,
        send: Iterable[Range],
        receive_from: int,
        receive: Iterable[Range],
        action: Action,
    ) -> None:
        """Add a step that sends to one peer and receives from the same or another one.

        For an exchange in which the two sides apply opposite sides (`REDUCE_LEFT` here,
        `REDUCE_RIGHT` there), `action` is what this rank does.
        """
        sent, received = _without_empty(send), _without_empty(receive)
        if sent or received:
            self._steps.append(
                Step(
                    send_to if sent else None,
                    sent,
                    receive_from if received else None,
                    received,
                    action,
                )
            )

    def add(self, step: Step, window: Range, ranks: Sequence[int] | None = None) -> None:
        """Add a step of another schedule, as far as it moves the first elements.

        Parameters
        ----------
        step : Step
            What to add.
        window : Range
            Where the other schedule's vector lies in this one's; what it moves behind the
            window's end is left out.
        ranks : sequence of int, optional
            What the other schedule's ranks are called here; by default the same.
        """
        start, stop = window

        def shifted(ranges: tuple[Range, ...]) -> list[Range]:
            moved = (Range(start + part.start, min(start + part.stop, stop)) for part in ranges)
            return [part for part in moved if part.start < part.stop]

        def named(peer: int | None) -> int:
            if peer is None:
                return -1  # with no elements, which the builder leaves out
            return peer if ranks is None else ranks[peer]

        self.exchange(
            named(step.send_to),
            shifted(step.send),
            named(step.receive_from),
            shifted(step.receive),
            step.action,
        )

    def finish(self) -> Schedule:
        """Return the schedule."""
        return Schedule(self.rank, self.size, self.count, tuple(self._steps))


def _without_empty(ranges: Iterable[Range]) -> tuple[Range, ...]:
    ranges = tuple(ranges)
    for start, stop in ranges:
        if start == stop:
            return tuple(part for part in ranges if part.count)
    return ranges  # as it came: steps that name the same chunk share one tuple


class Fold:
    """How `size` ranks fold to the largest power of two: what butterfly algorithms start with.

    The first ``2 * extras`` ranks pair up. The odd rank of a pair, an extra rank, hands its vector
    to the even one, its proxy, and gets the result back at the end. The ranks that remain are
    numbered anew from 0, in the same order, so that neighbours stay neighbours and the operands
    of an operation can keep rank order.

    Attributes
    ----------
    power : int
        Number of ranks that remain: the largest power of two that is not above `size`.
    extras : int
        Number of extra ranks.

    Examples
    --------
    >>> fold = Fold(5)                      # 0 stands in for 1; 0, 2, 3, 4 remain
    >>> [list(fold.partners(rank)) for rank in (0, 2, 3, 4)]
    [[2, 3], [0, 4], [4, 0], [3, 2]]
    """

    def __init__(self, size: int) -> None:
        self.power = 1 << (size.bit_length() - 1)
        self.extras = size - self.power

    @property
    def levels(self) -> int:
        """Number of partners of each rank that remains: log2 of `power`."""
        return self.power.bit_length() - 1

    def is_extra(self, rank: int) -> bool:
        """Whether `rank` drops out; its proxy is ``rank - 1``."""
        return rank < 2 * self.extras and rank % 2 == 1

    def is_proxy(self, rank: int) -> bool:
        """Whether `rank` stands in for an extra rank, which is ``rank + 1``."""
        return rank < 2 * self.extras and rank % 2 == 0

    def number(self, rank: int) -> int:
        """Return the new number of a rank that remains."""
        return rank // 2 if rank < 2 * self.extras else rank - self.extras

    def rank(self, number: int) -> int:
        """Return the rank that has a new number."""
        return 2 * number if number < self.extras else number + self.extras

    def partners(self, rank: int) -> Iterator[int]:
        """Yield the partners of a rank that remains, at distance 1, 2, 4, ... in new numbers."""
        new = self.number(rank)
        for level in range(self.levels):
            yield self.rank(new ^ (1 << level))

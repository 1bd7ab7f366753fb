"""The program: what the engine does on one rank, instruction by instruction. Data only.

A schedule says what moves; a program says when each part of it is started, waited for and reduced.
`hpccoll.compiler` makes the one from the other, and kernels/_executor.pyx runs it.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Buffer(enum.IntEnum):
    """The memory an instruction reads or writes."""

    INPUT = 0
    """The caller's contribution."""
    OUTPUT = 1
    """The caller's result; also holds partial values, unless these have a wider type."""
    WORK = 2
    """Partial values of a wider type than the result's (half types)."""
    SCRATCH = 3
    """Segments that arrived and are to be reduced; where elements only move, short ones."""
    PINNED = 4
    """Host memory through which messages of a plan on device memory go; counted in bytes."""


class Opcode(enum.IntEnum):
    """What an instruction does."""

    START_RECEIVE = 0
    START_SEND = 1
    WAIT_RECEIVE = 2
    WAIT_SEND = 3
    REDUCE = 4
    """out = left op right, over `count` elements of the partial type."""
    COPY = 5
    """out = left, over `count` elements, without changing their type."""
    WIDEN = 6
    """out = left, from the caller's type to the wider partial type."""
    FINISH = 7
    """out = finished left: divided where the operation is a mean, narrowed where it was widened."""
    NODE_REDUCE = 8
    """Of a hierarchical plan: reduce piece `index` over the node."""
    NODE_PUBLISH = 9
    """Piece `index` of the slice that this rank leads is finished: its node may have it."""
    SUBMIT = 10
    """Of a plan on device memory: hand work `index` to the device."""
    AWAIT = 11
    """Wait until the device has done work `index`; -1: all that came before the call."""


class Place(NamedTuple):
    """An element of a buffer."""

    buffer: Buffer
    element: int


class Message(NamedTuple):
    """One MPI message: `count` elements at `place`, to or from `peer`."""

    peer: int
    start: int
    """First element of the vector that it holds."""
    place: Place
    count: int  # type: ignore[assignment]
    partial: bool
    """Partial values, of the partial type; else finished ones, of the caller's type."""
    last: bool
    """No other message of this step follows, to or from this peer."""
    room: int
    """Elements that fit at `place`. More than `count` where a receive lands in scratch memory:
    when ranks disagree on the count, a longer message should be noticed, not truncated (to truncate
    a long message, Open MPI 5.0 was seen to write past the end, and its sender to hang)."""
    step: int = 0
    """Number of the schedule's step that it belongs to, from 0."""


class Instruction(NamedTuple):
    """One instruction; `index` counts messages, the other fields are for data."""

    opcode: Opcode
    index: int = -1  # type: ignore[assignment]
    out: Place = Place(Buffer.OUTPUT, 0)
    left: Place = Place(Buffer.OUTPUT, 0)
    right: Place = Place(Buffer.OUTPUT, 0)
    count: int = 0  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does in one call."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    instructions: tuple[Instruction, ...]
    scratch_count: int
    """Elements of the partial type in `Buffer.SCRATCH`."""
    steps: int
    """Steps of the schedule that the program was made from."""

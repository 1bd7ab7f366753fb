"""From a program to what a device does of it, on which of its queues and in which order. Pure.

On a host an instruction is done when the next one begins. A device is handed *works*, and does them
later: those of one queue one after the other, those of different queues at the same time. So what a
program says by its order has to be said anew: which works wait for which, and where the host waits
for a work before it lets a message read or write what that works on.

Where the MPI library cannot reach device memory, messages are *staged*: a segment is copied down
to pinned host memory as soon as it is complete, sent from there, received there, and copied up.
Copies down, copies up and reductions have a queue each, so that all three go on at once, and
messages beside them.
"""

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hpccoll.chunks import Range
from hpccoll.compiler import LIVE_SENDS, LOOKAHEAD
from hpccoll.program import Buffer, Instruction, Opcode, Place, Program

SEND_SLOTS = LIVE_SENDS + 2
"""Segments in pinned memory that are copied down, or sent: two more than are sent at a time."""

RECEIVE_SLOTS = LOOKAHEAD + 2
"""Segments in pinned memory that are received, or copied up."""

BEFORE = -1
"""In place of a work: all that was handed to the device before the call."""


class Queue(enum.IntEnum):
    """What does works in order. Queues work at the same time."""

    COMPUTE = 0
    DOWN = 1
    UP = 2


class WorkKind(enum.IntEnum):
    """What a work does."""

    REDUCE = 0
    """out = left op right, over `count` elements of the partial type."""
    FINISH = 1
    """out = finished left, as `Opcode.FINISH`."""
    WIDEN = 2
    """out = left, from the caller's type to the wider partial type."""
    COPY = 3
    """out = left, on the device, over `count` elements of the caller's type."""
    COPY_DOWN = 4
    """To pinned memory: what message `index` sends."""
    COPY_UP = 5
    """From pinned memory: what message `index` has received."""
    STAGE_IN = 6
    """From the caller to memory of the plan: `count` elements to `out`."""
    STAGE_OUT = 7
    """From memory of the plan to the caller: `count` elements from `left`."""
    NODE_REDUCE = 8
    """Of a hierarchical plan, as `Opcode.NODE_REDUCE`, with piece `index`."""
    NODE_PUBLISH = 9
    """As `Opcode.NODE_PUBLISH`."""


NOWHERE = Place(Buffer.OUTPUT, 0)


class Work(NamedTuple):
    """One thing for a device to do."""

    kind: WorkKind
    queue: Queue
    count: int = 0  # type: ignore[assignment]
    out: Place = NOWHERE
    left: Place = NOWHERE
    right: Place = NOWHERE
    index: int = -1  # type: ignore[assignment]
    """Of a message or a piece."""
    after: tuple[int, ...] = ()
    """Works on other queues that come before it."""
    marked: bool = False
    """Whether others, or the host, wait for it."""


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """What one rank does in one call on device memory.

    Attributes
    ----------
    program : Program
        Its data instructions are SUBMIT and AWAIT; places of messages that are staged are in
        `Buffer.PINNED`.
    works : tuple of Work
        In the order in which they are submitted.
    pinned_slots : int
        Segments of pinned memory.
    """

    program: Program
    works: tuple[Work, ...]
    pinned_slots: int


def device_program(
    program: Program,
    *,
    staged: bool,
    in_place: bool,
    widen: bool = False,
    slot_bytes: int = 0,
    slot_count: int = 0,
    pieces: Sequence[Range] = (),
    stage_in: Range | None = None,
    stage_out: Range | None = None,
) -> DeviceProgram:
    """Turn a program into works for a device, and the order between them.

    Parameters
    ----------
    program : Program
        What a host would do.
    staged : bool
        Whether messages go through pinned memory.
    in_place : bool
        Input and output are the same memory.
    widen : bool
        Partial values have a buffer of their own.
    slot_bytes, slot_count : int
        Of pinned memory for one segment: its size, and the elements of any type that fit. Without
        meaning where nothing is staged.
    pieces : sequence of Range
        Of a hierarchical program: the elements of each piece.
    stage_in, stage_out : Range, optional
        Elements that are copied from the caller before, and to the caller after.
    """
    return _Translator(
        program, staged, in_place, widen, slot_bytes, slot_count, tuple(pieces)
    ).translate(stage_in, stage_out)


_WORKS = {
    Opcode.REDUCE: WorkKind.REDUCE,
    Opcode.FINISH: WorkKind.FINISH,
    Opcode.WIDEN: WorkKind.WIDEN,
    Opcode.COPY: WorkKind.COPY,
}


def _touched(work: Work) -> Iterator[tuple[Place, bool]]:
    """Yield what a work reads (False) and writes (True) of device memory, the caller's apart."""
    if work.kind not in (WorkKind.COPY_UP, WorkKind.STAGE_IN, WorkKind.NODE_REDUCE):
        yield work.left, False
    if work.kind is WorkKind.REDUCE:
        yield work.right, False
    if work.kind not in (WorkKind.COPY_DOWN, WorkKind.STAGE_OUT, WorkKind.NODE_PUBLISH):
        yield work.out, True


class _Access(NamedTuple):
    elements: Range
    writes: bool
    work: int


@dataclass(slots=True)
class _Accesses:
    """Which works read and write the elements of one buffer, as far as that still matters."""

    entries: list[_Access] = field(default_factory=list)

    def conflicts(self, elements: Range, writes: bool) -> Iterator[int]:
        """Yield the works that must be done before these elements are read, or written."""
        for entry in self.entries:
            if (writes or entry.writes) and entry.elements.overlaps(elements):
                yield entry.work

    def add(self, elements: Range, writes: bool, work: int) -> None:
        """Note what a work does; who writes has waited for all others there."""
        if writes:
            self.entries = [
                entry
                for entry in self.entries
                if not (
                    elements.start <= entry.elements.start and entry.elements.stop <= elements.stop
                )
            ]
        self.entries.append(_Access(elements, writes, work))


class _Translator:
    def __init__(
        self,
        program: Program,
        staged: bool,
        in_place: bool,
        widen: bool,
        slot_bytes: int,
        slot_count: int,
        pieces: tuple[Range, ...],
    ) -> None:
        self.program = program
        self.staged = staged
        self.in_place = in_place
        self.slot_bytes = slot_bytes
        self.slot_count = slot_count
        self.pieces = pieces
        self.partial = Buffer.WORK if widen else Buffer.OUTPUT
        self.accesses = {buffer: _Accesses() for buffer in Buffer}
        self.works: list[Work] = []
        self.marked: set[int] = set()
        self.code: list[Instruction] = []
        self.sends = list(program.sends)
        self.receives = list(program.receives)
        # Of each queue, the last work that the host has waited for.
        self.awaited = dict.fromkeys(Queue, -1)
        self.began = False
        self.free_sends = deque(range(SEND_SLOTS))
        self.free_receives = deque(range(SEND_SLOTS, SEND_SLOTS + RECEIVE_SLOTS))
        self.send_slots: dict[int, int] = {}
        self.receive_slots: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        """By slot: the last work that reads or writes it."""
        self.downs: dict[int, int] = {}
        """By send: its copy down."""

    def translate(self, stage_in: Range | None, stage_out: Range | None) -> DeviceProgram:
        if stage_in is not None:
            out = Place(Buffer.INPUT, stage_in.start)
            self.submit(Work(WorkKind.STAGE_IN, Queue.COMPUTE, stage_in.count, out))
        waiting = self.sends_in_order()
        for position, code in enumerate(self.program.instructions):
            self.copy_down_what_is_ready(waiting, position)
            self.instruction(code, waiting)
        if stage_out is not None:
            left = Place(Buffer.OUTPUT, stage_out.start)
            self.submit(Work(WorkKind.STAGE_OUT, Queue.COMPUTE, stage_out.count, left=left))
        works = tuple(
            work._replace(marked=number in self.marked) for number, work in enumerate(self.works)
        )
        program = replace(
            self.program,
            sends=tuple(self.sends),
            receives=tuple(self.receives),
            instructions=tuple(self.code),
        )
        return DeviceProgram(program, works, SEND_SLOTS + RECEIVE_SLOTS if self.staged else 0)

    # -- messages --------------------------------------------------------------------------------

    def sends_in_order(self) -> "deque[tuple[int, int]]":
        """Return the sends that are to be copied down, with the position from which they can be."""
        waiting: deque[tuple[int, int]] = deque()
        if not self.staged:
            return waiting
        written: dict[Buffer, list[tuple[Range, int]]] = {buffer: [] for buffer in Buffer}
        for position, code in enumerate(self.program.instructions):
            if code.opcode is Opcode.START_SEND:
                message = self.program.sends[code.index]
                buffer, elements = self.located(message.place, message.count)
                before = (end for part, end in reversed(written[buffer]) if part.overlaps(elements))
                waiting.append((code.index, next(before, -1) + 1))
            for buffer, elements in self.written_by(code):
                written[buffer].append((elements, position))
        return waiting

    def written_by(self, code: Instruction) -> Iterator[tuple[Buffer, Range]]:
        if code.opcode is Opcode.WAIT_RECEIVE:
            message = self.program.receives[code.index]
            yield self.located(message.place, message.count)
        elif code.opcode is Opcode.NODE_REDUCE:
            yield self.partial, self.pieces[code.index]
        elif code.opcode in _WORKS:
            yield self.located(code.out, code.count)

    def copy_down_what_is_ready(self, waiting: "deque[tuple[int, int]]", position: int) -> None:
        # In the order of the sends: so a slot is free for the next one that has to start.
        while waiting and waiting[0][1] <= position and self.free_sends:
            self.copy_down(waiting.popleft()[0])

    def copy_down(self, index: int) -> None:
        message = self.sends[index]
        slot = self.send_slots[index] = self.free_sends.popleft()
        place = Place(Buffer.PINNED, slot * self.slot_bytes)
        self.downs[index] = self.submit(
            Work(WorkKind.COPY_DOWN, Queue.DOWN, message.count, place, message.place, index=index)
        )
        self.sends[index] = message._replace(place=place)

    def start_send(self, code: Instruction, waiting: "deque[tuple[int, int]]") -> None:
        if self.staged:
            if code.index not in self.downs:
                assert waiting[0][0] == code.index
                self.copy_down(waiting.popleft()[0])
            self.wait_for([self.downs[code.index]])
        else:
            message = self.sends[code.index]
            self.begin()
            self.wait_for(self.before(message.place, message.count, writes=False))
        self.code.append(code)

    def start_receive(self, code: Instruction) -> None:
        self.begin()
        message = self.receives[code.index]
        if self.staged:
            slot = self.receive_slots[code.index] = self.free_receives.popleft()
            if slot in self.last_use:
                self.wait_for([self.last_use[slot]])
            place = Place(Buffer.PINNED, slot * self.slot_bytes)
            self.receives[code.index] = message._replace(place=place, room=self.slot_count)
        else:
            room = message.room if message.place.buffer is Buffer.SCRATCH else message.count
            self.wait_for(self.before(message.place, room, writes=True))
        self.code.append(code)

    def copy_up(self, index: int) -> None:
        message = self.program.receives[index]
        slot = self.receive_slots.pop(index)
        pinned = Place(Buffer.PINNED, slot * self.slot_bytes)
        self.last_use[slot] = self.submit(
            Work(WorkKind.COPY_UP, Queue.UP, message.count, message.place, pinned, index=index)
        )
        self.free_receives.append(slot)

    # -- instructions ----------------------------------------------------------------------------

    def instruction(self, code: Instruction, waiting: "deque[tuple[int, int]]") -> None:
        if code.opcode is Opcode.START_SEND:
            self.start_send(code, waiting)
        elif code.opcode is Opcode.START_RECEIVE:
            self.start_receive(code)
        elif code.opcode is Opcode.WAIT_SEND:
            self.code.append(code)
            if self.staged:
                self.free_sends.append(self.send_slots.pop(code.index))
        elif code.opcode is Opcode.WAIT_RECEIVE:
            self.code.append(code)
            if self.staged:
                self.copy_up(code.index)
        elif code.opcode is Opcode.NODE_REDUCE:
            piece = self.pieces[code.index]
            out = Place(self.partial, piece.start)
            self.submit(
                Work(WorkKind.NODE_REDUCE, Queue.COMPUTE, piece.count, out, index=code.index)
            )
        elif code.opcode is Opcode.NODE_PUBLISH:
            piece = self.pieces[code.index]
            left = Place(Buffer.OUTPUT, piece.start)
            self.submit(
                Work(WorkKind.NODE_PUBLISH, Queue.COMPUTE, piece.count, left=left, index=code.index)
            )
        else:
            kind = _WORKS[code.opcode]
            self.submit(Work(kind, Queue.COMPUTE, code.count, code.out, code.left, code.right))

    def begin(self) -> None:
        """Wait for what came before the call: it may still work on memory of the channel."""
        if not self.began:
            self.began = True
            self.code.append(Instruction(Opcode.AWAIT, index=BEFORE))

    def submit(self, work: Work) -> int:
        """Hand a work to its queue, and return its number."""
        number = len(self.works)
        touched = [(*self.located(place, work.count), writes) for place, writes in _touched(work)]
        latest: dict[Queue, int] = {}
        for buffer, elements, writes in touched:
            for earlier in self.accesses[buffer].conflicts(elements, writes):
                queue = self.works[earlier].queue
                if queue is not work.queue:
                    latest[queue] = max(earlier, latest.get(queue, -1))
        # What the host has waited for is done.
        after = tuple(earlier for queue, earlier in latest.items() if earlier > self.awaited[queue])
        self.marked.update(after)
        self.works.append(work._replace(after=after))
        for buffer, elements, writes in touched:
            self.accesses[buffer].add(elements, writes, number)
        self.code.append(Instruction(Opcode.SUBMIT, index=number))
        return number

    def before(self, place: Place, count: int, *, writes: bool) -> list[int]:
        """Return the works that must be done before a message reads or writes there."""
        buffer, elements = self.located(place, count)
        return list(self.accesses[buffer].conflicts(elements, writes))

    def wait_for(self, works: list[int]) -> None:
        """Have the host wait for works, where it has not yet."""
        for queue in Queue:
            last = max((work for work in works if self.works[work].queue is queue), default=-1)
            if last > self.awaited[queue]:
                self.awaited[queue] = last
                self.marked.add(last)
                self.code.append(Instruction(Opcode.AWAIT, index=last))

    def located(self, place: Place, count: int) -> tuple[Buffer, Range]:
        """Return where elements are; the input in place is the output."""
        buffer = place.buffer
        if buffer is Buffer.INPUT and self.in_place:
            buffer = Buffer.OUTPUT
        return buffer, Range(place.element, place.element + count)

"""From a schedule to a program: segments, order, hazards. Pure.

A schedule says what moves; a program says when each part of it is started, waited for and reduced
on one rank, so that segment k travels while segment k-1 is reduced and a segment is sent on as
soon as it is complete, also across the steps of the schedule.

How it is arranged
------------------
* Every range of a message is cut into segments from its start, on both sides alike; a segment
  is one MPI message.
* Receives are processed in schedule order; at most `LOOKAHEAD` are posted at a time.
* A send starts as soon as the receives whose elements it passes on are processed, never more than
  `LOOKAHEAD` segments ahead of the receives of its own step (an unbounded burst of large sends
  was measured 2 to 10 times slower on Open MPI) and never more than `LIVE_SENDS` at a time.
* Memory is written only when nobody reads it any more: a reduce waits for the sends that read its
  elements, a receive that lands in the result waits for both.

Each of these waits for something that stands earlier in the schedule, or earlier in the same
step; so a program cannot deadlock where its schedule does not. Tests run the programs of all ranks
under rendezvous semantics to check that.

Where the operand still lies in the caller's input ("fresh" elements), the reduce reads it there
and writes to the output: an out-of-place call needs no copy of the vector.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hpccoll.chunks import Range, RangeSet, segments
from hpccoll.program import Buffer, Instruction, Message, Opcode, Place, Program
from hpccoll.schedule import Action, Schedule, Step

LOOKAHEAD = 2
"""Receives posted at a time, and so places in scratch memory."""

LIVE_SENDS = 8
"""Sends under way at a time."""


def compile_program(
    schedule: Schedule,
    *,
    segment_count: int,
    room: int = 0,
    wants: Range | None = None,
    in_place: bool = False,
    widen: bool = False,
    finish: bool = False,
) -> Program:
    """Turn a schedule into a program.

    Parameters
    ----------
    schedule : Schedule
        The steps of this rank.
    segment_count : int
        Elements in a message at the most; equal on all ranks.
    room : int
        Elements that a segment's place in scratch memory holds at the least.
    wants : Range, optional
        Elements of the result that this rank ends with; by default all.
    in_place : bool
        Input and output are the same memory.
    widen : bool
        Partial values have a wider type than the caller's, and live in a buffer of their own.
    finish : bool
        Elements are changed once more when they are complete (a division, or a narrowing).
    """
    if wants is None:
        wants = Range(0, schedule.count)
    compiler = _Compiler(
        schedule, segment_count, room, wants, in_place=in_place, widen=widen, finish=finish or widen
    )
    return compiler.compile()


@dataclass(slots=True)
class _Send:
    """A segment to send, with what must have happened before."""

    message: Message
    elements: Range
    step: int
    after_receive: int
    """The send starts when receives up to this one are processed."""
    prepare: list[Instruction] = field(default_factory=list)
    """Copies that gather the segment in one buffer."""


@dataclass(slots=True)
class _Receive:
    """A segment to receive, with what is done when it is there."""

    message: Message
    elements: Range
    step: int
    after_receive: int
    """A receive into the result is posted when receives up to this one are processed."""
    process: list[Instruction] = field(default_factory=list)


class _LastWriters:
    """For each element, the last receive that writes it, so far; -1 for none."""

    def __init__(self, pieces: Iterable[Range]) -> None:
        # Elements between two neighbouring cuts behave alike: one cell for all of them.
        cuts = sorted({edge for piece in pieces for edge in piece})
        self._cell = {edge: cell for cell, edge in enumerate(cuts)}
        self._writer = np.full(len(cuts), -1)

    def last(self, elements: Range) -> int:
        return int(self._writer[self._cells(elements)].max())

    def write(self, elements: Range, receive: int) -> None:
        self._writer[self._cells(elements)] = receive

    def _cells(self, elements: Range) -> slice:
        return slice(self._cell[elements.start], self._cell[elements.stop])


class _Compiler:
    def __init__(
        self,
        schedule: Schedule,
        segment_count: int,
        room: int,
        wants: Range,
        *,
        in_place: bool,
        widen: bool,
        finish: bool,
    ) -> None:
        self.schedule = schedule
        self.segment_count = segment_count
        self.room = room
        self.wants = wants
        # Where something is reduced, ranks with other counts are found out by that.
        self.only_moves = not any(step.action.reduces for step in schedule.steps)
        self.finish = finish
        self.work = Buffer.WORK if widen else Buffer.OUTPUT
        self.whole = Range(0, schedule.count)
        # Elements whose local value still stands in the input. Widening moves all of them first.
        self.fresh = RangeSet() if in_place or widen else RangeSet(self.whole)
        self.sends: list[_Send] = []
        self.receives: list[_Receive] = []
        self.code: list[Instruction] = []
        if widen:
            self.emit(Opcode.WIDEN, out=Place(Buffer.WORK, 0), left=Place(Buffer.INPUT, 0))
        self.started_sends = 0
        self.started_receives = 0
        self.waited: set[int] = set()
        self.first_live = 0

    def compile(self) -> Program:
        scratch_slot = self.list_messages()
        self.add_finishing()
        self.order_messages()
        return Program(
            sends=tuple(send.message for send in self.sends),
            receives=tuple(receive.message for receive in self.receives),
            instructions=tuple(self.code),
            scratch_count=scratch_slot * LOOKAHEAD,
            steps=len(self.schedule.steps),
        )

    def emit(self, opcode: Opcode, **fields: object) -> None:
        fields.setdefault("count", self.whole.count)
        self.code.append(Instruction(opcode, **fields))  # type: ignore[arg-type]

    # -- what moves: one pass over the schedule --------------------------------------------------

    def list_messages(self) -> int:
        """Cut all messages into segments and find their buffers; return the scratch slot size."""
        to_scratch = [
            min(part.count, self.segment_count)
            for step in self.schedule.steps
            if step.action.reduces or self.only_moves
            for part in step.receive
        ]
        scratch_slot = max([self.room, *to_scratch]) if to_scratch else 0
        cuts = [(self.cut(step.send), self.cut(step.receive)) for step in self.schedule.steps]
        writers = _LastWriters(piece for pair in cuts for pieces in pair for piece in pieces)
        for number, (step, (outgoing, incoming)) in enumerate(
            zip(self.schedule.steps, cuts, strict=True)
        ):
            before = len(self.receives)
            for k, elements in enumerate(outgoing):
                # A send follows the receives of its own step at a distance of LOOKAHEAD.
                pace = before + min(k, len(incoming)) - LOOKAHEAD if incoming else -1
                after = max(pace, writers.last(elements))
                self.add_send(number, step, elements, after)
            for elements in incoming:
                self.add_receive(number, step, elements, writers.last(elements), scratch_slot)
            for k, elements in enumerate(incoming):
                writers.write(elements, before + k)
        return scratch_slot

    def cut(self, ranges: tuple[Range, ...]) -> list[Range]:
        return [piece for part in ranges for piece in segments(part, self.segment_count)]

    def add_send(self, number: int, step: Step, elements: Range, after_receive: int) -> None:
        assert step.send_to is not None
        action = step.action
        prepare = []
        fresh = self.fresh.inside(elements)
        if fresh == [elements] and action.reduces:
            buffer = Buffer.INPUT
        else:
            # A message is one piece of memory: bring the fresh part of it to the other part.
            buffer = self.work if action.reduces else Buffer.OUTPUT
            for piece in fresh:
                prepare.append(self.copy_from_input(piece))
                self.fresh.remove(piece)
        self.sends.append(
            _Send(
                Message(
                    step.send_to,
                    elements.start,
                    Place(buffer, elements.start),
                    elements.count,
                    action.reduces,
                    last=elements.stop == step.send[-1].stop,
                    room=elements.count,
                    step=number,
                ),
                elements,
                number,
                after_receive,
                prepare,
            )
        )

    def copy_from_input(self, piece: Range) -> Instruction:
        return Instruction(
            Opcode.COPY,
            out=Place(self.work, piece.start),
            left=Place(Buffer.INPUT, piece.start),
            count=piece.count,
        )

    def add_receive(
        self, number: int, step: Step, elements: Range, after_receive: int, slot: int
    ) -> None:
        assert step.receive_from is not None
        action = step.action
        index = len(self.receives)
        process: list[Instruction] = []
        if action.reduces:
            place = Place(Buffer.SCRATCH, (index % LOOKAHEAD) * slot)
            for piece, mine in self.split_by_buffer(elements):
                incoming = Place(Buffer.SCRATCH, place.element + piece.start - elements.start)
                left, right = incoming, Place(mine, piece.start)
                if action is Action.REDUCE_RIGHT:
                    left, right = right, left
                process.append(
                    Instruction(
                        Opcode.REDUCE,
                        out=Place(self.work, piece.start),
                        left=left,
                        right=right,
                        count=piece.count,
                    )
                )
        elif self.only_moves and elements.count < slot:
            # A longer message, of a rank with another count, must not be truncated: `Message.room`.
            place = Place(Buffer.SCRATCH, (index % LOOKAHEAD) * slot)
            process.append(
                Instruction(
                    Opcode.COPY,
                    out=Place(Buffer.OUTPUT, elements.start),
                    left=place,
                    count=elements.count,
                )
            )
        else:
            place = Place(Buffer.OUTPUT, elements.start)
        self.fresh.remove(elements)
        self.receives.append(
            _Receive(
                Message(
                    step.receive_from,
                    elements.start,
                    place,
                    elements.count,
                    action.reduces,
                    last=elements.stop == step.receive[-1].stop,
                    room=slot if place.buffer is Buffer.SCRATCH else elements.count,
                    step=number,
                ),
                elements,
                number,
                after_receive,
                process,
            )
        )

    def split_by_buffer(self, elements: Range) -> list[tuple[Range, Buffer]]:
        """Split a range into the pieces that lie in the input and those that lie in the work."""
        pieces = [(piece, Buffer.INPUT) for piece in self.fresh.inside(elements)]
        pieces += [(piece, self.work) for piece in self.fresh.outside(elements)]
        return sorted(pieces)

    # -- finishing: once per element, where it is complete, while it is in the cache ---------------

    def add_finishing(self) -> None:
        """Finish each element after its last reduce here, unless it is passed on or replaced."""
        still_to_come = RangeSet()
        finished = RangeSet()
        sends = list(self.sends)
        for receive in reversed(self.receives):
            while sends and sends[-1].step > receive.step:
                send = sends.pop()
                if send.message.partial:
                    still_to_come.add(send.elements)
            if receive.message.partial:
                for piece in still_to_come.outside(receive.elements):
                    finished.add(piece)
                    if self.finish:
                        receive.process.append(self.finishing(piece))
            else:
                finished.add(receive.elements)
            still_to_come.add(receive.elements)
        # What no message touched (a single rank) goes straight from the input to the output.
        for piece in finished.outside(self.wants):
            if self.fresh.inside(piece):
                self.code.append(self.copy_from_input(piece))
            if self.finish:
                self.code.append(self.finishing(piece))

    def finishing(self, piece: Range) -> Instruction:
        return Instruction(
            Opcode.FINISH,
            out=Place(Buffer.OUTPUT, piece.start),
            left=Place(self.work, piece.start),
            count=piece.count,
        )

    # -- when it moves: one pass over the receives -------------------------------------------------

    def order_messages(self) -> None:
        for index, receive in enumerate(self.receives):
            self.start_receives(index)
            self.start_sends(index, receive)
            self.emit(Opcode.WAIT_RECEIVE, index=index)
            if receive.message.place.buffer is Buffer.SCRATCH:
                self.wait_for_readers(receive)
            self.code.extend(receive.process)
        self.start_sends(len(self.receives), None)
        for index in range(len(self.sends)):
            self.wait_send(index)

    def start_receives(self, current: int) -> None:
        """Post receive `current`, and those behind it that may be posted already."""
        while self.started_receives < min(current + LOOKAHEAD, len(self.receives)):
            index = self.started_receives
            receive = self.receives[index]
            if receive.message.place.buffer is Buffer.OUTPUT:
                # It lands in the result: everyone must be done with what stands there.
                if receive.after_receive >= current:
                    return
                if index > current and next(self.readers(receive), None) is not None:
                    return
                self.wait_for_readers(receive)
            self.emit(Opcode.START_RECEIVE, index=index)
            self.started_receives += 1

    def start_sends(self, processed: int, current: _Receive | None) -> None:
        """Start the sends, in order, that may start once `processed` receives are processed.

        Among them are all that read what `current` is going to overwrite.
        """
        pressing = self.started_sends
        if current is not None:
            pressing = max((index + 1 for index in self.readers(current)), default=0)
        while self.started_sends < len(self.sends):
            send = self.sends[self.started_sends]
            if self.started_sends >= pressing:
                if send.after_receive >= processed:
                    return
                ahead = current is not None and send.step > current.step
                if ahead and self.started_sends - len(self.waited) >= LIVE_SENDS:
                    # To wait for a send of a later step here could be to wait for ever.
                    return
            self.start_send()

    def start_send(self) -> None:
        index = self.started_sends
        self.started_sends += 1
        if index - len(self.waited) >= LIVE_SENDS:
            self.wait_send(self.oldest_live_send())
        self.code.extend(self.sends[index].prepare)
        self.emit(Opcode.START_SEND, index=index)

    def readers(self, receive: _Receive) -> Iterator[int]:
        """List the sends, not yet waited for, that read what `receive` or its reduce writes."""
        written = self.work if receive.message.partial else Buffer.OUTPUT
        for index in range(self.oldest_live_send(), len(self.sends)):
            send = self.sends[index]
            if send.step > receive.step:
                return
            if (
                index not in self.waited
                and send.message.place.buffer is written
                and send.elements.overlaps(receive.elements)
            ):
                yield index

    def oldest_live_send(self) -> int:
        while self.first_live in self.waited:
            self.first_live += 1
        return self.first_live

    def wait_for_readers(self, receive: _Receive) -> None:
        for index in list(self.readers(receive)):
            self.wait_send(index)

    def wait_send(self, index: int) -> None:
        if index not in self.waited:
            while self.started_sends <= index:
                self.start_send()
            self.emit(Opcode.WAIT_SEND, index=index)
            self.waited.add(index)

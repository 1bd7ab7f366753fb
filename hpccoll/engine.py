"""The engine: binds a schedule to memory, messages and loops, as a plan that can run again.

schedule (algorithms)  ->  program (compiler)  ->  plan: addresses, persistent requests and loops,
which the executor runs.
"""

import functools
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from hpccoll import ops
from hpccoll import transport as transports
from hpccoll._executor import MessagePlan
from hpccoll._plans import Levels
from hpccoll.algorithms import Algorithm
from hpccoll.algorithms.collective import COLLECTIVES
from hpccoll.compiler import LOOKAHEAD, compile_program
from hpccoll.errors import NEW_ONE, CollectiveTimeoutError, MismatchError, join_ranks
from hpccoll.pattern import ALLREDUCE, NO_OPERATION, Pattern
from hpccoll.program import Buffer, Instruction, Message, Place, Program
from hpccoll.reduction import Reduction
from hpccoll.topology import Topology
from hpccoll.transport import KIND_BITS, Failure, Transport, Word, message_tag

SEGMENT_BYTES = 512 << 10
"""Default segment: a part of a second-level cache of today, and so large that the fixed cost of a
message does not count (bench/segments.py measures it). The same for any count: what another rank
sends always fits in scratch memory."""

STAGE_BYTES = 4096
"""Vectors up to this size are copied to and from memory of the plan's own, so that one plan serves
all arrays; the copy costs less than finding or making a plan for each address."""

ALIGNMENT = 64

LONGEST_COUNTS = 80
"""Characters of uneven counts in the text of a call."""

GIVEN_UP = -1
"""In place of the tag of a message, where its sender has given up the call."""

COLLECTIVE_NAMES = tuple(COLLECTIVES)
OPERATION_NAMES = (NO_OPERATION, *ops.OPERATIONS)
TYPE_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble", "float128", "float96"),
    *("complex64", "complex128", "clongdouble", "complex256", "complex192"),
)
OPERATIONS, TYPES = 16, 32
"""More than there are names; `Task.kind` counts by them."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Task:
    """One collective, as far as a plan depends on it. Equal on all ranks, addresses apart.

    Attributes
    ----------
    call : str
        For messages: the call that the user made.
    algorithm : Algorithm or None
        Whose schedule runs; None for the node path.
    operation : str
        Name of the operation; `NO_OPERATION` where elements only move.
    reduction : Reduction
        Its loops on the caller's type.
    count : int
        Elements of the whole vector.
    segment_bytes : int or None
        Upper limit of a message; None for the default.
    topology : Topology or None
        Which ranks share a node; None for all.
    pattern : Pattern
        Which collective, and of which rank which elements.
    is_comparison : bool
        It is no call of the user's, but compares what ranks call.
    """

    call: str
    algorithm: Algorithm | None
    operation: str
    reduction: Reduction
    count: int
    segment_bytes: int | None
    topology: Topology | None = None
    pattern: Pattern = ALLREDUCE
    is_comparison: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector."""
        return self.count * self.reduction.dtype.itemsize

    @property
    def text(self) -> str:
        """What it is, for messages: "sum of 5 elements of float32"."""
        collective, root = self.pattern.collective, self.pattern.root
        what = self.operation if collective == "allreduce" else collective
        if self.operation != NO_OPERATION and collective != "allreduce":
            what = f"{collective} by {self.operation}"
        if collective in ("reduce", "broadcast"):
            what = f"{what} {'to' if collective == 'reduce' else 'from'} rank {root}"
        return f"{what} of {self.count} elements of {self.reduction.dtype}"

    def full_text(self, algorithm: str) -> str:
        """Return all that must be equal on all ranks, where that name of an algorithm was given."""
        pattern = self.pattern
        operation = "" if self.operation == NO_OPERATION else f", op {self.operation}"
        root = f", root {pattern.root}" if COLLECTIVES[pattern.collective].rooted else ""
        counts = "" if pattern.counts is None else f", counts {list(pattern.counts)}"
        if len(counts) > LONGEST_COUNTS:
            counts = f"{counts[:LONGEST_COUNTS]}... ({zlib.crc32(counts.encode()):x})"
        return (
            f"{pattern.collective} of {self.count} elements of {self.reduction.dtype}{operation}"
            f"{root}{counts}, algorithm {algorithm}, segment_bytes {self.segment_bytes}"
        )

    def kind(self, *, partial: bool = False) -> int:
        """Return a number of `KIND_BITS` that no other collective, operation or type has."""
        collective = COLLECTIVE_NAMES.index(self.pattern.collective)
        operation = OPERATION_NAMES.index(self.operation)
        name = self.reduction.dtype.name
        if name in TYPE_NAMES:
            dtype = TYPE_NAMES.index(name)
        else:  # of those that can only be moved
            dtype = len(TYPE_NAMES) + zlib.crc32(name.encode()) % (TYPES - len(TYPE_NAMES))
        return ((collective * OPERATIONS + operation) * TYPES + dtype) * 2 + partial

    @property
    def salt(self) -> int:
        """What else must be equal on all ranks: root and uneven counts, as a number."""
        text = f"{self.pattern.root} {self.pattern.counts} {self.is_comparison}"
        return zlib.crc32(text.encode())

    @property
    def node_kind(self) -> int:
        """What ranks of a node compare beside the number of bytes: a number of 20 bits."""
        return self.salt % (1 << (20 - KIND_BITS)) << KIND_BITS | self.kind()

    @property
    def staged(self) -> bool:
        """Whether the plan copies the vector to memory of its own."""
        return self.nbytes <= STAGE_BYTES

    @property
    def segment_count(self) -> int:
        """Return the most elements of one message."""
        wanted = SEGMENT_BYTES if self.segment_bytes is None else self.segment_bytes
        limit = min(wanted, transports.MESSAGE_LIMIT)
        return max(1, limit // self.reduction.partial_dtype.itemsize)


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What is known of a plan's calls before they run."""

    task: Task
    rank: int
    size: int
    steps: int
    scratch_bytes: int

    def fail(self, why: str) -> NoReturn:
        """Raise the error of a call that ended before its time.

        Parameters
        ----------
        why : str
            What happened.
        """
        message = (
            f"{self.task.call}: {why} (rank {self.rank} of {self.size}, {self.task.text} here). "
            f"{NEW_ONE}"
        )
        raise RuntimeError(message)

    def describe(self, number: int, what: str) -> str:
        """Return what happened in a call, for messages."""
        by = f" by {self.task.algorithm.name}" if self.task.algorithm else ""
        return (
            f"{self.task.call}: {what} (call {number} on this communicator, {self.task.text}{by}, "
            f"rank {self.rank} of {self.size})"
        )

    def warn(self, number: int, what: str) -> None:
        """Tell on stderr that this rank has waited long, and goes on."""
        text = f"hpccoll: {self.describe(number, what)}; it goes on waiting"
        print(text, file=sys.stderr, flush=True)

    def lose(self, number: int, what: str, ranks: Sequence[int] = ()) -> NoReturn:
        """Raise the error of a call that waited too long, here or on another rank.

        Parameters
        ----------
        number : int
            Of the call.
        what : str
            What was waited for, and how long.
        ranks : sequence of int
            Which gave no sign of being in the call.
        """
        error = CollectiveTimeoutError(self.describe(number, what))
        raise self.complete(error, ranks)

    def complete(
        self, error: CollectiveTimeoutError, ranks: Sequence[int]
    ) -> CollectiveTimeoutError:
        """Add to an error which ranks gave no sign of being in the call."""
        text = str(error.args[0]).partition(". No sign of ")[0].partition(f". {NEW_ONE}")[0]
        missing = f". No sign of {join_ranks(ranks)}" if ranks else ""
        error.ranks = tuple(ranks)
        error.args = (f"{text}{missing}. {NEW_ONE}",)
        return error

    def given_up(self, word: Word, expected: int, tag: int, number: int) -> NoReturn:
        """Raise the error of a rank that was told of a failure.

        Parameters
        ----------
        word : Word
            What it was told.
        expected, tag, number
            As of `mismatch` and `lose`.
        """
        if word.failure is Failure.LOST:
            self.lose(number, f"rank {word.rank} has given up the call for good")
        self.mismatch(word.rank, expected, tag, 0, GIVEN_UP)

    def elsewhere(self, peer: int) -> NoReturn:
        """Raise the error of a rank that waits in memory for one that sends messages.

        Parameters
        ----------
        peer : int
            That one.
        """
        message = (
            f"{self.task.call}: expected the part of rank {peer} in the memory of their node, got "
            f"messages of another call (rank {self.rank} of {self.size}, {self.task.text} here). "
            "Ranks passed different types or algorithms; the results of this call are not valid"
        )
        raise MismatchError(message)

    def mismatch(
        self, peer: int, expected: int, tag: int, got: int | None, got_tag: int
    ) -> NoReturn:
        """Raise the error of a rank that received another message than it expected.

        Parameters
        ----------
        peer : int
            The sender.
        expected, tag : int
            Bytes and tag that were expected.
        got, got_tag : int
            Bytes and tag that came; `got` is None where more came than there was room for. The tag
            is `GIVEN_UP` where no data came, but word that the sender has given up.
        """
        wanted = f"{expected} bytes from rank {peer}"
        if got_tag == GIVEN_UP:
            came = "word that it has given up"
        elif got is None:
            came = "more"
        elif got != expected:
            came = f"{got}"
        elif got_tag ^ tag == 1:
            came = f"{got}, and another number of messages"
        else:
            came = f"{got} of another type or for another operation"
        message = (
            f"{self.task.call}: expected {wanted}, got {came} "
            f"(rank {self.rank} of {self.size}, {self.task.text} here). Ranks passed different "
            "counts, types, operations, algorithms or segment sizes, or made different calls; the "
            "results of this call are not valid"
        )
        raise MismatchError(message)


class Memory:
    """Scratch memory of one communicator. Plans run one at a time, so all of them share it.

    Parameters
    ----------
    empty : callable, optional
        Returns an array of so many bytes.
    """

    def __init__(self, empty: Callable[[int], Bytes] | None = None) -> None:
        self._empty = empty or (lambda nbytes: np.empty(nbytes, np.uint8))
        self._blocks: dict[tuple[str, int], Bytes] = {}

    def block(self, purpose: str, nbytes: int) -> Bytes:
        """Return memory of at least `nbytes` bytes, at an address that a cache line starts at."""
        # A power of two, so that vectors of similar sizes share a block.
        wanted = 1 << max(nbytes - 1, 4095).bit_length()
        found = self._blocks.get((purpose, wanted))
        if found is None:
            raw = self._empty(wanted + ALIGNMENT)
            start = -raw.ctypes.data % ALIGNMENT
            found = raw[start : start + wanted]
            self._blocks[purpose, wanted] = found
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(block.nbytes for block in self._blocks.values())

    def clear(self) -> None:
        """Let go of all blocks; plans keep theirs."""
        self._blocks.clear()


@functools.lru_cache(maxsize=128)
def _program(
    algorithm: Algorithm,
    topology: Topology | None,
    pattern: Pattern,
    rank: int,
    size: int,
    count: int,
    segment_count: int,
    *,
    in_place: bool,
    widen: bool,
    finish: bool,
) -> Program:
    """Compile once what arrays at other addresses use again."""
    placed = algorithm.on(topology, root=pattern.root, counts=pattern.counts)
    schedule = placed.schedule(rank, size, count)
    if pattern.collective == "barrier":
        # Tokens of several ranks are one word; a range would be a message of its own.
        steps = (s._replace(send=s.send[:1], receive=s.receive[:1]) for s in schedule.steps)
        schedule = replace(schedule, steps=tuple(steps))
    return compile_program(
        schedule,
        segment_count=segment_count,
        room=segment_count,
        wants=pattern.wants(rank, size, count),
        in_place=in_place,
        widen=widen,
        finish=finish,
    )


@dataclass(slots=True)
class Places:
    """Where a plan finds its vector.

    Attributes
    ----------
    input, output, work : int
        Addresses at which element 0 of the whole vector stands, or would, for the program.
    stage_in, in_nbytes : int
        Where what the caller brings is copied before, and how much it is; 0 for nowhere.
    stage_out, out_nbytes : int
        Where what the caller wants is copied from after, and how much it is; 0 for nowhere.
    own_offset : int
        Bytes before the chunk that a call in place brings.
    keep : list
        Memory to be kept alive.
    """

    input: int
    output: int
    work: int = 0
    stage_in: int = 0
    in_nbytes: int = 0
    stage_out: int = 0
    out_nbytes: int = 0
    own_offset: int = 0
    keep: list[object] = field(default_factory=list)


def _places(memory: Memory, task: Task, rank: int, size: int, source: int, target: int) -> Places:
    """Find a place for the whole vector, of which the caller may have a part."""
    itemsize, pattern = task.reduction.dtype.itemsize, task.pattern
    brings = pattern.brings(rank, size, task.count)
    wants = pattern.wants(rank, size, task.count)
    places = Places(
        source,
        target,
        in_nbytes=brings.count * itemsize,
        out_nbytes=wants.count * itemsize,
    )
    if task.staged:
        # These live as long as the plan: two plans with the same memory would still be right, but
        # small vectors are where a shared, cold block would show.
        stage = np.empty(2 * STAGE_BYTES, np.uint8)
        places.keep.append(stage)
        places.input = stage.ctypes.data
        places.output = places.input + (STAGE_BYTES if pattern.reduces else 0)
        places.stage_in = places.input + brings.start * itemsize
        places.stage_out = places.output + wants.start * itemsize
    elif pattern.reduces and wants.count < task.count:
        # The output has no room for partial values, or for what this rank passes on.
        whole = memory.block("whole vector", task.nbytes)
        places.keep.append(whole)
        places.output = whole.ctypes.data
        places.stage_out = places.output + wants.start * itemsize
    elif pattern.collective == "allgather":
        places.input = target
        places.stage_in = target + brings.start * itemsize
    elif pattern.collective == "broadcast":
        places.input = places.output = source if wants.count < task.count else target
    if pattern.collective == "allgather":
        places.own_offset = brings.start * itemsize
    work = memory.block("work", task.count * task.reduction.partial_dtype.itemsize)
    places.work = work.ctypes.data
    places.keep.append(work)
    return places


def make_plan(
    transport: Transport, memory: Memory, task: Task, source: int = 0, target: int = 0
) -> MessagePlan:
    """Make the plan of one rank.

    Parameters
    ----------
    transport : Transport
        Makes the requests.
    memory : Memory
        Gives scratch memory.
    task : Task
        What to do.
    source, target : int
        Addresses of what this rank brings and of what it wants; equal for a call in place, ignored
        where the task is staged.
    """
    reduction, algorithm, pattern = task.reduction, task.algorithm, task.pattern
    rank, size = transport.rank, transport.size
    if algorithm is None:
        raise ValueError("a task of the node path has no schedule")
    places = _places(memory, task, rank, size, source, target)
    # Chunks that are empty take part with empty messages: so the messages of a call are the same
    # ones for any count, and a rank with another count is noticed. Program and messages are made
    # for at least one element per rank, and what lies behind the vector's end is cut off.
    planned = task.count if pattern.counts else max(task.count, size)
    topology = task.topology if algorithm.hierarchical else None
    program = _program(
        algorithm,
        topology,
        pattern,
        rank,
        size,
        planned,
        task.segment_count,
        in_place=places.input == places.output,
        widen=reduction.widens,
        finish=reduction.finishes,
    )
    steps = program.steps
    if task.count < planned and pattern.collective != "barrier":
        placed = algorithm.on(topology, root=pattern.root)
        steps = len(placed.schedule(rank, size, task.count).steps)
    return bind(transport, memory, task, program, places, count=task.count, steps=steps)


def bind(
    transport: Transport,
    memory: Memory,
    task: Task,
    program: Program,
    places: Places,
    *,
    count: int,
    steps: int,
    levels: Levels | None = None,
) -> MessagePlan:
    """Bind a program to memory, messages and loops.

    Parameters
    ----------
    transport, memory, task
        As of `make_plan`.
    program : Program
        What to run. It may be for more elements than there are.
    places : Places
        Where the vector is.
    count : int
        Elements that there are.
    steps : int
        Of the schedule.
    levels : Levels, optional
        Of a hierarchical plan: what it does inside the node.
    """
    reduction = task.reduction
    itemsize, partial_itemsize = reduction.dtype.itemsize, reduction.partial_dtype.itemsize

    def within(start: int, length: int) -> int:
        return max(0, min(start + length, count) - start)

    work_bytes = count * partial_itemsize if reduction.widens else 0
    scratch = memory.block("scratch", program.scratch_count * partial_itemsize)
    bases = {
        Buffer.INPUT: (places.input, itemsize),
        Buffer.OUTPUT: (places.output, itemsize),
        Buffer.WORK: (places.work, partial_itemsize),
        Buffer.SCRATCH: (scratch.ctypes.data, partial_itemsize),
    }

    def address(place: Place) -> int:
        base, width = bases[place.buffer]
        return base + place.element * width

    def width(message: Message) -> int:
        return partial_itemsize if message.partial else itemsize

    def nbytes(message: Message) -> int:
        return within(message.start, message.count) * width(message)

    def room(message: Message) -> int:
        in_scratch = message.place.buffer is Buffer.SCRATCH
        return message.room * width(message) if in_scratch else nbytes(message)

    def bound(code: Instruction) -> tuple[int, int, int, int, int, int]:
        return (
            code.opcode,
            code.index,
            address(code.out),
            address(code.left),
            address(code.right),
            within(code.out.element, code.count),
        )

    def tags(messages: tuple[Message, ...]) -> Iterator[int]:
        before: Counter[int] = Counter()
        for m in messages:
            kind = task.kind(partial=m.partial)
            limit = transport.tag_limit
            yield message_tag(kind, task.salt, before[m.peer], last=m.last, limit=limit)
            before[m.peer] += 1

    sends = []
    for m, tag in zip(program.sends, tags(program.sends), strict=True):
        request = transport.send_request(address(m.place), nbytes(m), m.peer, tag)
        sends.append((request, nbytes(m), m.peer, tag, m.step))
    receives = []
    for m, tag in zip(program.receives, tags(program.receives), strict=True):
        request = transport.receive_request(address(m.place), room(m), m.peer)
        receives.append((request, nbytes(m), m.peer, tag, m.step))
    info = PlanInfo(
        task,
        transport.rank,
        transport.size,
        steps,
        # What a call touches; the places have room for longer messages that never come.
        scratch_bytes=work_bytes
        + LOOKAHEAD * max((nbytes(m) for m in program.receives if m.partial), default=0),
    )
    plan = MessagePlan(
        [bound(code) for code in program.instructions],
        sends,
        receives,
        reduction.loops,
        itemsize=itemsize,
        partial_itemsize=partial_itemsize,
        levels=levels,
        stage_in=places.stage_in,
        in_nbytes=places.in_nbytes,
        stage_out=places.stage_out,
        out_nbytes=places.out_nbytes,
        transport=transport,
        status=transport.new_status(),
        keep=[*places.keep, scratch, reduction.loops],
        info=info,
    )
    plan.own_offset = places.own_offset
    return plan

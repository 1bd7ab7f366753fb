"""The engine: binds a schedule to memory, messages and loops, as a plan that can run again.

schedule (algorithms)  ->  program (compiler)  ->  plan: addresses, persistent requests and loops,
which the executor runs.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from hpccoll._executor import MessagePlan
from hpccoll._plans import DeviceWork, Levels
from hpccoll.algorithms import Algorithm
from hpccoll.compiler import LOOKAHEAD, compile_program
from hpccoll.pattern import Pattern
from hpccoll.plan_info import PlanInfo
from hpccoll.program import Buffer, Instruction, Message, Place, Program
from hpccoll.scratch import Memory
from hpccoll.task import STAGE_BYTES, Task
from hpccoll.topology import Topology
from hpccoll.transport import Transport, message_tag


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


def _places(
    memory: Memory, task: Task, rank: int, size: int, source: int, target: int, *, copied: bool
) -> Places:
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
    if copied:
        # These live as long as the plan: two plans with the same memory would still be right, but
        # small vectors are where a shared, cold block would show.
        stage = memory.fresh(2 * STAGE_BYTES)
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


class DeviceSide(Protocol):
    """What binds a plan to a device (`hpccoll.cuda.plans`), where the vector is in its memory."""

    staged: bool
    """Whether messages go through pinned memory. Then a plan can serve vectors at any address, for
    which `SOURCE` and `TARGET` stand."""

    def translate(
        self, task: Task, program: Program, places: Places, rank: int, size: int
    ) -> Program:
        """Return the program of a host as that of a device and its host."""

    def address(self) -> int:
        """Return the address of the pinned memory of that program; 0 without one."""

    def works(self, task: Task, address: Callable[[Place], int], count: int) -> DeviceWork:
        """Bind the works of that program to memory."""


SOURCE, TARGET = 1 << 61, 1 << 62
"""In place of addresses of the caller's, where these are known only when the plan runs: no address
of a process is as high."""


def make_plan(
    transport: Transport,
    memory: Memory,
    task: Task,
    source: int = 0,
    target: int = 0,
    device: DeviceSide | None = None,
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
        where the plan copies the vector.
    device : DeviceSide, optional
        Where the vector and `memory` are in the memory of a device.
    """
    reduction, algorithm, pattern = task.reduction, task.algorithm, task.pattern
    rank, size = transport.rank, transport.size
    if algorithm is None:
        raise ValueError("a task of the node path has no schedule")
    copied = task.is_copied and not (device is not None and device.staged)
    places = _places(memory, task, rank, size, source, target, copied=copied)
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
    return bind(
        transport, memory, task, program, places, count=task.count, steps=steps, device=device
    )


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
    device: DeviceSide | None = None,
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
    device : DeviceSide, optional
        As of `make_plan`.
    """
    reduction = task.reduction
    itemsize, partial_itemsize = reduction.dtype.itemsize, reduction.partial_dtype.itemsize

    def within(start: int, length: int) -> int:
        return max(0, min(start + length, count) - start)

    if device is not None:
        program = device.translate(task, program, places, transport.rank, transport.size)
    work_bytes = count * partial_itemsize if reduction.widens else 0
    scratch = memory.block("scratch", program.scratch_count * partial_itemsize)
    bases = {
        Buffer.INPUT: (places.input, itemsize),
        Buffer.OUTPUT: (places.output, itemsize),
        Buffer.WORK: (places.work, partial_itemsize),
        Buffer.SCRATCH: (scratch.ctypes.data, partial_itemsize),
        Buffer.PINNED: (0 if device is None else device.address(), 1),
    }

    def address(place: Place) -> int:
        base, width = bases[place.buffer]
        return base + place.element * width

    def width(message: Message) -> int:
        return partial_itemsize if message.partial else itemsize

    def nbytes(message: Message) -> int:
        return within(message.start, message.count) * width(message)

    def room(message: Message) -> int:
        spare = message.place.buffer in (Buffer.SCRATCH, Buffer.PINNED)
        return message.room * width(message) if spare else nbytes(message)

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
        device=None if device is None else device.works(task, address, count),
        stage_in=places.stage_in if device is None else 0,
        in_nbytes=places.in_nbytes,
        stage_out=places.stage_out if device is None else 0,
        out_nbytes=places.out_nbytes,
        transport=transport,
        status=transport.new_status(),
        keep=[*places.keep, scratch, reduction.loops],
        info=info,
    )
    plan.own_offset = places.own_offset
    return plan

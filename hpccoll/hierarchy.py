"""Node path and network path composed: how a hierarchical algorithm runs where nodes share memory.

Inside a node nothing is sent: ranks reduce and collect through its memory (kernels/node_levels.h).
Between nodes runs the same part of the schedule that the prover and the simulator see,
`hpccoll.algorithms.levels.between`, compiled as any other, with two instructions more: before the
first use of a piece it is reduced over the node, and after the last its node may collect it.
"""

import functools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpccoll._executor import MessagePlan
from hpccoll._node import Node, NodeLevels
from hpccoll.algorithms import Algorithm, levels
from hpccoll.chunks import Range, chunks
from hpccoll.compiler import compile_program
from hpccoll.engine import Places, bind
from hpccoll.plan_info import PlanInfo
from hpccoll.program import Buffer, Instruction, Opcode, Program
from hpccoll.scratch import Memory
from hpccoll.task import Task
from hpccoll.topology import Topology
from hpccoll.transport import Transport

PIECE_BYTES = 128 << 10
"""Of a slice: what is reduced inside nodes while the piece before it is on the wire. From
bench/cluster.py: half as much costs more in messages, twice as much fills the wire later."""

MOST_PIECES = 64


def make_hierarchical_plan(
    transport: Transport, memory: Memory, shared: Memory, node: Node, task: Task
) -> MessagePlan:
    """Make the plan of one rank, for vectors at any address.

    Parameters
    ----------
    transport : Transport
        Makes the requests between nodes.
    memory, shared : Memory
        Give scratch memory; the second such that the node shares.
    node : Node
        The ranks of this rank's node.
    task : Task
        What to do, with a hierarchical algorithm and the topology of all ranks.
    """
    reduction, topology = task.reduction, task.topology
    mine = portion(task, transport.rank)
    assert topology is not None
    itemsize, partial_itemsize = reduction.dtype.itemsize, reduction.partial_dtype.itemsize
    count, program = mine.count, mine.program
    vector = shared.block("vector", task.count * itemsize)
    output = shared.block("slice", count * itemsize)
    partial = (
        shared.block("partial slice", count * partial_itemsize) if reduction.widens else output
    )
    info = PlanInfo(task, transport.rank, transport.size, program.steps, 0)
    here = topology.nodes[transport.rank]
    inside = NodeLevels(
        node,
        reduction.loops,
        itemsize=itemsize,
        partial_itemsize=partial_itemsize,
        kind=mine.kind,
        count=task.count,
        leader_ranks=[
            node.members.index(levels.leader(topology, here, number))
            for number in range(mine.leaders)
        ],
        pieces=len(mine.pieces),
        input=vector.ctypes.data,
        partial=partial.ctypes.data,
        output=output.ctypes.data,
        info=info,
    )
    return bind(
        transport,
        memory,
        task,
        program,
        Places(
            output.ctypes.data,
            output.ctypes.data,
            partial.ctypes.data,
            keep=[vector, output, partial],
        ),
        count=count,
        steps=program.steps,
        levels=inside,
    )


@dataclass(frozen=True, slots=True)
class Portion:
    """What a rank leads of a vector, and does with it between nodes.

    Attributes
    ----------
    kind : int
        What ranks of a node compare: also the algorithm and the cut, in the upper 11 bits, which
        are 0 in other calls.
    leaders : int
        Of each node.
    start, count : int
        Of the slice, in elements; a rank that leads none has none.
    pieces : tuple of Range
        Of the slice, of at least one element for each node; what lies behind its end is cut off.
    program : Program
        What to do, for the pieces.
    """

    kind: int
    leaders: int
    start: int
    count: int
    pieces: tuple[Range, ...]
    program: Program


def portion(task: Task, rank: int) -> Portion:
    """Return what a rank does of a task with a hierarchical algorithm and a topology."""
    reduction, algorithm, topology = task.reduction, task.algorithm, task.topology
    if algorithm is None or topology is None:
        raise ValueError("a hierarchical task needs an algorithm and a topology")
    leaders = algorithm.leaders(topology)
    slice_number = levels.slice_of(rank, topology, leaders)
    slices = chunks(task.count, leaders)
    pieces = piece_count(task, slices[0].count * reduction.dtype.itemsize)
    mine = Range(0, 0) if slice_number is None else slices[slice_number]
    # As in `make_plan`: the messages of a call are the same ones for any count, some of them empty.
    planned = mine.count
    if slices[0].count <= topology.node_count:
        pieces, planned = 1, max(mine.count, topology.node_count)
    program = _program(
        algorithm, topology, rank, planned, pieces, task.segment_count,
        widen=reduction.widens, finish=reduction.finishes,
    )  # fmt: skip
    kind = _kind(task, algorithm.name, pieces)
    return Portion(kind, leaders, mine.start, mine.count, chunks(planned, pieces), program)


OTHER_KIND = 0x7FF << 20
"""What `Portion.kind` never is: of what ranks tell each other in other ways in such calls."""


def _kind(task: Task, name: str, pieces: int) -> int:
    shape = 1 + zlib.crc32(f"{name} {pieces}".encode()) % 0x7FE
    return shape << 20 | task.node_kind


def piece_count(task: Task, slice_bytes: int) -> int:
    """Return into how many pieces each slice is cut."""
    piece_bytes = PIECE_BYTES if task.segment_bytes is None else task.segment_bytes
    return min(max(1, -(-slice_bytes // piece_bytes)), MOST_PIECES)


@functools.lru_cache(maxsize=64)
def _program(
    algorithm: Algorithm,
    topology: Topology,
    rank: int,
    count: int,
    pieces: int,
    segment_count: int,
    *,
    widen: bool,
    finish: bool,
) -> Program:
    """Compile what a rank does between nodes, and put in where it works inside its node."""
    leaders = algorithm.leaders(topology)
    schedule = levels.between(rank, topology, count, algorithm.network, pieces, leaders=leaders)
    program = compile_program(
        schedule,
        segment_count=segment_count,
        room=segment_count,
        in_place=True,
        widen=widen,
        finish=finish,
    )
    # What arrives from the node is wide already.
    between = [code for code in program.instructions if code.opcode is not Opcode.WIDEN]
    if levels.slice_of(rank, topology, leaders) is None:
        between = []  # nothing is finished here
    instructions = tuple(_with_node(program, between, chunks(count, pieces)))
    return replace(program, instructions=instructions)


def _with_node(
    program: Program, between: list[Instruction], pieces: tuple[Range, ...]
) -> Iterator[Instruction]:
    """Yield instructions, and among them those that work inside the node, piece by piece in order.

    All ranks of a node come to their pieces in the same order, and to each after the same messages
    between nodes, so that none waits in a circle.
    """
    used = [_pieces_used(program, code, pieces) for code in between]
    last_use = [-1] * len(pieces)
    for position, touched in enumerate(used):
        for piece in touched:
            last_use[piece] = position
    reduced = published = 0
    for position, (code, touched) in enumerate(zip(between, used, strict=True)):
        while touched and reduced <= touched[-1]:
            yield Instruction(Opcode.NODE_REDUCE, index=reduced)
            reduced += 1
        yield code
        while published < reduced and last_use[published] <= position:
            yield Instruction(Opcode.NODE_PUBLISH, index=published)
            published += 1
    while published < len(pieces):
        if reduced < len(pieces):
            yield Instruction(Opcode.NODE_REDUCE, index=reduced)
            reduced += 1
        yield Instruction(Opcode.NODE_PUBLISH, index=published)
        published += 1


def _pieces_used(program: Program, code: Instruction, pieces: tuple[Range, ...]) -> range:
    """Return which pieces an instruction reads or writes, other than in scratch memory."""
    if code.opcode in (Opcode.START_RECEIVE, Opcode.WAIT_RECEIVE, Opcode.START_SEND):
        messages = program.sends if code.opcode is Opcode.START_SEND else program.receives
        message = messages[code.index]
        if message.place.buffer is Buffer.SCRATCH:
            return range(0)
        elements = Range(message.start, message.start + message.count)
    elif code.opcode is Opcode.WAIT_SEND:
        return range(0)
    else:
        elements = Range(code.out.element, code.out.element + code.count)
    touched = [
        number
        for number, piece in enumerate(pieces)
        if piece.start < elements.stop and elements.start < piece.stop
    ]
    return range(touched[0], touched[-1] + 1) if touched else range(0)

"""Programs of all ranks whose data is moved and reduced by devices, which take their time.

The machine of machine.py, with a device per rank that does nothing before it must: a work is done
when the host waits for it, or for one that comes after it, or at random. So a message that leaves
before its elements are there, or lands where a work still reads, gives a wrong result.
"""

from collections import deque

import numpy as np
import pytest
from clusters import in_pieces, nodes_of
from machine import GARBAGE, Machine, Rank, contributions

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.chunks import Range
from hpccoll.compiler import compile_program
from hpccoll.device_program import (
    BEFORE,
    DeviceProgram,
    Queue,
    Work,
    WorkKind,
    device_program,
)
from hpccoll.program import Buffer, Instruction, Opcode, Place, Program


class DeviceRank(Rank):
    """A rank with a device."""

    def __init__(
        self,
        made: DeviceProgram,
        values: np.ndarray,
        *,
        in_place: bool,
        widen: bool,
        slot_count: int,
    ) -> None:
        super().__init__(made.program, values, in_place=in_place, widen=widen)
        self.works = made.works
        self.memory[Buffer.PINNED] = np.full(made.pinned_slots * slot_count, GARBAGE)
        self.queues: dict[Queue, deque[int]] = {queue: deque() for queue in Queue}
        self.done: set[int] = set()
        self.begun = False


class DeviceMachine(Machine):
    """Runs programs of ranks with devices."""

    def execute(self, number: int, rank: DeviceRank, code: Instruction) -> bool:
        if self.random.random() < 0.2:
            self.go_on(rank, self.random.choice(list(Queue)))
        if code.opcode == Opcode.SUBMIT:
            rank.queues[rank.works[code.index].queue].append(code.index)
        elif code.opcode == Opcode.AWAIT:
            if code.index == BEFORE:
                rank.begun = True
            else:
                assert rank.works[code.index].marked
                self.finish(rank, code.index)
        else:
            if code.opcode == Opcode.START_RECEIVE:
                assert rank.begun
            elif code.opcode == Opcode.START_SEND:
                staged = rank.program.sends[code.index].place.buffer is Buffer.PINNED
                assert staged or rank.begun
            return super().execute(number, rank, code)
        return True

    def go_on(self, rank: DeviceRank, queue: Queue) -> None:
        """Do the next work of a queue, if there is one, and what must be done before it."""
        if rank.queues[queue]:
            self.finish(rank, rank.queues[queue][0])

    def finish(self, rank: DeviceRank, index: int) -> None:
        """Do a work, and before it what its queue has and what it waits for; nothing more."""
        while index not in rank.done:
            head = rank.queues[rank.works[index].queue][0]
            work = rank.works[head]
            for earlier in work.after:
                assert rank.works[earlier].marked
                assert earlier < head
                self.finish(rank, earlier)
            rank.queues[work.queue].popleft()
            self.do(rank, work)
            rank.done.add(head)

    def do(self, rank: DeviceRank, work: Work) -> None:
        opcode = {WorkKind.REDUCE: Opcode.REDUCE, WorkKind.FINISH: Opcode.FINISH}.get(
            work.kind, Opcode.COPY
        )
        places = {"out": work.out, "left": work.left, "right": work.right}
        self.compute(rank.memory, Instruction(opcode, count=work.count, **places))

    def run(self) -> None:
        super().run()
        for rank in self.ranks:
            for queue in Queue:
                while rank.queues[queue]:
                    self.go_on(rank, queue)


def run_all(
    algorithm: Algorithm,
    size: int,
    count: int,
    segment_count: int,
    *,
    staged: bool,
    in_place: bool,
    mode: str,
    seed: int,
    change=lambda made: made,
) -> DeviceMachine:
    widen, finish = mode == "widen", mode == "divide"
    given = contributions(size, count)
    slot_count = min(segment_count, max(count, 1))
    ranks = []
    for rank in range(size):
        program = compile_program(
            algorithm.schedule(rank, size, count),
            segment_count=segment_count,
            room=slot_count,
            in_place=in_place,
            widen=widen,
            finish=finish,
        )
        made = device_program(
            program,
            staged=staged,
            in_place=in_place,
            widen=widen,
            slot_bytes=slot_count,  # the memory here is one of elements
            slot_count=slot_count,
        )
        options = {"in_place": in_place, "widen": widen, "slot_count": slot_count}
        ranks.append(DeviceRank(change(made), given[rank], **options))
    machine = DeviceMachine(ranks, size if finish else 1, seed)
    machine.run()
    machine.assert_sums()
    return machine


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("mode", ["plain", "divide", "widen"])
@pytest.mark.parametrize("staged", [False, True])
def test_works_are_right_in_any_order(name: str, size: int, mode: str, staged: bool) -> None:
    for count in (0, 1, 4 * size + 3):
        for segment_count, in_place in ((2, count % 2 == 0), (10**6, size % 2 == 0)):
            options = {"staged": staged, "in_place": in_place, "mode": mode, "seed": count}
            run_all(ALGORITHMS[name], size, count, segment_count, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("staged", [False, True])
def test_long_pipelines(name: str, staged: bool) -> None:
    for seed in range(2):
        for size in (2, 3, 4):
            options = {"staged": staged, "in_place": seed % 2 == 0, "mode": "plain", "seed": seed}
            run_all(ALGORITHMS[name], size, 120, 2, **options)


@pytest.mark.parametrize("staged", [False, True])
def test_pieces_between_nodes(staged: bool) -> None:
    topology = nodes_of(3, 4)
    algorithm = in_pieces("rabenseifner", topology, 3)
    for in_place in (False, True):
        options = {"staged": staged, "in_place": in_place, "mode": "plain", "seed": 1}
        run_all(algorithm, topology.size, 60, 2, **options)


def without_waits(made: DeviceProgram) -> DeviceProgram:
    kept = tuple(
        code
        for code in made.program.instructions
        if code.opcode is not Opcode.AWAIT or code.index == BEFORE
    )
    return changed(made, kept, made.works)


def without_order(made: DeviceProgram) -> DeviceProgram:
    works = tuple(work._replace(after=()) for work in made.works)
    return changed(made, made.program.instructions, works)


def changed(made: DeviceProgram, instructions: tuple, works: tuple) -> DeviceProgram:
    program = made.program
    program = Program(program.sends, program.receives, instructions, program.scratch_count, 1)
    return DeviceProgram(program, works, made.pinned_slots)


@pytest.mark.parametrize("change", [without_waits, without_order])
def test_the_machine_notices(change) -> None:
    """A host that does not wait, and queues that do not, give wrong results."""
    options = {"staged": True, "in_place": True, "mode": "plain", "change": change}

    def run_some() -> None:
        for seed in range(20):
            run_all(ALGORITHMS["ring"], 4, 40, 2, seed=seed, **options)

    with pytest.raises((AssertionError, IndexError)):
        run_some()


def test_segments_are_copied_down_before_they_are_due() -> None:
    """While one segment is on its way, the next ones are copied down."""
    program = compile_program(
        ALGORITHMS["ring"].schedule(0, 2, 80), segment_count=4, room=4, in_place=False
    )
    made = device_program(program, staged=True, in_place=False, slot_bytes=4, slot_count=4)
    down = [number for number, work in enumerate(made.works) if work.kind is WorkKind.COPY_DOWN]
    first_send = next(
        position
        for position, code in enumerate(made.program.instructions)
        if code.opcode is Opcode.START_SEND
    )
    submitted = {
        code.index
        for code in made.program.instructions[:first_send]
        if code.opcode is Opcode.SUBMIT
    }
    assert len(submitted & set(down)) >= 3


def test_nothing_is_waited_for_twice() -> None:
    program = compile_program(
        ALGORITHMS["rabenseifner"].schedule(1, 4, 400), segment_count=10, room=10, in_place=True
    )
    for staged in (False, True):
        made = device_program(program, staged=staged, in_place=True, slot_bytes=10, slot_count=10)
        waits = [code.index for code in made.program.instructions if code.opcode is Opcode.AWAIT]
        assert len(waits) == len(set(waits))


def test_pieces_and_stages_have_their_works() -> None:
    pieces = (Range(0, 5), Range(5, 10))
    code = (
        Instruction(Opcode.NODE_REDUCE, index=0),
        Instruction(Opcode.NODE_REDUCE, index=1),
        Instruction(
            Opcode.FINISH, out=Place(Buffer.OUTPUT, 0), left=Place(Buffer.WORK, 0), count=5
        ),
        Instruction(Opcode.NODE_PUBLISH, index=0),
        Instruction(Opcode.NODE_PUBLISH, index=1),
    )
    made = device_program(
        Program((), (), code, 0, 0),
        staged=False,
        in_place=True,
        widen=True,
        pieces=pieces,
        stage_in=Range(2, 4),
        stage_out=Range(0, 10),
    )
    assert [work.kind for work in made.works] == [
        WorkKind.STAGE_IN,
        WorkKind.NODE_REDUCE,
        WorkKind.NODE_REDUCE,
        WorkKind.FINISH,
        WorkKind.NODE_PUBLISH,
        WorkKind.NODE_PUBLISH,
        WorkKind.STAGE_OUT,
    ]
    assert [work.out for work in made.works[1:3]] == [Place(Buffer.WORK, 0), Place(Buffer.WORK, 5)]
    assert made.works[0].out == Place(Buffer.INPUT, 2)
    assert all(work.queue is Queue.COMPUTE for work in made.works)

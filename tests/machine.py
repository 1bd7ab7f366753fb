"""Programs of all ranks run together on plain arrays, under the harshest rules that MPI allows.

A message moves as late as it may: when somebody waits for it and both sides have started it. Memory
that a receive was posted on holds garbage until then. So a program that leans on buffering hangs
here, and one that reads or writes memory too early or too late gives a wrong result.
"""

import random
from collections import defaultdict, deque

import numpy as np
import pytest

from hpccoll.program import Buffer, Instruction, Opcode, Place, Program

GARBAGE = -(10**12)


class Rank:
    """The memory and the position of one rank."""

    def __init__(
        self, program: Program, values: np.ndarray, *, in_place: bool, widen: bool
    ) -> None:
        self.program = program
        self.position = 0
        count = len(values)
        output = values.copy() if in_place else np.full(count, GARBAGE)
        self.memory = {
            Buffer.INPUT: output if in_place else values.copy(),
            Buffer.OUTPUT: output,
            Buffer.WORK: np.full(count, GARBAGE) if widen else output,
            Buffer.SCRATCH: np.full(program.scratch_count, GARBAGE),
        }
        self.given = values

    @property
    def code(self) -> Instruction | None:
        instructions = self.program.instructions
        return instructions[self.position] if self.position < len(instructions) else None


class Machine:
    """Runs the programs of all ranks in a random order."""

    def __init__(self, ranks: list[Rank], divisor: int, seed: int) -> None:
        self.ranks = ranks
        self.divisor = divisor
        self.random = random.Random(seed)
        self.queues: dict[tuple[str, int, int], deque[int]] = defaultdict(deque)
        self.moved: set[tuple[str, int, int]] = set()
        self.bytes_sent = [0] * len(ranks)

    def run(self) -> None:
        while any(rank.code for rank in self.ranks):
            order = list(range(len(self.ranks)))
            self.random.shuffle(order)
            moved = [self.advance(number) for number in order]  # all of them, whoever is stuck
            if not any(moved):
                stuck = {n: rank.code for n, rank in enumerate(self.ranks) if rank.code}
                pytest.fail(f"deadlock: {stuck}")

    def assert_sums(self) -> None:
        """Assert that all ranks have the result, and an input of its own as it was."""
        expected = sum(rank.given for rank in self.ranks) // self.divisor
        for rank in self.ranks:
            np.testing.assert_array_equal(rank.memory[Buffer.OUTPUT], expected)
            if rank.memory[Buffer.INPUT] is not rank.memory[Buffer.OUTPUT]:
                np.testing.assert_array_equal(rank.memory[Buffer.INPUT], rank.given)

    def advance(self, number: int) -> bool:
        """Run one rank for a while; return whether it moved."""
        rank = self.ranks[number]
        moved = False
        for _ in range(self.random.randint(1, 6)):
            if rank.code is None or not self.execute(number, rank, rank.code):
                break
            rank.position += 1
            moved = True
        return moved

    def execute(self, number: int, rank: Rank, code: Instruction) -> bool:
        """Run one instruction; return False where it has to wait."""
        memory = rank.memory
        if code.opcode == Opcode.START_SEND:
            message = rank.program.sends[code.index]
            self.queues["send", number, message.peer].append(code.index)
            self.bytes_sent[number] += message.count
        elif code.opcode == Opcode.START_RECEIVE:
            message = rank.program.receives[code.index]
            self.queues["receive", message.peer, number].append(code.index)
            start = message.place.element
            memory[message.place.buffer][start : start + message.count] = GARBAGE
        elif code.opcode == Opcode.WAIT_SEND:
            peer = rank.program.sends[code.index].peer
            return self.move_until("send", number, peer, code.index)
        elif code.opcode == Opcode.WAIT_RECEIVE:
            peer = rank.program.receives[code.index].peer
            return self.move_until("receive", peer, number, code.index)
        else:
            self.compute(memory, code)
        return True

    def move_until(self, kind: str, sender: int, receiver: int, index: int) -> bool:
        """Move messages on a route, in order, until the one that is waited for is there."""
        mine = (kind, sender if kind == "send" else receiver, index)
        sends = self.queues["send", sender, receiver]
        receives = self.queues["receive", sender, receiver]
        while mine not in self.moved and sends and receives:
            i, j = sends.popleft(), receives.popleft()
            out = self.ranks[sender].program.sends[i]
            into = self.ranks[receiver].program.receives[j]
            assert (out.count, out.partial, out.last) == (into.count, into.partial, into.last)
            assert into.count <= into.room
            source = self.ranks[sender].memory[out.place.buffer]
            values = source[out.place.element : out.place.element + out.count]
            target = self.ranks[receiver].memory[into.place.buffer]
            assert into.place.element + into.room <= len(target)
            target[into.place.element : into.place.element + into.count] = values
            self.moved |= {("send", sender, i), ("receive", receiver, j)}
        return mine in self.moved

    def compute(self, memory: dict[Buffer, np.ndarray], code: Instruction) -> None:
        def elements(place: Place) -> np.ndarray:
            return memory[place.buffer][place.element : place.element + code.count]

        values = elements(code.left)
        if code.opcode == Opcode.REDUCE:
            values = values + elements(code.right)
        elif code.opcode == Opcode.FINISH:
            assert not (values % self.divisor).any(), "finished before it was complete"
            values = values // self.divisor
        assert len(elements(code.out)) == code.count
        elements(code.out)[:] = values


def contributions(size: int, count: int) -> np.ndarray:
    """Return a row per rank: no two values alike, and only whole columns divisible by size."""
    row, column = np.indices((size, count))
    values = size * (row * 7919 + column * 104729 + 1) ** 2
    values[1:] += 1
    values[:1] += 1 - size
    return values

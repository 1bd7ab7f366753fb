"""The prover: runs all ranks of an algorithm on symbols, in one process, and checks what it sees.

Instead of a number each element holds an expression, such as ``(x0 + x1) + x2``, in which x2
stands for what rank 2 brought. Messages move under rendezvous semantics, the strictest that MPI
allows: only when both ranks have reached the step that posts them. What passes here needs no
buffer of the MPI library to get through.

`prove` says what is checked. Elements that no range ever separates behave alike, so the prover
works on the intervals between range boundaries and does not get slower with longer vectors.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from hpccoll.algorithms import Algorithm, find
from hpccoll.chunks import Range
from hpccoll.schedule import Action, Schedule, Step
from hpccoll.topology import Topology


class ProofError(AssertionError):
    """A schedule does not do what its algorithm promises."""


class Expressions:
    """Expressions over the contributions of `size` ranks, each kept once.

    An expression is a number: equal numbers, equal expressions. Number r below `size` is the bare
    contribution of rank r.
    """

    def __init__(self, size: int) -> None:
        self.operands: list[tuple[int, int] | None] = [None] * size
        self.ranks = [1 << rank for rank in range(size)]
        """Bit r is set where rank r contributes."""
        self.order: list[Range | None] = [Range(rank, rank + 1) for rank in range(size)]
        """The ranks from left to right, where they are consecutive; else None."""
        self.shape = list(range(size))
        """Equal shapes: equal expressions but for swapped operands, so equal bits."""
        self.depth = [0] * size
        """Operations on the longest way from the result to a contribution."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._shapes: dict[tuple[int, int], int] = {}

    def join(self, left: int, right: int) -> int:
        """Return the expression ``left + right``."""
        number = self._numbers.get((left, right))
        if number is None:
            number = self._numbers[left, right] = len(self.operands)
            self.operands.append((left, right))
            self.ranks.append(self.ranks[left] | self.ranks[right])
            before, after = self.order[left], self.order[right]
            if before and after and before.stop == after.start:
                self.order.append(Range(before.start, after.stop))
            else:
                self.order.append(None)
            first, second = sorted((self.shape[left], self.shape[right]))
            self.shape.append(self._shapes.setdefault((first, second), number))
            self.depth.append(max(self.depth[left], self.depth[right]) + 1)
        return number

    def text(self, number: int) -> str:
        """Write an expression out: ``(x0 + x1) + x2``."""
        texts: dict[int, str] = {}
        todo = [number]
        while todo:  # no recursion: naive_root nests as deep as there are ranks
            pair = self.operands[todo[-1]]
            missing = [part for part in pair or () if part not in texts]
            if missing:
                todo += missing
            elif pair is None:
                rank = todo.pop()
                texts[rank] = f"x{rank}"
            else:
                sides = [
                    texts[part] if self.depth[part] == 0 else f"({texts[part]})" for part in pair
                ]
                texts[todo.pop()] = " + ".join(sides)
        return texts[number]


@dataclass(frozen=True)
class Proof:
    """What the prover saw.

    Attributes
    ----------
    algorithm : str
        Name of the algorithm.
    size, count : int
        Number of ranks and of elements.
    steps : int
        Steps of the rank that has most.
    messages, sent, reduced : int
        Messages, elements sent and elements reduced by all ranks together.
    scratch : int
        The most elements that a rank receives in one step in order to reduce them.
    most_ranges : int
        The most ranges in one message.
    trees : int
        Number of different expressions among the elements of the result. Operands may be swapped
        within one of them, which changes no bits.
    depth : int
        Depth of the deepest expression: how many roundings a contribution goes through.
    """

    algorithm: str
    size: int
    count: int
    steps: int
    messages: int
    sent: int
    reduced: int
    scratch: int
    most_ranges: int
    trees: int
    depth: int
    _results: tuple[tuple[Range, int], ...] = field(repr=False)
    _expressions: Expressions = field(repr=False, compare=False)

    def expression(self, element: int) -> str:
        """Return how rank 0 works out an element.

        Examples
        --------
        >>> prove("recursive_doubling", 4, 1).expression(0)
        '(x0 + x1) + (x2 + x3)'
        """
        for part, number in self._results:
            if part.start <= element < part.stop:
                return self._expressions.text(number)
        raise IndexError(f"element {element} is outside 0 to {self.count - 1}")


def prove(
    algorithm: str | Algorithm, size: int, count: int, topology: Topology | None = None
) -> Proof:
    """Run an algorithm on symbols and check it; return what was seen.

    It is an error if

    * a step is malformed: peers or elements that do not exist, no elements, an element received
      twice, or a copy into elements that the same step sends;
    * ranks wait for each other in a circle, or for a rank that has finished;
    * the two sides of a message disagree about its elements, or about whether they are partial
      (to be reduced) or finished (to be copied);
    * elements are handed out as finished while a contribution is missing, or a contribution is
      reduced into an element that has it already;
    * an element ends, at any rank, without the contribution of every rank;
    * two ranks work out an element by different expressions (swapped operands are alike, unless
      the algorithm promises rank order);
    * operands leave rank order, or elements differ in their expressions, where the algorithm
      promises otherwise;
    * steps, elements sent, received and reduced, or scratch differ from the registry's formulas.

    Parameters
    ----------
    algorithm : str or Algorithm
        A name of the registry, or an entry like those in it.
    size, count : int
        Number of ranks and of elements.
    topology : Topology, optional
        Which ranks share a node, for hierarchical algorithms; by default all.

    Returns
    -------
    Proof

    Raises
    ------
    ProofError
        With a sentence that names rank, step and elements.
    ValueError
        If there is no such algorithm, `size` or `count` is too small, or the topology is that of
        another number of ranks.

    Examples
    --------
    >>> proof = prove("ring", size=5, count=5)
    >>> proof.steps, proof.sent, proof.trees
    (8, 40, 5)
    >>> proof.expression(0)
    '(((x1 + x2) + x3) + x4) + x0'
    """
    if not isinstance(algorithm, Algorithm):
        algorithm = find(algorithm, auto=False)
    if size < 1 or count < 0:
        raise ValueError(f"size must be at least 1 and count at least 0; got {size} and {count}")
    return _Run(algorithm.on(topology), size, count).prove()


class _Run:
    """All ranks of one schedule, each at one of its steps."""

    def __init__(self, algorithm: Algorithm, size: int, count: int) -> None:
        self.algorithm = algorithm
        self.size = size
        self.count = count
        self.schedules = [algorithm.schedule(rank, size, count) for rank in range(size)]
        self.expressions = Expressions(size)
        self.everyone = (1 << size) - 1
        for schedule in self.schedules:
            for number in range(len(schedule.steps)):
                self._check_step(schedule, number)
        steps = [step for schedule in self.schedules for step in schedule.steps]
        ranges = {part for step in steps for part in (*step.send, *step.receive)}
        boundaries = sorted({0, count}.union(*ranges))
        self.intervals = [Range(*ends) for ends in pairwise(boundaries)]
        self.interval_at = {boundary: number for number, boundary in enumerate(boundaries)}
        # Per rank: the expression in each interval; and where it stands.
        self.values = [[rank] * len(self.intervals) for rank in range(size)]
        self.position = [-1] * size
        self.current: list[Step | None] = [None] * size
        self.has_sent = [False] * size
        self.incoming: list[list[int] | None] = [None] * size
        self.messages = self.sent = self.received = self.reduced = self.scratch = 0
        self.most_ranges = 0

    def prove(self) -> Proof:
        self._walk()
        self._check_results()
        steps = max(len(schedule.steps) for schedule in self.schedules)
        self._check_formulas(steps)
        results = self.values[0]
        return Proof(
            algorithm=self.algorithm.name,
            size=self.size,
            count=self.count,
            steps=steps,
            messages=self.messages,
            sent=self.sent,
            reduced=self.reduced,
            scratch=self.scratch,
            most_ranges=self.most_ranges,
            trees=len({self.expressions.shape[number] for number in results}),
            depth=max((self.expressions.depth[number] for number in results), default=0),
            _results=tuple(zip(self.intervals, results, strict=True)),
            _expressions=self.expressions,
        )

    def _fail(self, text: str) -> NoReturn:
        entry = self.algorithm
        nodes = f" on {entry.topology.text()}" if entry.topology else ""
        raise ProofError(f"{entry.name}, size {self.size}{nodes}, count {self.count}: {text}")

    def _check_step(self, schedule: Schedule, number: int) -> None:
        step = schedule.steps[number]
        where = f"rank {schedule.rank} at step {number}"
        if not (step.send or step.receive):
            self._fail(f"{where} neither sends nor receives")
        for peer, ranges in ((step.send_to, step.send), (step.receive_from, step.receive)):
            if (peer is None) != (not ranges):
                self._fail(f"{where} names a peer without elements, or elements without a peer")
            if peer is not None and (peer == schedule.rank or not 0 <= peer < self.size):
                self._fail(f"{where} names rank {peer} as its peer")
            for part in ranges:
                if not 0 <= part.start < part.stop <= self.count:
                    self._fail(f"{where} names {part}, which is empty or outside the vector")
        for index, part in enumerate(step.receive):
            for other in step.receive[:index]:
                if part.overlaps(other):
                    self._fail(f"{where} receives {_elements(part)} twice")
            for other in step.send:
                if step.action is Action.COPY and part.overlaps(other):
                    self._fail(
                        f"{where} sends {_elements(other)} and copies into {_elements(part)}"
                    )

    def _walk(self) -> None:
        """Move messages and finish steps until nothing moves any more."""
        for rank in range(self.size):
            self._post_next_step(rank)
        todo = list(range(self.size))
        while todo:
            rank = todo.pop()
            step = self.current[rank]
            if step is None:
                continue
            if step.send_to is not None and self._move(rank, step.send_to):
                todo.append(step.send_to)
            if step.receive_from is not None and self._move(step.receive_from, rank):
                todo.append(step.receive_from)
            sent = step.send_to is None or self.has_sent[rank]
            received = step.receive_from is None or self.incoming[rank] is not None
            if sent and received:
                self._apply(rank, step)
                self._post_next_step(rank)
                todo.append(rank)
        for rank in range(self.size):
            if self.current[rank] is not None:
                self._fail(self._who_waits(rank))

    def _post_next_step(self, rank: int) -> None:
        steps = self.schedules[rank].steps
        self.position[rank] += 1
        finished = self.position[rank] == len(steps)
        self.current[rank] = None if finished else steps[self.position[rank]]
        self.has_sent[rank] = False
        self.incoming[rank] = None

    def _move(self, source: int, target: int) -> bool:
        """Move a message, if both ranks have posted it and it has not moved yet."""
        send, receive = self.current[source], self.current[target]
        if send is None or send.send_to != target or self.has_sent[source]:
            return False
        if receive is None or receive.receive_from != source or self.incoming[target] is not None:
            return False
        if send.send != receive.receive:
            sent, expected = map(_all_elements, (send.send, receive.receive))
            self._fail(
                f"{self._at(source)} sends {sent}, where {self._at(target)} expects {expected}"
            )
        finished = send.action is Action.COPY
        if finished is not (receive.action is Action.COPY):
            kind, use = ("finished", "reduces") if finished else ("partial", "copies")
            sent = _all_elements(send.send)
            self._fail(
                f"{self._at(source)} sends {sent} as {kind}, but {self._at(target)} {use} them"
            )
        numbers = self._intervals_of(send.send)
        if finished:
            self._check_complete(source, numbers, "hands out")
        self.incoming[target] = [self.values[source][number] for number in numbers]
        self.has_sent[source] = True
        count = sum(part.count for part in send.send)
        self.messages += 1
        self.sent += count
        self.received += count
        self.most_ranges = max(self.most_ranges, len(send.send))
        return True

    def _apply(self, rank: int, step: Step) -> None:
        """Copy or reduce what a step has received."""
        values = self.values[rank]
        for number, incoming in zip(
            self._intervals_of(step.receive), self.incoming[rank] or (), strict=True
        ):
            if step.action is Action.COPY:
                values[number] = incoming
            elif step.action is Action.REDUCE_LEFT:
                values[number] = self._reduce(incoming, values[number], rank, number)
            else:
                values[number] = self._reduce(values[number], incoming, rank, number)
        if step.action.reduces:
            count = sum(part.count for part in step.receive)
            self.reduced += count
            self.scratch = max(self.scratch, count)

    def _reduce(self, left: int, right: int, rank: int, interval: int) -> int:
        twice = self.expressions.ranks[left] & self.expressions.ranks[right]
        if twice:
            elements = _elements(self.intervals[interval])
            self._fail(
                f"{self._at(rank)} would count the contribution of {_ranks(twice)} "
                f"twice in {elements}"
            )
        result = self.expressions.join(left, right)
        if self.algorithm.ordered and self.expressions.order[result] is None:
            elements = _elements(self.intervals[interval])
            text = self.expressions.text(result)
            self._fail(f"{self._at(rank)} leaves rank order in {elements}: {text}")
        return result

    def _intervals_of(self, ranges: tuple[Range, ...]) -> list[int]:
        at = self.interval_at
        return [number for start, stop in ranges for number in range(at[start], at[stop])]

    def _at(self, rank: int) -> str:
        if self.current[rank] is None:
            return f"rank {rank}"
        return f"rank {rank} at step {self.position[rank]}"

    def _check_complete(self, rank: int, intervals: Iterable[int], does: str) -> None:
        for interval in intervals:
            missing = self.everyone & ~self.expressions.ranks[self.values[rank][interval]]
            if missing:
                elements = _elements(self.intervals[interval])
                self._fail(
                    f"{self._at(rank)} {does} {elements} without the contribution "
                    f"of {_ranks(missing)}"
                )

    def _check_results(self) -> None:
        """Check that all ranks end with the same, complete expressions."""
        shape, text = self.expressions.shape, self.expressions.text
        everything = range(len(self.intervals))
        first = self.values[0]
        for rank, values in enumerate(self.values):
            self._check_complete(rank, everything, "ends with")
            for interval in everything:
                alike = values[interval] == first[interval]
                if not self.algorithm.ordered:
                    alike = shape[values[interval]] == shape[first[interval]]
                if not alike:
                    self._fail(
                        f"rank 0 ends with {_elements(self.intervals[interval])} as "
                        f"{text(first[interval])}, and rank {rank} with {text(values[interval])}"
                    )
        for interval in everything:
            if self.algorithm.one_tree and shape[first[interval]] != shape[first[0]]:
                self._fail(
                    f"element 0 is worked out as {text(first[0])}, and "
                    f"{_elements(self.intervals[interval])} as {text(first[interval])}"
                )

    def _check_formulas(self, steps: int) -> None:
        entry, size, count = self.algorithm, self.size, self.count
        for what, seen, formula in (
            ("elements sent", self.sent, entry.sent(size, count)),
            ("elements received", self.received, entry.sent(size, count)),
            ("elements reduced", self.reduced, entry.reduced(size, count)),
            ("elements of scratch", self.scratch, entry.scratch(size, count)),
        ):
            if seen != formula:
                self._fail(f"{seen} {what}, where the registry says {formula}")
        most = entry.steps(size)
        if steps > most or (count >= size and steps < most):
            self._fail(f"{steps} steps, where the registry says {most}")

    def _who_waits(self, rank: int) -> str:
        """Tell who waits for whom, from a rank that waits up to a circle or a finished rank."""
        chain: list[str] = []
        seen: list[int] = []
        while rank not in seen:
            seen.append(rank)
            step = self.current[rank]
            if step is None:
                return f"deadlock: {', '.join(chain)}, and rank {rank} has finished"
            if step.send_to is not None and not self.has_sent[rank]:
                chain.append(f"{self._at(rank)} waits to send to rank {step.send_to}")
                rank = step.send_to
            else:
                assert step.receive_from is not None  # else the step would have finished
                chain.append(f"{self._at(rank)} waits to receive from rank {step.receive_from}")
                rank = step.receive_from
        return f"deadlock: {', '.join(chain[seen.index(rank) :])}"


def _elements(part: Range) -> str:
    if part.count == 1:
        return f"element {part.start}"
    return f"elements {part.start} to {part.stop - 1}"


def _all_elements(ranges: tuple[Range, ...]) -> str:
    return " and ".join(_elements(part) for part in ranges)


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"

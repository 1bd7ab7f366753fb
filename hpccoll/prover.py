"""The prover: runs all ranks of an algorithm on symbols, in one process, and checks what it sees.

Instead of a number each element holds an expression, such as ``(x0 + x1) + x2``, in which x2
stands for what rank 2 brought. Messages move under rendezvous semantics, the strictest that MPI
allows: only when both ranks have reached the step that posts them. What passes here needs no
buffer of the MPI library to get through.

`prove` says what is checked. Elements that no range ever separates behave alike, so the prover
works on the intervals between range boundaries and does not get slower with longer vectors.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NoReturn

from hpccoll.algorithms import COLLECTIVES, Algorithm, Share, find
from hpccoll.chunks import Range, cut
from hpccoll.expressions import Expressions
from hpccoll.proof import Proof, ProofError
from hpccoll.schedule import Action, Schedule, Step
from hpccoll.topology import Topology

__all__ = ["Proof", "ProofError", "prove"]

NOTHING = -1
"""In place of an expression: the rank does not have the element."""


def prove(
    algorithm: str | Algorithm,
    size: int,
    count: int,
    topology: Topology | None = None,
    *,
    collective: str = "allreduce",
    root: int = 0,
    counts: tuple[int, ...] | None = None,
) -> Proof:
    """Run an algorithm on symbols and check it; return what was seen.

    It is an error if

    * a step is malformed: peers or elements that do not exist, no elements, an element received
      twice, or a copy into elements that the same step sends;
    * ranks wait for each other in a circle, or for a rank that has finished;
    * the two sides of a message disagree about its elements, or about whether they are partial
      (to be reduced) or finished (to be copied);
    * a rank sends elements that it does not have;
    * elements are handed out as finished while a contribution is missing, or a contribution is
      reduced into an element that has it already, or where the collective combines nothing;
    * a rank does not end with an element that it must end with, or without the contribution of
      every rank: which elements it brings and must end with, the collective says
      (`hpccoll.algorithms.Collective`);
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
    collective : str
        What the algorithm of that name is to do; an entry of the registry knows by itself.
    root : int
        The root, of a collective that has one.
    counts : tuple of int, optional
        Elements of each rank's chunk, of a collective that is split; by default chunks differ by
        one element at most.

    Returns
    -------
    Proof

    Raises
    ------
    ProofError
        With a sentence that names rank, step and elements.
    ValueError
        If there is no such algorithm, `size` or `count` is too small, or topology, root or counts
        do not fit them.

    Examples
    --------
    >>> proof = prove("ring", size=5, count=5)
    >>> proof.steps, proof.sent, proof.trees
    (8, 40, 5)
    >>> proof.expression(0)
    '(((x1 + x2) + x3) + x4) + x0'
    >>> prove("binomial", size=5, count=9, collective="reduce", root=3).expression(0)
    '((x0 + x1) + (x2 + x3)) + x4'
    """
    if not isinstance(algorithm, Algorithm):
        algorithm = find(algorithm, collective, auto=False)
    if size < 1 or count < 0:
        raise ValueError(f"size must be at least 1 and count at least 0; got {size} and {count}")
    # An entry may have been placed before: what is not given stays as it is.
    algorithm = algorithm.on(
        topology, root=root or algorithm.root, counts=counts or algorithm.counts
    )
    algorithm.check(size, count)
    return _Run(algorithm, size, count).prove()


class _Run:
    """All ranks of one schedule, each at one of its steps."""

    def __init__(self, algorithm: Algorithm, size: int, count: int) -> None:
        self.algorithm = algorithm
        self.collective = COLLECTIVES[algorithm.collective]
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
        chunk = cut(count, size, algorithm.counts)
        if Share.CHUNK in (self.collective.brings, self.collective.ends):
            ranges.update(chunk)
        boundaries = sorted({0, count}.union(*ranges))
        self.intervals = [Range(*ends) for ends in pairwise(boundaries)]
        self.interval_at = {boundary: number for number, boundary in enumerate(boundaries)}
        stops = [part.stop for part in chunk]
        self.owner = [bisect_right(stops, interval.start) for interval in self.intervals]
        """The rank whose chunk each interval is part of."""
        # Per rank: the expression in each interval; and where it stands.
        self.values = [
            [
                rank if self._has(self.collective.brings, rank, interval) else NOTHING
                for interval in range(len(self.intervals))
            ]
            for rank in range(size)
        ]
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
        results = [
            self.values[self._first_to_have(interval)][interval]
            for interval in range(len(self.intervals))
        ]
        return Proof(
            algorithm=self.algorithm.name,
            collective=self.collective.name,
            size=self.size,
            count=self.count,
            root=self.algorithm.root,
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

    def _has(self, share: Share, rank: int, interval: int) -> bool:
        """Whether a rank's share contains an interval."""
        if share is Share.EVERYTHING:
            return True
        return rank == (self.owner[interval] if share is Share.CHUNK else self.algorithm.root)

    def _first_to_have(self, interval: int) -> int:
        """Return the first rank that must end with an interval."""
        ends = self.collective.ends
        return next(rank for rank in range(self.size) if self._has(ends, rank, interval))

    def _fail(self, text: str) -> NoReturn:
        entry = self.algorithm
        name = entry.name if entry.collective == "allreduce" else f"{entry.collective} {entry.name}"
        root = f", root {entry.root}" if self.collective.rooted else ""
        nodes = f" on {entry.topology.text()}" if entry.topology else ""
        raise ProofError(f"{name}, size {self.size}{nodes}, count {self.count}{root}: {text}")

    def _check_step(self, schedule: Schedule, number: int) -> None:
        step = schedule.steps[number]
        where = f"rank {schedule.rank} at step {number}"
        if not (step.send or step.receive):
            self._fail(f"{where} neither sends nor receives")
        if step.action.reduces and not self.collective.reduces:
            self._fail(f"{where} reduces, and {self.collective.name} combines nothing")
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
            if self.values[rank][interval] == NOTHING:
                elements = _elements(self.intervals[interval])
                self._fail(f"{self._at(rank)} {does} {elements}, and never had any")
            if not self.collective.reduces:
                continue
            missing = self.everyone & ~self.expressions.ranks[self.values[rank][interval]]
            if missing:
                elements = _elements(self.intervals[interval])
                self._fail(
                    f"{self._at(rank)} {does} {elements} without the contribution "
                    f"of {_ranks(missing)}"
                )

    def _check_results(self) -> None:
        """Check that ranks end with what they must, complete, and by the same expressions."""
        shape, text = self.expressions.shape, self.expressions.text
        firsts = [self._first_to_have(interval) for interval in range(len(self.intervals))]
        results = [self.values[rank][interval] for interval, rank in enumerate(firsts)]
        for rank, values in enumerate(self.values):
            for interval, result in enumerate(results):
                if not self._has(self.collective.ends, rank, interval):
                    continue
                self._check_complete(rank, [interval], "ends with")
                alike = values[interval] == result
                if not self.algorithm.ordered:
                    alike = shape[values[interval]] == shape[result]
                if not alike:
                    self._fail(
                        f"rank {firsts[interval]} ends with "
                        f"{_elements(self.intervals[interval])} as {text(result)}, "
                        f"and rank {rank} with {text(values[interval])}"
                    )
        if not (self.algorithm.one_tree and self.collective.reduces):
            return
        for interval, result in enumerate(results):
            if shape[result] != shape[results[0]]:
                self._fail(
                    f"element 0 is worked out as {text(results[0])}, and "
                    f"{_elements(self.intervals[interval])} as {text(result)}"
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
        all_move = count >= size if entry.counts is None else all(entry.counts)
        if steps > most or (all_move and steps < most):
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

"""One call of the ranks of a node on each other's device memory; see `hpccoll.cuda.mapped`."""

from typing import TYPE_CHECKING, NamedTuple

from hpccoll.buffers import Array
from hpccoll.calls import Call
from hpccoll.chunks import Range
from hpccoll.cuda import outcomes
from hpccoll.cuda.kernel_arguments import ManyArguments
from hpccoll.cuda.kernels import launch_shape
from hpccoll.cuda.mapping import NOTHING, NUMBERS, Shown
from hpccoll.cuda.outcomes import Exchange, Outcome
from hpccoll.cuda.peers import SMALL_BYTES
from hpccoll.errors import CudaError, MismatchError
from hpccoll.reduction import kernel_type
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.mapped import Mapped
    from hpccoll.jobs import Job

GRAIN = 256
"""Elements that a part of a vector is a multiple of: so parts of aligned vectors are aligned."""

HEAD = 4
"""Numbers of a header before what a rank shows."""

SOURCE_ROOM, TARGET_ROOM = "shown source", "shown target"
"""Names of memory in place of vectors that cannot be shared."""

abandoned: list[object] = []
"""Vectors that stay alive because kernels of other ranks may still use them."""


class Vector(NamedTuple):
    """A part of the vector of a call, in memory of this rank or of another one.

    Attributes
    ----------
    address : int
        Where it is here.
    start : int
        Its first element, in the whole vector.
    itemsize : int
        Bytes per element.
    """

    address: int
    start: int
    itemsize: int

    def at(self, element: int) -> int:
        """Return the address of an element of the whole vector."""
        return self.address + (element - self.start) * self.itemsize


class MappedCall:
    """One call, in the middle of an exchange with all ranks.

    Parameters
    ----------
    mapped : Mapped
        What ranks have of each other.
    job, task, source, target
        As of `hpccoll.cuda.mapped.Mapped.run`.
    exchange : Exchange
        By which the ranks tell each other of the call.
    """

    def __init__(
        self,
        mapped: "Mapped",
        job: "Job",
        task: Task,
        source: Array | None,
        target: Array | None,
        exchange: Exchange,
    ) -> None:
        self.mapped, self.job, self.task, self.exchange = mapped, job, task, exchange
        self.site, self.pattern = mapped.site, task.pattern
        self.owners = (job.x, job.out, source, target)
        self.outcome = Outcome()
        self.half = mapped.half
        self.rank, self.size = self.site.channel.rank, self.site.channel.size
        every, count = range(self.size), task.count
        self.brings = [self.pattern.brings(rank, self.size, count) for rank in every]
        self.wants = [self.pattern.wants(rank, self.size, count) for rank in every]
        self.itemsize = task.reduction.dtype.itemsize
        self.source = self.target = 0
        if source is not None and self.brings[self.rank].count:
            # In place all of the vector is there, also of an all-gather.
            start = self.brings[self.rank].start if job.x is None else 0
            self.source = source.ctypes.data + start * self.itemsize
        if target is not None and self.wants[self.rank].count:
            self.target = target.ctypes.data

    # -- small vectors -----------------------------------------------------------------------------

    def one_shot(self) -> Call | None:
        """Run by way of the blocks.

        One exchange is enough. Nobody stores to a half of a block before all have come to the
        exchange of such a call before, which used the other half. Whoever had come to that had
        waited for its own device until there, and so for all that it loaded from this half, in the
        last such call but one. In a call that failed not all have waited: the next one uses the
        same half again.
        """
        with self.outcome:
            if self.pattern.reduces:
                self.loops()  # compiled here, where an error is still that of all ranks
            self.copy_in()
            self.mapped.wait(f"{self.job.call}: a copy to memory that peers read")
        if self.tell(NOTHING, NOTHING) is None:
            return None
        self.mapped.turn_over()
        self.take()
        return self.call("one_shot", SMALL_BYTES)

    def copy_in(self) -> None:
        """Store what this rank brings where others look for it."""
        mine, blocks = self.brings[self.rank], self.blocks()
        if self.pattern.collective != "allgather":
            blocks = [blocks[self.rank]]
        # Chunks go to all blocks: so each rank finds all that it wants in its own, in one piece.
        self.copy([block.at(mine.start) for block in blocks], self.source, mine.count)

    def take(self) -> None:
        """Store what this rank wants of the blocks in its output."""
        want, blocks = self.wants[self.rank], self.blocks()
        if self.pattern.reduces:
            self.reduce([block.at(want.start) for block in blocks], [self.target], want.count)
            return
        is_gather = self.pattern.collective == "allgather"
        block = blocks[self.rank if is_gather else self.pattern.root]
        self.copy([self.target], block.at(want.start), want.count)

    def blocks(self) -> list[Vector]:
        """Return, of the blocks of all ranks, the half that this call uses."""
        return [Vector(block + self.half, 0, self.itemsize) for block in self.mapped.peers.blocks]

    # -- large vectors -----------------------------------------------------------------------------

    def direct(self) -> Call | None:
        """Run on the vectors themselves."""
        shown = [NOTHING, NOTHING]
        source, target = self.source, self.target
        with self.outcome:
            self.compile()
            in_place = self.job.x is None and source and target
            if self.shows_source(self.rank):
                nbytes = self.brings[self.rank].count * self.itemsize
                source, shown[0] = self.mapped.show(SOURCE_ROOM, source, nbytes)
                self.site.queue.copy(source, self.source, nbytes)
            if self.shows_target(self.rank):
                nbytes = self.wants[self.rank].count * self.itemsize
                name = SOURCE_ROOM if in_place else TARGET_ROOM
                target, shown[1] = self.mapped.show(name, target, nbytes)
        told = self.tell(*shown)
        if told is None:
            return None
        sources: list[Vector] = []
        targets: list[Vector] = []
        with self.outcome:
            sources, targets = self.opened(told, source, target)
        if self.outcome.error is not None:
            self.outcome.code = outcomes.NOT_OPENED
        else:
            with self.outcome:
                self.mapped.wait(f"{self.job.call}: what the caller's stream did before the call")
        if not self.work_together(sources, targets):
            return None
        self.copy([self.target], target, self.wants[self.rank].count)
        return self.call("direct", self.part(0).count * self.itemsize)

    def work_together(self, sources: list[Vector], targets: list[Vector]) -> bool:
        """Do this rank's part of the work while all others do theirs.

        Returns
        -------
        bool
            False where a rank could not open memory; on all ranks.
        """
        is_over = False
        try:
            # The vectors of all ranks are complete, and may be stored to.
            codes = self.exchange([self.outcome.code])[:, 0].tolist()
            if any(codes) and set(codes) <= {outcomes.WELL, outcomes.NOT_OPENED}:
                is_over = True
                self.mapped.go_without(*outcomes.first_failed(codes, range(self.size)))
                return False
            is_over = any(codes)
            self.exchange.check(self.outcome, codes)
            with self.outcome:
                self.work(sources, targets)
                self.mapped.wait(f"{self.job.call}: a kernel on the memory of all ranks")
            codes = self.exchange([self.outcome.code])[:, 0].tolist()
            is_over = True
            self.exchange.check(self.outcome, codes)
        finally:
            if not is_over:
                abandoned.append(self.owners)
                self.site.queue.leave()
        return True

    def shows_source(self, rank: int) -> bool:
        """Whether others load what a rank brings."""
        return bool(self.brings[rank].count) and self.pattern.collective != "allgather"

    def shows_target(self, rank: int) -> bool:
        """Whether others store to what a rank wants."""
        return bool(self.wants[rank].count) and self.pattern.collective != "reduce_scatter"

    def opened(self, told: Array, source: int, target: int) -> tuple[list[Vector], list[Vector]]:
        """Return the vectors that this rank loads from, and those that it stores to."""
        self.mapped.mappings.begin()
        if not self.part(self.rank).count:
            return [], []
        ranks = range(self.size)
        sources = [rank for rank in ranks if self.shows_source(rank)] or [self.rank]
        targets = [rank for rank in ranks if self.shows_target(rank)] or [self.rank]

        def vectors(which: list[int], own: int, first: int, parts: list[Range]) -> list[Vector]:
            found = []
            for rank in which:
                address = own
                if rank != self.rank:
                    shown = Shown.of(told[rank, first : first + NUMBERS])
                    assert shown is not None
                    address = self.mapped.mappings.open(rank, shown)
                found.append(Vector(address, parts[rank].start, self.itemsize))
            return found

        return (
            vectors(sources, source, HEAD, self.brings),
            vectors(targets, target, HEAD + NUMBERS, self.wants),
        )

    def part(self, rank: int) -> Range:
        """Return the elements that a rank sees to, for all."""
        if self.pattern.collective == "reduce_scatter":
            return self.wants[rank]
        if self.pattern.collective == "allgather":
            return self.brings[rank]
        count = self.task.count
        length = -(-count // (self.size * GRAIN)) * GRAIN
        return Range(min(rank * length, count), min((rank + 1) * length, count))

    def work(self, sources: list[Vector], targets: list[Vector]) -> None:
        """Do what this rank does for all."""
        part = self.part(self.rank)
        loaded = [vector.at(part.start) for vector in sources]
        stored = [vector.at(part.start) for vector in targets]
        if self.pattern.reduces:
            self.reduce(loaded, stored, part.count)
        elif loaded:
            self.copy(stored, loaded[0], part.count)

    # -- both --------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Tell the others that this rank has gone on to another GPU."""
        self.outcome.note(CudaError(outcomes.TEXTS[outcomes.MOVED]), outcomes.MOVED)
        self.tell(NOTHING, NOTHING)

    def tell(self, source: list[int], target: list[int]) -> Array | None:
        """Return what each rank tells of the call: a header, and where its vectors are.

        None where a rank has gone on to another GPU: from now on calls go other ways.
        """
        task = self.task
        head = [task.kind(), task.salt, task.nbytes, self.outcome.code]
        told = self.exchange([*head, *source, *target])
        if (told[:, :3] != told[0, :3]).any():
            self.exchange.known = True
            self.job.compare(self.site.channel, task)
            message = f"{self.job.call}: ranks make different calls ({task.text} here)"
            raise MismatchError(message)
        codes = told[:, 3].tolist()
        if set(codes) <= {outcomes.WELL, outcomes.MOVED} and any(codes):
            # What this rank has submitted stores to its own memory alone.
            self.mapped.go_without(*outcomes.first_failed(codes, range(self.size)))
            return None
        self.exchange.check(self.outcome, codes)
        return told

    def compile(self) -> None:
        """Make the kernels where an error of that is still one of all ranks."""
        if self.pattern.reduces:
            self.loops()
        else:
            self.site.kernels.copy_many()

    def loops(self) -> tuple[int, float]:
        """Return the kernel that reduces, and what the result is divided by."""
        operation = self.site.operation(self.task.operation)
        name = kernel_type(self.task.reduction.dtype)
        assert operation is not None
        assert name is not None
        divisor = float(self.size) if operation.divides else 0.0
        return self.site.kernels.many(operation.kernel, name), divisor

    def reduce(self, sources: list[int], targets: list[int], count: int) -> None:
        """Launch what reduces so many elements, and stores them to all targets."""
        if count:
            function, divisor = self.loops()
            arguments = ManyArguments.of(sources, targets, count, divisor)
            self.site.queue.launch(function, arguments, *launch_shape(count, self.itemsize))

    def copy(self, targets: list[int], source: int, count: int) -> None:
        """Launch what copies so many elements to all targets."""
        targets, nbytes = [target for target in targets if target != source], count * self.itemsize
        if len(targets) == 1:
            self.site.queue.copy(targets[0], source, nbytes)
        elif targets and nbytes:
            arguments = ManyArguments.of([source], targets, nbytes)
            function = self.site.kernels.copy_many()
            self.site.queue.launch(function, arguments, *launch_shape(nbytes, 1))

    def call(self, algorithm: str, segment_bytes: int) -> Call:
        """Return what the call did."""
        task, reduction = self.task, self.task.reduction
        return Call(
            collective=self.pattern.collective,
            path="mapped",
            algorithm=algorithm,
            op=task.operation,
            dtype=reduction.dtype.name,
            count=task.count,
            nbytes=task.nbytes,
            size=self.size,
            segment_bytes=segment_bytes,
            kernel=reduction.kernel,
            in_place=self.job.x is None,
            memory=f"{self.site.name}, mapped",
        )

"""All-reduce over several nodes whose ranks reach each other's device memory.

The schedule between nodes is that of `hpccoll.hierarchy`. Inside a node a rank that leads a slice
reduces it, piece by piece, from the vectors of all ranks of its node, and stores to all of them
what is finished. The ranks of a node tell each other before that where their vectors are, and after
it that they are done, through memory of the host.

What goes wrong on one rank before anything is stored is raised on all ranks of its node; those of
other nodes are told that the call is given up, for good unless ranks disagree. See
`hpccoll.cuda.mapped` for vectors that other ranks may still be using then.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hpccoll._device import LAUNCH, BoundWorks
from hpccoll._executor import MessagePlan
from hpccoll._node import DeviceLevels, NodePlan
from hpccoll._plans import Loops, Plan
from hpccoll.buffers import Array
from hpccoll.chunks import Range
from hpccoll.cuda import outcomes
from hpccoll.cuda.kernel_arguments import ManyArguments
from hpccoll.cuda.kernels import launch_shape
from hpccoll.cuda.mapped import Mapped
from hpccoll.cuda.mapped_call import SOURCE_ROOM, TARGET_ROOM, abandoned
from hpccoll.cuda.mapping import NOTHING, NUMBERS, Shown
from hpccoll.cuda.outcomes import Outcome
from hpccoll.cuda.plans import PlanSide
from hpccoll.device_program import Work, WorkKind
from hpccoll.engine import Places, bind
from hpccoll.errors import NEW_ONE, CudaError
from hpccoll.hierarchy import OTHER_KIND, Portion, portion
from hpccoll.plan_info import PlanInfo
from hpccoll.program import Place
from hpccoll.reduction import kernel_type
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site
    from hpccoll.jobs import Job

HEAD = 3
"""Numbers of a header before what a rank shows."""


class MappedNodes:
    """Runs all-reduce over several nodes; a `hpccoll.channel.Planner` for the plans of that.

    Parameters
    ----------
    site : Site
        The device, and the channel.
    mapped : Mapped
        What the ranks of the node have of each other.
    """

    serves_any_address = True
    """Each call shows its vectors anew."""

    def __init__(self, site: "Site", mapped: Mapped) -> None:
        self.site, self.mapped = site, mapped
        self.name = f"{site.name} in nodes"
        self.source = self.target = 0
        self.in_place = self.begun = self.exposed = False

    def run(self, job: "Job", task: Task, source: Array | None, target: Array | None) -> Plan:
        """Run a call, as of `Mapped.run`.

        Returns
        -------
        Plan
            What tells what the call did.

        Raises
        ------
        MismatchError
            On all ranks: they make different calls.
        CudaError
            On all ranks of this node: the driver refused something to one of them. The communicator
            cannot be used any more, on any rank.
        """
        channel = self.site.channel
        assert source is not None
        assert target is not None
        if self.mapped.moved:
            message = (
                f"{job.call}: {outcomes.TEXTS[outcomes.MOVED]}, where calls over several nodes "
                f"must stay on it. {NEW_ONE}"
            )
            channel.transport.lose(message)
            raise CudaError(message)
        self.source, self.target = source.ctypes.data, target.ctypes.data
        if not task.count:  # then these are no addresses
            assert self.mapped.peers.block is not None
            self.source = self.target = self.mapped.peers.block.ctypes.data
        self.in_place = job.x is None
        self.begun = self.exposed = False
        try:
            return channel.run(
                job.settings, task, self.source, self.target, in_place=self.in_place, planner=self
            )
        except BaseException as error:
            if self.exposed:
                abandoned.append((job.x, job.out, source, target))
            if not self.begun and not channel.clock.broken:
                what = f"{job.call} was left before it began, by {type(error).__name__}"
                channel.transport.lose(what)
            raise

    def make_plan(self, task: Task, source: int, target: int) -> Plan:
        """Make the plan of a task; see `hpccoll.channel.Planner`."""
        return _Inside(self, task).make()


class _NodeSide(PlanSide):
    """Binds a plan: with works that reduce and publish, on vectors that each call shows anew."""

    def __init__(self, site: "Site", mine: Portion, task: Task) -> None:
        super().__init__(site, mine.pieces)
        self.mine = mine
        self.parts: dict[int, tuple[WorkKind, Range]] = {}
        """By index of a work: what it does, and with which elements of the slice."""
        self.bound: BoundWorks | None = None
        self.last: tuple[list[int], list[int]] | None = None
        operation, name = site.operation(task.operation), kernel_type(task.reduction.dtype)
        assert operation is not None
        assert name is not None
        self.functions = {
            WorkKind.NODE_REDUCE: site.kernels.many(operation.kernel, name, partial=True),
            WorkKind.NODE_PUBLISH: site.kernels.copy_many(),
        }
        self.itemsize = task.reduction.dtype.itemsize
        self.partial_itemsize = task.reduction.partial_dtype.itemsize

    def works(self, task: Task, address: Callable[[Place], int], count: int) -> BoundWorks:
        """Bind the works, as of `PlanSide`."""
        self.bound = super().works(task, address, count)
        return self.bound

    def launch(self, index: int, work: Work, piece: Range) -> tuple[object, ...]:
        """Return what launches a work; its arguments come with each call."""
        self.parts[index] = (work.kind, piece)
        reduces = work.kind is WorkKind.NODE_REDUCE
        n, width = (piece.count, self.itemsize) if reduces else (piece.count * self.itemsize, 1)
        grid, block = launch_shape(n, width) if n else (0, 1)
        function, empty = self.functions[work.kind], bytes(ManyArguments())
        return (LAUNCH, work.queue, function, empty, grid, block, 0, work.after, work.marked)

    def aim(self, sources: list[int], targets: list[int]) -> None:
        """Have the works load and store at these addresses, of the whole vector of each rank."""
        if self.last == (sources, targets):
            return
        assert self.places is not None
        assert self.bound is not None
        for index, (kind, piece) in self.parts.items():
            first = (self.mine.start + piece.start) * self.itemsize
            if kind is WorkKind.NODE_REDUCE:
                loaded = [address + first for address in sources]
                stored = [self.places.work + piece.start * self.partial_itemsize]
                arguments = ManyArguments.of(loaded, stored, piece.count)
            else:
                finished = self.places.output + piece.start * self.itemsize
                stored = [address + first for address in targets]
                arguments = ManyArguments.of([finished], stored, piece.count * self.itemsize)
            self.bound.set_arguments(index, arguments)
        self.last = (sources, targets)


class _Inside:
    """What one plan does inside the node."""

    def __init__(self, place: MappedNodes, task: Task) -> None:
        self.place, self.task = place, task
        self.site, self.mapped = place.site, place.mapped
        self.channel = place.site.channel
        node = self.channel.meeting.node
        assert node is not None
        self.node = node
        self.mine = portion(task, self.channel.rank)
        self.number = node.members.index(self.channel.rank)
        self.side = _NodeSide(self.site, self.mine, task)
        steps = self.mine.program.steps
        self.info = PlanInfo(task, self.channel.rank, self.channel.size, steps, 0)
        self.outcome = Outcome()
        self.target = 0
        self.headers = self._exchange(HEAD + 2 * NUMBERS)
        self.codes = self._exchange(1)

    def make(self) -> MessagePlan:
        """Return the plan."""
        reduction, count, memory = self.task.reduction, self.mine.count, self.site.memory
        output = memory.block("slice", count * reduction.dtype.itemsize)
        partial = output
        if reduction.widens:
            partial = memory.block("partial slice", count * reduction.partial_dtype.itemsize)
        return bind(
            self.channel.transport,
            memory,
            self.task,
            self.mine.program,
            Places(
                output.ctypes.data,
                output.ctypes.data,
                partial.ctypes.data,
                keep=[output, partial],
            ),
            count=count,
            steps=self.mine.program.steps,
            levels=DeviceLevels(self.node, self.begin, self.end),
            device=self.side,
        )

    def begin(self) -> None:
        """Show the vectors, open those of the others, and wait until all are complete."""
        place, task, outcome = self.place, self.task, Outcome()
        place.begun = True
        self.outcome, self.target = outcome, place.target
        source, shown = place.source, [NOTHING, NOTHING]
        with outcome:
            source, shown[0] = self.mapped.show(SOURCE_ROOM, source, task.nbytes)
            self.site.queue.copy(source, place.source, task.nbytes)
            name = SOURCE_ROOM if place.in_place else TARGET_ROOM
            self.target, shown[1] = self.mapped.show(name, place.target, task.nbytes)
        head = [self.mine.kind, task.nbytes, outcome.code]
        told = self.headers([*head, *shown[0], *shown[1]])
        for member, (kind, nbytes, *_) in zip(self.node.members, told.tolist(), strict=True):
            if (kind, nbytes) != (self.mine.kind, task.nbytes):
                self.info.mismatch(member, task.nbytes, self.mine.kind, nbytes, kind)
        self.check(told[:, 2])
        with outcome:
            self.mapped.mappings.begin()
            if self.mine.count:
                sources = self.opened(told[:, HEAD : HEAD + NUMBERS], source)
                targets = self.opened(told[:, HEAD + NUMBERS :], self.target)
                self.side.aim(sources, targets)
        if outcome.error is None:
            with outcome:
                self.mapped.wait(f"{task.call}: what the caller's stream did before the call")
        place.exposed = True
        self.agree()

    def end(self) -> None:
        """Wait until nobody works on the vectors of another rank any more."""
        with self.outcome:
            self.mapped.wait(f"{self.task.call}: works on the memory of all ranks of the node")
        self.agree()
        self.place.exposed = False
        self.site.queue.copy(self.place.target, self.target, self.task.nbytes)

    def opened(self, rows: Array, own: int) -> list[int]:
        """Return the addresses here of what all ranks of the node have shown."""
        addresses = []
        for number, member in enumerate(self.node.members):
            shown = Shown.of(rows[number])
            assert shown is not None
            is_own = number == self.number
            addresses.append(own if is_own else self.mapped.mappings.open(member, shown))
        return addresses

    def agree(self) -> None:
        """Return when all ranks of the node have come to this, and all is well."""
        told = self.codes([self.outcome.code])[:, 0]
        if told.any():
            self.place.exposed = False  # all have waited for their works, or not begun any
        self.check(told)

    def check(self, codes: Array) -> None:
        if codes.any():
            self.outcome.fail(self.task.call, codes.tolist(), self.node.members)

    def _exchange(self, length: int) -> Callable[[list[int]], Array]:
        """Return what tells so many numbers to all ranks of the node, and returns theirs."""
        size = len(self.node.members)
        mine, told = np.empty(length, np.int64), np.empty((size, length), np.int64)
        plan = NodePlan(
            self.node,
            Loops(0),
            itemsize=8,
            partial_itemsize=8,
            kind=OTHER_KIND,
            count=told.size,
            info=self.info,
            collective="allgather",
            starts=range(0, told.size + 1, length),
        )

        def exchange(numbers: list[int]) -> Array:
            mine[:] = numbers
            plan.run(mine.ctypes.data, told.ctypes.data)
            return told

        return exchange

"""Plans of messages for vectors in device memory: works bound to memory and kernels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpccoll._device import BoundWorks
from hpccoll._executor import MessagePlan
from hpccoll.chunks import Range
from hpccoll.device_program import DeviceProgram, Work, WorkKind, device_program
from hpccoll.engine import SOURCE, TARGET, Places, make_plan
from hpccoll.program import Place, Program
from hpccoll.reduction import kernel_type
from hpccoll.scratch import Bytes
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site

Reference = tuple[int, int]
"""A base (0: none, 1: the caller's input, 2: its output) and bytes from there."""

SEGMENT_BYTES = 2 << 20
"""Default segment of messages on device memory: to hand a work to a device, and to wait for it,
costs as much as to copy a good part of a mebibyte."""


def make_device_plan(site: "Site", task: Task, source: int, target: int) -> MessagePlan:
    """Make the plan of one rank, for vectors at these addresses of a device's memory.

    Parameters
    ----------
    site : Site
        The device, its queues, its memory.
    task : Task
        What to do, with an algorithm.
    source, target : int
        As of `hpccoll.engine.make_plan`. Without meaning where messages are staged.
    """
    transport = site.channel.transport
    return make_plan(transport, site.memory, task, source, target, PlanSide(site))


class PlanSide:
    """What binds one plan to a device; a `hpccoll.engine.DeviceSide`.

    Parameters
    ----------
    site : Site
        The device, its queues, its memory.
    pieces : sequence of Range
        Of a hierarchical program: the elements of each piece.

    Attributes
    ----------
    made : DeviceProgram or None
        What `translate` has made.
    places : Places or None
        Of the vector.
    """

    def __init__(self, site: "Site", pieces: Sequence[Range] = ()) -> None:
        self.site = site
        self.pieces = pieces
        self.staged = site.staged
        self.made: DeviceProgram | None = None
        self.places: Places | None = None
        self._pinned: Bytes | None = None

    def translate(
        self, task: Task, program: Program, places: Places, rank: int, size: int
    ) -> Program:
        """Return the program of a host as that of a device and its host."""
        slot_count = max(
            (message.room for message in (*program.sends, *program.receives)), default=0
        )
        slot_bytes = slot_count * task.reduction.partial_dtype.itemsize
        pattern = task.pattern
        self.places = places
        self.made = device_program(
            program,
            staged=self.staged,
            in_place=places.input == places.output,
            widen=task.reduction.widens,
            slot_bytes=slot_bytes,
            slot_count=slot_count,
            pieces=self.pieces,
            stage_in=Range(*pattern.brings(rank, size, task.count)) if places.stage_in else None,
            stage_out=Range(*pattern.wants(rank, size, task.count)) if places.stage_out else None,
        )
        if self.made.pinned_slots:
            self._pinned = self.site.pinned.block("slots", self.made.pinned_slots * slot_bytes)
        return self.made.program

    def address(self) -> int:
        """Return the address of the pinned memory of the program; 0 without one."""
        return 0 if self._pinned is None else self._pinned.ctypes.data

    def works(self, task: Task, address: Callable[[Place], int], count: int) -> BoundWorks:
        """Bind the works of the program to memory.

        Parameters
        ----------
        task : Task
            What to do.
        address : callable
            Where a place of the program is.
        count : int
            Elements that there are; what the program has beyond is cut off.
        """
        made, places = self.made, self.places
        assert made is not None
        assert places is not None
        reduction, kernels = task.reduction, self.site.kernels
        itemsize, partial_itemsize = reduction.dtype.itemsize, reduction.partial_dtype.itemsize

        def within(start: int, length: int) -> int:
            return max(0, min(start + length, count) - start)

        def at(place: Place) -> Reference:
            return reference(address(place))

        def bound(index: int, work: Work) -> tuple[object, ...]:
            out, left, right, elements, nbytes = at(work.out), at(work.left), at(work.right), 0, 0
            kind = work.kind
            if kind in (WorkKind.COPY_DOWN, WorkKind.COPY_UP):
                down = kind is WorkKind.COPY_DOWN
                message = (made.program.sends if down else made.program.receives)[work.index]
                width = partial_itemsize if message.partial else itemsize
                nbytes = within(message.start, message.count) * width
            elif kind is WorkKind.STAGE_IN:
                kind, nbytes = WorkKind.COPY, places.in_nbytes
                out, left = reference(places.stage_in), (1, 0)
            elif kind is WorkKind.STAGE_OUT:
                kind, nbytes = WorkKind.COPY, places.out_nbytes
                out, left = (2, 0), reference(places.stage_out)
            elif kind in (WorkKind.NODE_REDUCE, WorkKind.NODE_PUBLISH):
                start, stop = self.pieces[work.index]
                return self.launch(index, work, Range(start, start + within(start, stop - start)))
            else:
                elements = within(work.out.element, work.count)
                nbytes = elements * itemsize
            return (kind, work.queue, out, left, right, elements, nbytes, work.after, work.marked)

        kinds = {work.kind for work in made.works}
        name, partial = kernel_type(reduction.dtype), kernel_type(reduction.partial_dtype)
        loops = self.site.operation(task.operation)
        reduce = finish = widen = 0
        if WorkKind.REDUCE in kinds:
            assert loops is not None
            assert partial is not None
            reduce = kernels.pair(loops.kernel, partial)
        if WorkKind.FINISH in kinds and name is not None:
            finish = kernels.finish(name, narrow=reduction.widens)
        if WorkKind.WIDEN in kinds and name is not None:
            widen = kernels.widen(name)
        marked = sum(work.marked for work in made.works)
        return BoundWorks(
            self.site.queue,
            [bound(index, work) for index, work in enumerate(made.works)],
            reduce=reduce,
            finish=finish,
            widen=widen,
            divisor=float(self.site.channel.size) if loops is not None and loops.divides else 0.0,
            itemsize=itemsize,
            partial_itemsize=partial_itemsize,
            events=self.site.marks(marked),
            multiprocessors=self.site.device.multiprocessors,
            keep=[*places.keep, self._pinned],
        )

    def launch(self, index: int, work: Work, piece: Range) -> tuple[object, ...]:
        """Return what launches a work inside a node, as `BoundWorks` takes it.

        Parameters
        ----------
        index : int
            Of the work.
        work : Work
            NODE_REDUCE or NODE_PUBLISH.
        piece : Range
            Its elements of the slice that there are.
        """
        raise NotImplementedError


def reference(address: int) -> Reference:
    """Return how a work finds an address: by itself, or from a vector that the caller passes.

    Examples
    --------
    >>> reference(4096), reference(SOURCE + 8), reference(TARGET)
    ((0, 4096), (1, 8), (2, 0))
    """
    if address >= TARGET:
        return (2, address - TARGET)
    return (1, address - SOURCE) if address >= SOURCE else (0, address)

"""`Site`: where the device calls of a communicator run on this rank, and which way each takes.

Messages on device memory go as they are where the MPI library takes device pointers ("direct"),
else through pinned host memory ("staged"). All ranks agree on that in the first device call of a
communicator.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll import buffers, selection
from hpccoll._device import COMPUTE, QUEUE_EVENTS, DeviceQueue
from hpccoll._plans import Plan
from hpccoll.algorithms import AUTO
from hpccoll.buffers import Array
from hpccoll.calls import Call
from hpccoll.channel import Channel
from hpccoll.cuda import peers
from hpccoll.cuda.copies import copy_array, kernels_of
from hpccoll.cuda.device import Device
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.cuda.driver import get_device, get_driver
from hpccoll.cuda.kernels import Kernels
from hpccoll.cuda.mapped import COLLECTIVES, Mapped
from hpccoll.cuda.memory import device_bytes, pinned_bytes
from hpccoll.cuda.nccl import NcclCalls
from hpccoll.cuda.nodes import MappedNodes
from hpccoll.cuda.on_host import SLOTS, run_on_host
from hpccoll.cuda.plans import SEGMENT_BYTES, make_device_plan
from hpccoll.cuda.terms import Terms, agreed
from hpccoll.errors import CudaError
from hpccoll.ops import OPERATIONS, Operation
from hpccoll.pattern import ALLREDUCE, NO_OPERATION, Pattern
from hpccoll.reduction import Reduction, kernel_type
from hpccoll.scratch import Bytes, Memory
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.streams import Moment
    from hpccoll.jobs import Job


def run_on_device(
    job: "Job", channel: Channel, moment: "Moment", *, complete: bool = False
) -> "Plan | Call":
    """Run a call on arrays in device memory.

    Parameters
    ----------
    job : Job
        With a `DeviceArray` in place of each array.
    channel : Channel
        Of the communicator.
    moment : Moment
        What the call comes behind, and in which stream what follows finds its result.
    complete : bool
        Whether the host waits until the result is there.

    Returns
    -------
    Plan or Call
        What tells what the call did.
    """
    return site_of(job, channel, moment.device).run(job, moment, complete=complete)


def site_of(job: "Job", channel: Channel, number: int) -> "Site":
    """Return the site of a channel on a device; ranks agree before they make their first one."""
    name = f"cuda:{number}"
    with channel.turn:
        site = channel.sites.get(name)
        if site is None:
            terms = agreed(channel, job.call, job.settings)
            site = Site(channel, get_device(number), terms)
            first = next(iter(channel.sites.values()), None)
            if isinstance(first, Site):
                # This rank goes on to another device, and the others do not know of it.
                site.mapped = Mapped(site, first.mapped.peers, moved=True)
                site.nodes = MappedNodes(site, site.mapped)
            else:
                site.meet(job.call, job.settings)
            channel.sites[name] = site
    assert isinstance(site, Site)
    return site


class DeviceMemory(Memory):
    """Scratch memory on a device: what a plan gives back, the next one gets.

    The device may still use it, for works that were submitted before those of the next plan; to
    free it would be to wait for that.
    """

    def __init__(self, empty: Callable[[int], Bytes]) -> None:
        super().__init__(empty)
        self._spare: dict[int, list[Bytes]] = {}

    def fresh(self, nbytes: int) -> Bytes:
        """Return memory that nobody else has."""
        spare = self._spare.setdefault(nbytes, [])
        memory = spare.pop() if spare else super().fresh(nbytes)
        lent = memory[:]
        weakref.finalize(lent, spare.append, memory).atexit = False
        return lent

    def clear(self) -> None:
        """Free what nobody has."""
        super().clear()
        self._spare.clear()


class Site:
    """One device, as the calls of one channel use it.

    Parameters
    ----------
    channel : Channel
        Of the ranks.
    device : Device
        Which one.
    terms : Terms
        What all ranks have agreed on.

    Attributes
    ----------
    name : str
        "cuda:0", for example.
    staged : bool
        Whether messages go through pinned memory.
    serves_any_address : bool
        The same: requests are bound to pinned memory alone.
    queue : DeviceQueue
        Hands works to the device.
    memory, pinned : Memory
        Scratch memory on the device, and such on the host that the device copies from and to.
    kernels : Kernels
        Of the device.
    mapped : Mapped
        Runs calls on memory that ranks of a node have mapped of each other; after `meet`.
    nodes : MappedNodes
        Likewise, where there are several nodes.
    nccl : NcclCalls
        Runs calls by NCCL.
    down_events, up_events : list of int
        One of each for each of the segments that go through the host at the same time.
    """

    def __init__(self, channel: Channel, device: Device, terms: Terms) -> None:
        self.channel, self.device, self.terms = channel, device, terms
        self.name = f"cuda:{device.number}"
        self.staged = self.serves_any_address = terms.staged
        with device:
            self._streams = [device.new_stream() for _ in range(3)]
            self._events = [device.new_event() for _ in range(QUEUE_EVENTS)]
            self.down_events = [device.new_event() for _ in range(SLOTS)]
            self.up_events = [device.new_event() for _ in range(SLOTS)]
            self.queue = DeviceQueue(
                get_driver().functions,
                device.context,
                self._streams,
                self._events,
                channel.clock,
                device=device.number,
            )
        self.kernels = kernels_of(device)
        self.memory = DeviceMemory(lambda nbytes: device_bytes(device, nbytes))
        self.pinned = Memory(lambda nbytes: pinned_bytes(device, nbytes, channel.meeting.region))
        self._marks: list[int] = []
        self.mapped = Mapped(self, peers.Peers((), "ranks have not met"))
        self.nodes = MappedNodes(self, self.mapped)
        self.nccl = NcclCalls(self)

    def meet(self, call: str, settings: selection.Settings) -> None:
        """Find out whether ranks of a node reach each other's memory. Collective.

        Parameters
        ----------
        call, settings
            Of the call that the user made.
        """
        self.mapped = Mapped(self, peers.meet(self, self.terms, call, settings))
        self.nodes = MappedNodes(self, self.mapped)

    @property
    def why_not(self) -> str:
        """Why ranks of a node do not reach each other's memory; empty where they do."""
        return self.mapped.why_not

    # -- a call ------------------------------------------------------------------------------------

    def run(self, job: "Job", moment: "Moment", *, complete: bool) -> "Plan | Call":
        """Run a call, as of `run_on_device`."""
        task = self.task(job)
        self._compare(job, task)
        with self.channel.turn, self.device:
            limit = self.channel.limit(job.settings)
            self.channel.settle(limit)
            self.channel.clock.limit = limit  # also of waits outside of plans
            try:
                self.queue.follow(moment.stream)
                ran = self._run_between(job, task)
                if complete:
                    self.queue.drain(job.call)
                self.queue.lead(moment.stream)
            except BaseException:
                # Who frees the arrays now does so in the order of that stream.
                with suppress(CudaError):
                    self.queue.lead(moment.stream)
                raise
        return ran

    def _run_between(self, job: "Job", task: Task) -> "Plan | Call":
        """Run a call behind what the queues follow; what leads another stream sees its result."""
        source, target = self._arrange(job)
        if source is not job.source or target is not job.out:
            self._join()  # what was packed is the call's input
        ran = self._run(job, task, source, target)
        if target is not job.out and job.out is not None:
            assert target is not None
            self._join()
            self._copy(job.out, target.reshape(job.out.shape))
        return ran

    def _join(self) -> None:
        """Have all queues wait for what each of them has been given."""
        self.queue.follow(self._streams[COMPUTE])

    def _run(
        self, job: "Job", task: Task, source: Array | None, target: Array | None
    ) -> "Plan | Call":
        if self._requested(job) == selection.NCCL:
            return self.nccl.run(job, task, source, target)
        if self._is_mapped(job):
            call = self.mapped.run(job, task, source, target)
            if call is not None:
                return call
        if self._goes_on_host(job, task):
            return run_on_host(self, job, source, target)
        if self._is_mapped_in_nodes(task):
            return self.nodes.run(job, task, source, target)
        return self.channel.run(
            job.settings,
            task,
            0 if source is None else source.ctypes.data,
            0 if target is None else target.ctypes.data,
            in_place=job.x is None,
            planner=self,
        )

    # All ranks must answer these alike.

    def _requested(self, job: "Job") -> str:
        """Return the algorithm that the caller has named, or "auto"."""
        return selection.requested(
            job.settings, self.channel.environment, job.pattern.collective, on_device=True
        )

    def _is_mapped(self, job: "Job") -> bool:
        """Whether a call goes through memory that the ranks of one node have mapped."""
        return (
            self.mapped.reachable
            and self.channel.topology.is_one_node
            and job.pattern.collective in COLLECTIVES
            and self._requested(job) == AUTO
        )

    def _goes_on_host(self, job: "Job", task: Task) -> bool:
        """Whether the host reduces."""
        if not self.staged or job.pattern.collective == "barrier":
            return False
        reduces = self.terms.reduces_on_host(self.channel.topology, task.nbytes)
        return reduces and self._requested(job) == AUTO

    def _has_mapped_nodes(self, pattern: Pattern) -> bool:
        """Whether a hierarchical algorithm goes through memory that ranks of nodes have mapped."""
        has_node = self.channel.meeting.node is not None
        return self.mapped.reachable and has_node and pattern == ALLREDUCE

    def _is_mapped_in_nodes(self, task: Task) -> bool:
        """Whether a call does."""
        algorithm = task.algorithm
        is_hierarchical = algorithm is not None and algorithm.hierarchical
        return is_hierarchical and self._has_mapped_nodes(task.pattern)

    def _compare(self, job: "Job", task: Task) -> None:
        if self.channel.is_checked(job.settings):
            job.compare(self.channel, task)

    def make_plan(self, task: Task, source: int, target: int) -> Plan:
        """Make the plan of messages of a task; see `hpccoll.channel.Planner`."""
        plan = make_device_plan(self, task, source, target)
        node = self.channel.meeting.node
        if node is not None:
            plan.count_at(node.calls_by_messages)
        return plan

    # -- what a call is made of --------------------------------------------------------------------

    def task(self, job: "Job") -> Task:
        """Return what is to be done, as far as it is equal on all ranks."""
        reduction = self.reduction(job.operation, job.dtype)
        settings, channel = job.settings, self.channel
        algorithm = selection.choose(
            settings,
            channel.environment,
            topology=channel.topology,
            nbytes=job.count * reduction.dtype.itemsize,
            count=job.count,
            through_memory=not channel.topology.is_one_node and self._has_mapped_nodes(job.pattern),
            collective=job.pattern.collective,
            on_device=True,
        )
        way = "staged" if self.staged else "direct"
        if algorithm is not None and algorithm.hierarchical and self._has_mapped_nodes(job.pattern):
            way = f"mapped, {way}"
        return Task(
            job.call,
            algorithm,
            NO_OPERATION if job.operation is None else job.operation.name,
            reduction,
            job.count,
            SEGMENT_BYTES if settings.segment_bytes is None else settings.segment_bytes,
            channel.topology,
            job.pattern,
            memory=f"{self.name}, {way}",
        )

    def reduction(self, operation: Operation | None, dtype: np.dtype[Any]) -> Reduction:
        """Return how an operation runs on a type here.

        Raises
        ------
        TypeError
            There are no kernels for it.
        """
        found = self.channel.reduction(operation, dtype)
        if operation is None:
            return found
        name = kernel_type(dtype)
        if name is None or not Kernels.supports(operation.kernel, name):
            message = (
                f"op {operation.name!r} on {dtype} has no kernels for devices; wanted one of the "
                "types of 1 to 16 bytes that NumPy has on all machines, or an array in host memory"
            )
            raise TypeError(message)
        return replace(found, kernel=f"cuda {self.device.arch}")

    def operation(self, name: str) -> Operation | None:
        """Return an operation by its name in a task."""
        return None if name == NO_OPERATION else OPERATIONS[name]

    def _copy(self, out: Array, x: Array) -> None:
        """Have the device copy elements from one array to another of its shape."""
        assert isinstance(out, DeviceArray)
        assert isinstance(x, DeviceArray)
        copy_array(out, x, self._streams[COMPUTE])

    def _arrange(self, job: "Job") -> tuple[Array | None, Array | None]:
        """Return input and output, or contiguous native memory in their place.

        As `Job` does on the host: the same memory twice, or memory that does not overlap.
        """
        x, out, dtype = job.x, job.out, job.dtype
        target = out
        if out is not None and not (
            buffers.is_plain(out) and (x is None or not np.may_share_memory(x, out))
        ):
            target = self.scratch("packed output", out.size, dtype)
            if x is None:
                self._copy(target.reshape(out.shape), out)
        if x is None:
            return target, target
        if buffers.is_plain(x):
            return x, target
        source = self.scratch("packed input", x.size, dtype)
        self._copy(source.reshape(x.shape), x)
        return source, target

    def scratch(self, purpose: str, count: int, dtype: np.dtype[Any]) -> Array:
        """Return device memory for `count` contiguous elements."""
        nbytes = count * dtype.itemsize
        return self.memory.block(purpose, nbytes)[:nbytes].view(dtype)

    def marks(self, count: int) -> list[int]:
        """Return events for the works of a plan; plans run one at a time, and share them."""
        with self.device:
            while len(self._marks) < count:
                self._marks.append(self.device.new_event())
        return self._marks[:count]

    def leave(self) -> None:
        """Let go of what is other ranks', when nothing is under way any more."""
        self.channel.clock.limit = 0  # not that of the last call
        # The others wait for this rank. In a context that is broken nothing is under way.
        with suppress(CudaError), self.device:
            self.queue.drain("Free")
            self.mapped.close()
            self.nccl.close()

    def close(self) -> None:
        """Give everything back, when other ranks have let go of it."""
        self.leave()
        with suppress(CudaError), self.device:
            self.mapped.destroy()
            self.memory.clear()
            self.pinned.clear()
            for stream in self._streams:
                self.device.destroy_stream(stream)
            for event in (*self._events, *self._marks, *self.down_events, *self.up_events):
                self.device.destroy_event(event)

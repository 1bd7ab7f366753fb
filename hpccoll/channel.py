"""What hpccoll keeps for one communicator: a private duplicate, plans, scratch memory.

A channel is made at the first collective call on a communicator (that step is collective), hangs on
the user's communicator as an MPI attribute, and goes when the user frees that communicator.
Messages travel on the duplicate, so that they never meet the user's own.
"""

import os
import threading
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll import node as nodes
from hpccoll import selection
from hpccoll._executor import MessagePlan
from hpccoll._node import NodePlan
from hpccoll._plans import Plan, PlanCache, Turn
from hpccoll.arena import empty_array
from hpccoll.engine import Bytes, Memory, Task, make_plan
from hpccoll.hierarchy import make_hierarchical_plan
from hpccoll.ops import OPERATIONS, Operation
from hpccoll.placement import discover
from hpccoll.reduction import Reduction, find_reduction
from hpccoll.selection import Settings
from hpccoll.transport import MpiTransport
from hpccoll.waiting import Waiting

# The objects that callers pass as `op`, by identity, and the name they stand for.
OPERATION_OBJECTS: tuple[tuple[object, str], ...] = (
    *((operation.name, operation.name) for operation in OPERATIONS.values()),
    *((getattr(MPI, op.mpi), op.name) for op in OPERATIONS.values() if op.mpi),
)

MOST_SETTINGS = 64
"""When there are more sets of settings than this, the plans of all are made anew."""


class Channel:
    """Private state of one communicator. Use `channel_of`, which makes or finds it.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    environment : str
        ``HPCCOLL_ALGORITHM`` as rank 0 has it.
    topology : Topology
        Which ranks share a node.
    meeting : Meeting
        What they share there.
    memory, shared_memory : Memory
        Scratch memory of all plans; the second is such that the node shares.
    turn : Turn
        Held while a plan runs, or scratch memory is in use: calls of two threads take turns.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        private = MPI.Intracomm(comm).Dup()
        private.Set_name("hpccoll")
        private.Set_errhandler(MPI.ERRORS_RETURN)
        self.turn = Turn()
        self._plans: dict[Settings, PlanCache] = {}
        self._reductions: dict[tuple[str, Any], Reduction] = {}
        self._unsettled = False
        self._out_of_step = False
        self.rank = private.rank
        self.size = private.size
        self.transport = MpiTransport(private)
        self.memory = Memory()
        self.shared_memory = Memory(self._empty_shared)
        try:
            mine = (selection.from_environment(), nodes.from_environment())
            self.environment, sharing = private.bcast(mine, root=0)
            self.topology = discover(private)
            waiting = Waiting.agree(private, self.topology)
            self.meeting = nodes.meet(
                private, self.topology, sharing, waiting, self.transport.calls_otherwise
            )
        except ValueError:
            private.Free()  # the error is that of all ranks
            raise
        if not self.topology.is_one_node:
            self.transport.nap = waiting.nap_nanoseconds
        _channels.add(self)

    def _empty_shared(self, nbytes: int) -> Bytes:
        return empty_array(nbytes, self.meeting.region)

    def plans(self, settings: Settings) -> PlanCache:
        """Return the plans made with these settings."""
        found = self._plans.get(settings)
        if found is None:
            if len(self._plans) >= MOST_SETTINGS:
                for plans in self._plans.values():
                    plans.clear()
            found = PlanCache(OPERATION_OBJECTS, MPI.IN_PLACE, self.turn, self._after_failure)
            self._plans[settings] = found
        return found

    def reduction(self, operation: Operation, dtype: Any) -> Reduction:
        """Return the loops of an operation on a type."""
        key = (operation.name, dtype)
        found = self._reductions.get(key)
        if found is None:
            found = self._reductions[key] = find_reduction(operation, dtype, self.size)
        return found

    def run(self, settings: Settings, task: Task, source: int, target: int) -> Plan:
        """Run a task on memory at `source` and `target` (equal in place), and return its plan."""
        plans = self.plans(settings)
        # What such plans do does not depend on where the vector lies: 0 stands for any place.
        any_place = task.algorithm is None or task.staged or self._through_nodes(task)
        where = (0, 0) if any_place else (source, target)
        key = (*where, task.nbytes, task.reduction.dtype.num, task.operation)
        with self.turn:
            if self._unsettled or self._out_of_step:
                self._settle()
            plan = plans.find(*key)
            # One type number stands for all units of times and durations.
            if plan is None or plan.info.task.reduction.dtype != task.reduction.dtype:
                plan = self._make_plan(task, *where)
                plans.keep(*key, plan)
            try:
                plan.run(source, target)
            except BaseException:
                self._after_failure(plan)
                raise
        return plan

    def _make_plan(self, task: Task, source: int, target: int) -> Plan:
        node = self.meeting.node
        if task.algorithm is None and node is not None:
            return nodes.make_node_plan(node, task, self.rank, self.size)
        if self._through_nodes(task) and node is not None:
            return make_hierarchical_plan(
                self.transport, self.memory, self.shared_memory, node, task
            )
        plan = make_plan(self.transport, self.memory, task, source, target)
        if node is not None:
            plan.count_at(node.calls_by_messages)
        return plan

    def _through_nodes(self, task: Task) -> bool:
        """Whether a task goes through the memory of nodes, and by messages between them."""
        return (
            task.algorithm is not None
            and task.algorithm.hierarchical
            and self.meeting.shares_scratch
            and task.reduction.loops.compiled
        )

    def _after_failure(self, plan: Plan) -> None:
        """Note what is to be done before the next call: messages may still be under way."""
        if isinstance(plan, NodePlan) and plan.disagrees:
            self._out_of_step = True
            self._unsettled = not self.transport.give_up([], -1, on_node=True)
        elif isinstance(plan, MessagePlan):
            self._out_of_step |= plan.hierarchical or self.transport.failed_on_node
            self._unsettled = not plan.usable
        if self._unsettled or self._out_of_step:
            self.allow_repeats(False)

    def _settle(self) -> None:
        """Do what is to be done after a failure, before the next call. All ranks do."""
        if self._unsettled:
            self.transport.settle()
            self._unsettled = False
        if self.transport.failed_on_node or self._out_of_step:
            # Those who began the failed call in the memory of their node counted it.
            self.transport.failed_on_node = self._out_of_step = False
            node = self.meeting.node
            counters = np.array((0,) * 5 if node is None else node.counters(), np.uint64)
            self.transport.comm.Allreduce(MPI.IN_PLACE, counters, MPI.MAX)
            if node is not None:
                node.catch_up(counters.tolist())
        self.allow_repeats(True)

    def allow_repeats(self, allowed: bool) -> None:
        """Let earlier calls be repeated without coming through `run`, or not."""
        for plans in self._plans.values():
            plans.closed = not allowed

    def close(self) -> None:
        """Free plans and the duplicate. Collective, as the ``Free`` that leads here is."""
        for plans in self._plans.values():
            plans.clear()
        self._plans.clear()
        self.memory.clear()
        self.shared_memory.clear()
        if not MPI.Is_finalized():
            self.meeting.leave(self.transport.comm)
            self.transport.close()


_bookkeeping = threading.Lock()
_creations: dict[int, threading.Lock] = {}
_channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()
_forked = False


def _in_forked_child() -> None:
    # This process is a copy of the one that MPI knows: refuse all calls, repeated ones as well.
    global _forked
    _forked = True
    for channel in _channels:
        channel.allow_repeats(False)


os.register_at_fork(after_in_child=_in_forked_child)


def _freed(comm: MPI.Comm, keyval: int, channel: Channel) -> None:
    # Predefined communicators are never freed by a user; what comes here is MPI_Finalize, in which
    # MPI takes its duplicates down itself.
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
        channel.close()


_keyval = MPI.KEYVAL_INVALID


def find_channel(comm: MPI.Intracomm) -> Channel | None:
    """Return the channel that a communicator has already, or None. A local call."""
    with _bookkeeping:
        if _keyval == MPI.KEYVAL_INVALID:
            return None
    channel = comm.Get_attr(_keyval)
    return channel if isinstance(channel, Channel) else None


def channel_of(comm: MPI.Intracomm, call: str = "hpccoll") -> Channel:
    """Return the channel of a communicator; the first call on it is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator.
    call : str
        For messages: the call that the user made.

    Raises
    ------
    RuntimeError
        In a forked child.
    """
    global _keyval
    if _forked:
        message = (
            f"{call}: called in a forked child (process {os.getpid()}, MPI was started in its "
            f"parent, {os.getppid()}); MPI cannot be used there"
        )
        raise RuntimeError(message)
    with _bookkeeping:
        if _keyval == MPI.KEYVAL_INVALID:
            # Without a copy function, a duplicate of the communicator starts without a channel.
            _keyval = MPI.Comm.Create_keyval(copy_fn=None, delete_fn=_freed)
    channel = comm.Get_attr(_keyval)
    if isinstance(channel, Channel):
        return channel
    # One lock per communicator, since it is held while other ranks are waited for: threads may come
    # with their communicators in another order there.
    handle = MPI._handleof(comm)
    with _bookkeeping:
        creation = _creations.setdefault(handle, threading.Lock())
    with creation:
        channel = comm.Get_attr(_keyval)
        if not isinstance(channel, Channel):
            channel = Channel(comm)
            comm.Set_attr(_keyval, channel)
    with _bookkeeping:
        _creations.pop(handle, None)
    return channel

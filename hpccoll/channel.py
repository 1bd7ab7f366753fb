"""What hpccoll keeps for one communicator: a private duplicate, plans, scratch memory.

A channel is made at the first collective call on a communicator (that step is collective), hangs on
the user's communicator as an MPI attribute, and goes when the user frees that communicator.
Messages travel on the duplicate, so that they never meet the user's own.
"""

import math
import os
import weakref
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from hpccoll import agreement, selection
from hpccoll import node as nodes
from hpccoll._executor import MessagePlan
from hpccoll._node import NodePlan
from hpccoll._plans import PART_IN_PLACE, Plan, PlanCache, Turn
from hpccoll.arena import empty_array
from hpccoll.attachments import Attachment
from hpccoll.comparison import Comparison
from hpccoll.engine import SOURCE, TARGET, make_plan
from hpccoll.errors import NEW_ONE, MismatchError
from hpccoll.hierarchy import make_hierarchical_plan
from hpccoll.opening import Opening, look_at_given_up, some_given_up
from hpccoll.ops import OPERATIONS, Operation
from hpccoll.pattern import ALLREDUCE, NO_OPERATION, Pattern
from hpccoll.placement import discover, raise_first
from hpccoll.reduction import Reduction, find_reduction, without_loops
from hpccoll.scratch import Bytes, Memory
from hpccoll.selection import Settings
from hpccoll.task import Task
from hpccoll.time_limits import (
    NANOSECONDS,
    WARNING_SECONDS,
    limit_from_environment,
    nanoseconds,
)
from hpccoll.transport import PATIENCE, Failure, MpiTransport
from hpccoll.waiting import Waiting

# The objects that callers pass as `op`, by identity, and the name they stand for.
OPERATION_OBJECTS: tuple[tuple[object, str], ...] = (
    *((operation.name, operation.name) for operation in OPERATIONS.values()),
    *((getattr(MPI, op.mpi), op.name) for op in OPERATIONS.values() if op.mpi),
)


class Planner(Protocol):
    """Makes the plans of calls on vectors that are not in host memory (in `hpccoll.cuda`)."""

    name: str
    """Under which its plans are kept."""
    serves_any_address: bool
    """Whether its plans learn only when they run where the vectors are."""

    def make_plan(self, task: Task, source: int, target: int) -> Plan:
        """Make the plan of a task.

        Parameters
        ----------
        task : Task
            What to do.
        source, target : int
            As of `Channel.run`; `SOURCE` and `TARGET` of `hpccoll.engine` in their place where
            plans serve any address, and 0 where the plan copies the vector.
        """


class DeviceSite(Planner, Protocol):
    """What a channel has on one device (`hpccoll.cuda.site.Site`)."""

    def leave(self) -> None:
        """Let go of what is other ranks', before any of them gives it back."""

    def close(self) -> None:
        """Give everything back."""


MOST_TABLES = 64
"""When there are more sets of settings and patterns than this, all plans are made anew."""


BACKGROUND_NAP = 50_000
"""Longest nanoseconds between two looks at a message, of calls beside other work on the same core.

Where there is a core to spare MPI waits, and spins: each look takes the interpreter lock, for which
a thread may wait 5 ms beside pure Python.
"""


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
    spare_cores : bool
        Whether a thread beside this rank has a core of its own.
    sites : dict
        By name: what it has on each device on which vectors of calls were.
    turn : Turn
        Held while a plan runs, or scratch memory is in use: calls of two threads take turns.
    """

    def __init__(self, comm: MPI.Intracomm, *, background: bool = False) -> None:
        self.opening = Opening(comm)
        self.is_open = False
        self._refusal: BaseException | None = None
        self._background = background

    def open(self, call: str, timeout: float | None) -> None:
        """Make it ready for calls. Collective; after an interrupt it can go on.

        Raises
        ------
        CollectiveTimeoutError
            When this takes longer than `timeout` seconds.
        ValueError
            On all ranks, where an environment variable cannot be read.
        """
        if self._refusal is not None:
            message = f"the first call on this communicator was given up. {NEW_ONE}"
            raise RuntimeError(message)
        usual, unreadable = limit_from_environment()
        try:
            self.opening.wait(call, nanoseconds(timeout, usual))
        except TimeoutError as error:
            self._refusal = error
            self.opening.give_up()
            raise
        try:
            self._set_up(usual, unreadable)
        except BaseException as error:  # also an interrupt: others are further, perhaps
            self._refusal = error
            raise
        look_at_given_up()
        self.is_open = True

    def _set_up(self, usual: int, unreadable: str) -> None:
        private = self.opening.private
        private.Set_name("hpccoll")
        private.Set_errhandler(MPI.ERRORS_RETURN)
        self.turn = Turn()
        self._plans: dict[tuple[Settings, Pattern, str], PlanCache] = {}
        self.sites: dict[str, DeviceSite] = {}
        self._reductions: dict[tuple[str, Any], Reduction] = {}
        self._unsettled = False
        self._out_of_step = False
        self.rank = private.rank
        self.size = private.size
        self.transport = MpiTransport(private)
        self.clock = self.transport.clock
        self.clock.warning = int(WARNING_SECONDS * NANOSECONDS)
        self._usual_limit = usual
        self._comparison = Comparison(self)
        self.memory = Memory()
        self.shared_memory = Memory(self._empty_shared)
        try:
            checked, why = agreement.from_environment()
            mine = (selection.from_environment(), nodes.from_environment(), checked)
            told = private.allgather((mine, unreadable or why))
            raise_first(why for _, why in told)
            self.environment, sharing, self._checked = told[0][0]
            self.topology = discover(private)
            waiting = Waiting.agree(private, self.topology)
            self.spare_cores = waiting.spare
            self.meeting = nodes.meet(
                private,
                self.topology,
                sharing,
                waiting,
                self.transport.calls_otherwise,
                self.clock,
            )
        except ValueError:
            private.Free()  # the error is that of all ranks
            raise
        if self._background and not waiting.spare:
            self.transport.nap = BACKGROUND_NAP
        elif not self.topology.is_one_node:
            self.transport.nap = waiting.nap_nanoseconds
        _channels.add(self)

    def _empty_shared(self, nbytes: int) -> Bytes:
        return empty_array(nbytes, self.meeting.region)

    def scratch(self, purpose: str, nbytes: int) -> Bytes:
        """Return memory of at least `nbytes` bytes, such as the node shares if it can be."""
        memory = self.shared_memory if self.meeting.shares_scratch else self.memory
        return memory.block(purpose, nbytes)

    def plans(
        self, settings: Settings, pattern: Pattern = ALLREDUCE, planner: str = ""
    ) -> PlanCache:
        """Return the plans made with these settings for calls of this pattern, by a planner."""
        found = self._plans.get((settings, pattern, planner))
        if found is None:
            if len(self._plans) >= MOST_TABLES:
                with self.turn:
                    for plans in self._plans.values():
                        plans.clear()
                    self._plans.clear()
            names = OPERATION_OBJECTS if pattern.reduces else ((None, NO_OPERATION),)
            found = PlanCache(
                names, MPI.IN_PLACE, self.turn, self.after_failure, self.clock,
                part_in_place=pattern.collective == "allgather",
            )  # fmt: skip
            found.checked = self.is_checked(settings)
            self._plans[settings, pattern, planner] = found
        return found

    def reduction(self, operation: Operation | None, dtype: Any) -> Reduction:
        """Return the loops of an operation on a type; None for a collective without one."""
        if operation is None:
            return without_loops(dtype)
        key = (operation.name, dtype)
        found = self._reductions.get(key)
        if found is None:
            found = self._reductions[key] = find_reduction(operation, dtype, self.size)
        return found

    def through_memory(self, reduction: Reduction, pattern: Pattern) -> bool:
        """Whether calls by "auto" can go through the memory of nodes; equal on all ranks."""
        loops = reduction.loops.compiled or not pattern.reduces
        return loops and self.meeting.serves(self.topology)

    def run(
        self,
        settings: Settings,
        task: Task,
        source: int,
        target: int,
        *,
        in_place: bool,
        planner: Planner | None = None,
    ) -> Plan:
        """Run a task and return its plan.

        Parameters
        ----------
        settings : Settings
            Under which the plan is kept.
        task : Task
            What to do.
        source, target : int
            Addresses of what this rank brings, and of what it wants; 0 where that is nothing.
        in_place : bool
            What it brings stands in what it wants; then both addresses are the same.
        planner : Planner, optional
            Makes the plan, where the vectors are not in host memory.
        """
        plans = self.plans(settings, task.pattern, planner.name if planner else "")
        where = source, target  # 0: such a plan does the same wherever the vector lies
        if planner is not None and planner.serves_any_address:
            where = TARGET if in_place else SOURCE, TARGET
        elif task.is_copied or (planner is None and self._in_nodes(task)):
            where = 0, 0
        itemsize = task.reduction.dtype.itemsize
        brings = task.pattern.brings(self.rank, self.size, task.count).count * itemsize
        wants = task.pattern.wants(self.rank, self.size, task.count).count * itemsize
        if in_place:
            brings = PART_IN_PLACE if task.pattern.collective == "allgather" else wants
        # As `PlanCache.repeat` sees the arrays.
        key = (*where, brings, wants, task.reduction.dtype.num, task.operation)
        with self.turn:
            self.settle(self.limit(settings))
            plan = plans.find(key)
            # One type number stands for all units of times and durations, for example.
            if plan is None or plan.info.task.reduction.dtype != task.reduction.dtype:
                plan = (self if planner is None else planner).make_plan(task, *where)
                plans.keep(key, plan)
            start = source + plan.own_offset if in_place else source
            self.execute(plan, start, target, self.limit(settings))
        return plan

    def limit(self, settings: Settings) -> int:
        """Return how many nanoseconds a call may wait; 0 for any time."""
        return nanoseconds(settings.timeout, self._usual_limit)

    def is_checked(self, settings: Settings) -> bool:
        """Return whether ranks compare what they call; equal on all ranks."""
        return self._checked if settings.checked is None else settings.checked

    def compare(self, settings: Settings, call: str, text: str) -> None:
        """Raise on all ranks where they call different things. Collective.

        Parameters
        ----------
        settings : Settings
            Of the call.
        call : str
            For messages: the call that the user made.
        text : str
            What is called: all that must be equal on all ranks.

        Raises
        ------
        MismatchError
            Naming who calls what.
        """
        self._comparison.run(settings, call, text)

    def execute(self, plan: Plan, source: int, target: int, limit: int) -> None:
        """Run a plan, and note what is to be done if it fails. The caller holds the turn."""
        self.clock.limit = limit
        try:
            plan.run(source, target)
        except BaseException as error:
            self.after_failure(plan, error)
            raise

    def make_plan(self, task: Task, source: int, target: int) -> Plan:
        """Make the plan of a task, for vectors at these addresses where that matters."""
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

    def _in_nodes(self, task: Task) -> bool:
        """Whether a plan in host memory works in the memory of nodes, wherever the vector lies."""
        return task.algorithm is None or self._through_nodes(task)

    def _through_nodes(self, task: Task) -> bool:
        """Whether a task goes through the memory of nodes, and by messages between them."""
        return (
            task.algorithm is not None
            and task.algorithm.hierarchical
            and task.pattern == ALLREDUCE
            and self.meeting.shares_scratch
            and task.reduction.loops.compiled
        )

    def after_failure(self, plan: Plan, error: BaseException) -> None:
        """Note what is to be done before the next call: messages may still be under way."""
        if isinstance(plan, NodePlan) and plan.differs and isinstance(error, MismatchError):
            # All ranks have seen that, and are still in step.
            task = plan.info.task
            text = self._comparison.text or task.full_text("auto")
            try:
                error.args = self._comparison.mismatch(task.call, text, self.clock.number).args
            finally:
                self.allow_repeats(not self.clock.broken)
        if isinstance(plan, NodePlan) and plan.disagrees:
            self._out_of_step = True
            silent = self.transport.give_up([], (), Failure.DISAGREES, PATIENCE)
            self._unsettled = bool(silent)
        elif isinstance(plan, NodePlan) and self.clock.broken:
            # Who came to this call late, and found all that it needs, is told in its next one.
            self.transport.lose(self.clock.broken)
        elif isinstance(plan, MessagePlan):
            # Who only sends learns of it in its next call, which the others have not made: so they
            # have not counted as many calls as it has.
            self._out_of_step = True
            self._unsettled = not plan.usable
        if self._unsettled or self._out_of_step or self.clock.broken:
            self.allow_repeats(False)

    def lose(self, number: int) -> None:
        """Give up a call for good, and tell the others, who may wait in it.

        Parameters
        ----------
        number : int
            Of the call, which this rank has perhaps not begun.
        """
        self.clock.number = max(number, self.clock.number)
        self.clock.lose()
        self.transport.lose(self.clock.broken)
        self.allow_repeats(False)

    def settle(self, limit: int) -> None:
        """Do what is to be done after a failure, before the next call. All ranks do.

        Raises
        ------
        RuntimeError
            No call can be made any more.
        CollectiveTimeoutError
            Others have not come to this in `limit` nanoseconds, if that is not 0.
        """
        self._refuse_broken()
        if not (self._unsettled or self._out_of_step):
            return
        self.clock.limit = limit
        self._settle()
        self.allow_repeats(True)

    def _refuse_broken(self) -> None:
        if self.clock.broken:
            message = f"{self.clock.broken} (rank {self.rank} of {self.size}). {NEW_ONE}"
            raise RuntimeError(message)

    def _settle(self) -> None:
        if self._unsettled:
            self.transport.settle()
            self._refuse_broken()  # one of the others may have given up for good
            self._unsettled = False
        # Those who began the failed call counted it.
        node = self.meeting.node
        mine = (0,) * 5 if node is None else node.counters()
        counters = np.array((*mine, self.clock.number), np.uint64)
        request = self.transport.comm.Iallreduce(MPI.IN_PLACE, counters, MPI.MAX)
        self.transport.finish(request, counters)
        self._out_of_step = False
        *theirs, number = counters.tolist()
        self.clock.number = number
        if node is not None:
            node.catch_up(theirs)

    def allow_repeats(self, allowed: bool) -> None:
        """Let earlier calls be repeated without coming through `run`, or not."""
        for plans in self._plans.values():
            plans.closed = not allowed

    def close(self) -> None:
        """Free plans and the duplicate. Collective, as the ``Free`` that leads here is."""
        if not self.is_open:
            if not self.opening.complete and self._refusal is None:
                self.opening.give_up()
            return
        self._comparison.free()
        if self.clock.broken:
            # Others may not come to this: memory in which they, or a device, may still write stays.
            _abandoned.extend(self.sites.values())
            return
        for plans in self._plans.values():
            plans.clear()
        self._plans.clear()
        if MPI.Is_finalized():
            return
        look_at_given_up()
        for site in self.sites.values():
            site.leave()
        # Peers may still be looking at this rank's memory. It stays where one of them may never
        # come to this: MPICH keeps a communicator on which an opening was given up.
        if self.transport.come_together(PATIENCE if some_given_up() else math.inf):
            for site in self.sites.values():
                site.close()
            self.memory.clear()
            self.shared_memory.clear()
            self.meeting.leave(self.transport.comm)
            self.transport.close()


_abandoned: list[DeviceSite] = []
"""Sites that stay to the end of the process: nobody knows when they are used no more."""

_channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()


def _in_forked_child() -> None:
    # Repeated calls do not come to where `refuse_forked` is called.
    for channel in _channels:
        channel.allow_repeats(False)


os.register_at_fork(after_in_child=_in_forked_child)


_attachment = Attachment(lambda comm: Channel(comm))


def find_channel(comm: MPI.Intracomm) -> Channel | None:
    """Return the channel that a communicator has already, or None. A local call."""
    found = _attachment.find(comm)
    return found if found is not None and found.is_open else None


def channel_of(comm: MPI.Intracomm, call: str = "hpccoll", timeout: float | None = None) -> Channel:
    """Return the channel of a communicator; the first call on it is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator.
    call : str
        For messages: the call that the user made.
    timeout : float, optional
        Seconds to wait for the others in the first call.

    Raises
    ------
    RuntimeError
        In a forked child.
    CollectiveTimeoutError
        Others did not come in time.
    """
    return _attachment.of(comm, call, timeout)

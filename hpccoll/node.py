"""Ranks that share a node meet: each maps the others' memory, and learns what is allowed here.

What they share is the arena of each process (`hpccoll.arena`). Where the system does not let peers
map it, they take an MPI shared window in its place. Where that does not work either, or the
environment variable ``HPCCOLL_NODE`` says "off", there is no node path, on no rank.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from mpi4py import MPI

from hpccoll import _arena, _node, arena, selection
from hpccoll._node import Node, NodePlan
from hpccoll._plans import CallClock
from hpccoll.placement import raise_first
from hpccoll.plan_info import PlanInfo
from hpccoll.task import Task
from hpccoll.topology import Topology
from hpccoll.transport import Word
from hpccoll.waiting import Waiting

VARIABLE = "HPCCOLL_NODE"
CHOICES = ("auto", "arena", "window", "off")

SHARED_MEMORY = "/dev/shm"
"""Where MPI libraries keep shared windows."""

WINDOW_BYTES = 64 << 20
"""Room for arrays in a window, beside the slot, unless ``HPCCOLL_ARENA`` says otherwise: a window
lies in /dev/shm, which is often small."""


Watch = Callable[[list[int]], Word | None]
"""What is called while a rank waits long, with the ranks that are late. Returns which makes another
call or has given up, or None."""


@dataclass(slots=True)
class Meeting:
    """What a rank and its peers on the node found.

    Attributes
    ----------
    node : Node or None
        Their view of each other; None where they share no memory.
    members : tuple of int
        The ranks of the communicator that are here, in order.
    memory : str
        "arena", "window", or "none".
    reads_peers : bool
        Whether a rank may read its peers' private memory.
    region : int
        Where `hpccoll.empty` allocates so that peers see it: 0, or the window's.
    why_not : str
        Why something is not there; empty otherwise.
    """

    node: Node | None
    members: tuple[int, ...]
    memory: str = "none"
    reads_peers: bool = False
    region: int = 0
    why_not: str = ""
    _slot: int = 0
    _window: MPI.Win | None = None
    _peers: list[arena.Descriptor] = field(default_factory=list)

    def serves(self, topology: Topology) -> bool:
        """Whether calls by "auto" can go through memory; equal on all ranks."""
        return self.memory != "none" if topology.is_one_node else self.shares_scratch

    @property
    def shares_scratch(self) -> bool:
        """Whether peers see scratch memory, as hierarchical plans need; windows have no room."""
        return self.memory == "arena"

    def leave(self, comm: MPI.Intracomm) -> None:
        """Give everything back, where all ranks are about to do so. Collective."""
        self.node = None  # plans may still hold it, and are not run any more
        for peer in self._peers:
            arena.unmap_peer(peer)
        if self._slot:
            _arena.free(self._slot)
        if self._window is not None:
            removed = True
            try:
                _arena.remove_region(self.region)
            except BufferError:
                removed = False
            # Freeing is collective. Where arrays of any rank live there, the window lasts as long
            # as the process.
            if comm.allreduce(removed, MPI.LAND):
                self._window.Free()


def from_environment() -> str:
    """Return the value of ``HPCCOLL_NODE`` in this process, or "auto"."""
    return os.environ.get(VARIABLE, "").strip() or CHOICES[0]


def meet(
    comm: MPI.Intracomm,
    topology: Topology,
    choice: str,
    waiting: Waiting,
    watch: Watch,
    clock: CallClock,
) -> Meeting:
    """Let the ranks of each node meet. Collective over all of `comm`; all get the same kind.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        A private communicator.
    topology : Topology
        Of its ranks.
    choice : str
        One of `CHOICES`, equal on all ranks.
    waiting : Waiting
        How to wait.
    watch, clock
        As of `hpccoll._node.Node`.

    Raises
    ------
    ValueError
        On all ranks: `choice` is none of `CHOICES`, or ``HPCCOLL_ARENA`` of some rank cannot be
        read.
    """
    if choice not in CHOICES:
        message = (
            f"environment variable {VARIABLE} is {choice!r}; wanted one of {', '.join(CHOICES)}"
        )
        raise ValueError(message)
    members = topology.peers(comm.rank)
    if topology.largest == 1 or choice == "off":
        why = f"{VARIABLE} is off" if choice == "off" else "every rank is alone on its node"
        return Meeting(None, members, why_not=why)
    meeting = Meeting(None, members)  # before any try
    if choice != "window":
        meeting = _in_arenas(comm, members, waiting, watch, clock)
    if meeting.node is None and choice != "arena":
        why = meeting.why_not
        meeting = _in_window(comm, topology, waiting, watch, clock)
        meeting.why_not = "; ".join(filter(None, (why, meeting.why_not)))
    if meeting.memory == "arena" and topology.is_one_node and not waiting.crowded:
        crossing = _crossing_time(comm, meeting)
        assert meeting.node is not None
        meeting.node.set_limits(selection.node_limits(len(members), False, crossing))
    return meeting


_crossings: dict[tuple[bytes, ...], int] = {}
"""By the nonces of the arenas of all ranks: what was measured for these processes."""


def _crossing_time(comm: MPI.Intracomm, meeting: Meeting) -> int:
    """Return how long news take from rank to rank, measured once for the same processes."""
    assert meeting.node is not None
    key = tuple(peer.nonce for peer in meeting._peers)
    if key not in _crossings:
        _crossings[key] = max(comm.allgather(meeting.node.crossing_time()))
    return _crossings[key]


def _in_arenas(
    comm: MPI.Intracomm, members: tuple[int, ...], waiting: Waiting, watch: Watch, clock: CallClock
) -> Meeting:
    """Meet in the processes' arenas."""
    nbytes = _node.slot_bytes(selection.NODE_SEGMENT_BYTES) + _node.ALIGNMENT
    slot, invitation, refusal, unreadable = 0, None, "", ""
    try:
        peer = arena.descriptor()
        slot = _arena.allocate(nbytes, zeroed=True)
        invitation = (peer, _arena.base(), _aligned(slot) - _arena.base())
    except (OSError, MemoryError, RuntimeError) as error:
        refusal = str(error)
    except ValueError as error:  # a setting that cannot be read
        unreadable = str(error)
    offers = comm.allgather((invitation, refusal, unreadable))
    if slot and any(offer[2] for offer in offers):
        _arena.free(slot)
    raise_first(offer[2] for offer in offers)
    mapped: list[arena.Descriptor] = []
    slots, arenas, readable = [], [], True
    refusals = [offers[member][1] for member in members if offers[member][1]]
    if not refusals:
        try:
            for member in members:
                peer, there, offset = offers[member][0]
                base = arena.map_peer(peer)
                mapped.append(peer)
                arenas.append(base)
                slots.append(base + offset)
                # The nonce at its start tells one arena from the other.
                readable &= _node.can_read(peer.pid, there, base, len(peer.nonce))
        except OSError as error:
            refusals.append(str(error))
    # One word for all ranks, also those of other nodes: the path must be the same everywhere.
    agreed = comm.allgather((refusals[:1], readable))
    whys = [why for refused, _ in agreed for why in refused]
    reads_peers = all(can for _, can in agreed)
    if whys:
        meeting = Meeting(None, members, why_not=whys[0], _slot=slot, _peers=mapped)
        comm.Barrier()  # peers may still be looking at this rank's slot
        meeting.leave(comm)
        return meeting
    pids = [peer.pid for peer in mapped] if reads_peers else []
    node = _new_node(
        comm.rank, members, slots, arenas, _arena.capacity(), pids, waiting, watch, clock
    )
    return Meeting(node, members, "arena", reads_peers, _slot=slot, _peers=mapped)


def _in_window(
    comm: MPI.Intracomm, topology: Topology, waiting: Waiting, watch: Watch, clock: CallClock
) -> Meeting:
    """Meet in a shared window of MPI, a part of which is for arrays."""
    members = topology.peers(comm.rank)
    nbytes = _node.slot_bytes(selection.NODE_SEGMENT_BYTES)
    rooms, unreadable = zip(*comm.allgather(_window_room(nbytes, len(members))), strict=True)
    raise_first(unreadable)
    room = min(rooms)
    if room <= 0:
        return Meeting(None, members, why_not=f"{SHARED_MEMORY} has no room for a shared window")
    here = MPI.Intracomm(comm.Split(topology.nodes[comm.rank], comm.rank))
    window, why = None, ""
    try:
        # The standard wants an error, not a crash, where ranks do not share memory.
        window = MPI.Win.Allocate_shared(nbytes + room + 2 * _node.ALIGNMENT, 1, comm=here)
    except MPI.Exception as error:
        why = f"no shared window: {error.Get_error_string()}"
    whys = [text for text in comm.allgather(why) if text]
    if whys or window is None:
        if window is not None:
            window.Free()
        here.Free()
        return Meeting(None, members, why_not=whys[0])
    slots = [_aligned(window.Shared_query(k)[0].address) for k in range(here.size)]
    MPI.buffer.fromaddress(slots[here.rank], nbytes)[:] = bytes(nbytes)
    here.Barrier()
    here.Free()
    arenas = [_aligned(slot + nbytes) for slot in slots]
    region = 0
    try:
        region = _arena.add_region(arenas[members.index(comm.rank)], room)
    except RuntimeError as error:
        why = str(error)
    whys = [text for text in comm.allgather(why) if text]
    if whys:
        if region:
            _arena.remove_region(region)
        window.Free()
        return Meeting(None, members, why_not=whys[0])
    node = _new_node(comm.rank, members, slots, arenas, room, [], waiting, watch, clock)
    return Meeting(node, members, "window", region=region, _window=window)


def _window_room(slot: int, ranks: int) -> tuple[int, str]:
    """Return how many bytes for arrays a window may have on each rank, or what cannot be read.

    Its pages are taken from the file system when they are touched: where there are none left then,
    the process would end by a signal.
    """
    text = os.environ.get(arena.VARIABLE)
    try:
        wanted = WINDOW_BYTES if text is None else arena.parse_size(text)
    except ValueError as error:
        return 0, str(error)
    try:
        there = os.statvfs(SHARED_MEMORY)
    except OSError:
        return wanted, ""  # MPI keeps its shared memory elsewhere
    free = there.f_bavail * there.f_frsize // 2 // ranks - slot - 2 * _node.ALIGNMENT
    return max(0, min(wanted, free) // _node.ALIGNMENT * _node.ALIGNMENT), ""


def _new_node(
    rank: int,
    members: tuple[int, ...],
    slots: list[int],
    arenas: list[int],
    arena_bytes: int,
    processes: list[int],
    waiting: Waiting,
    watch: Watch,
    clock: CallClock,
) -> Node:
    return Node(
        members.index(rank),
        slots,
        buffer_bytes=selection.NODE_SEGMENT_BYTES,
        arenas=arenas,
        arena_bytes=arena_bytes,
        processes=processes,
        members=members,
        limits=selection.node_limits(len(members), waiting.crowded, 0),
        spins=waiting.spins,
        yield_time=waiting.yield_nanoseconds,
        watch=watch,
        clock=clock,
    )


def _aligned(address: int) -> int:
    return address + -address % _node.ALIGNMENT


def make_node_plan(node: Node, task: Task, rank: int, size: int) -> NodePlan:
    """Make the plan of one rank for vectors at any address."""
    reduction, pattern = task.reduction, task.pattern
    parts = pattern.chunks(size, task.count)
    plan = NodePlan(
        node,
        reduction.loops,
        itemsize=reduction.dtype.itemsize,
        partial_itemsize=reduction.partial_dtype.itemsize,
        kind=task.node_kind,
        count=task.count,
        info=PlanInfo(task, rank, size, 0, 0),
        collective=pattern.collective,
        root=pattern.root,
        starts=[0, *(chunk.stop for chunk in parts)],
    )
    if pattern.collective == "allgather":
        plan.own_offset = parts[rank].start * reduction.dtype.itemsize
    return plan

"""Calls of ranks that reach each other's device memory: kernels that load from it, and store to it.

Inside a node nothing is sent. What ranks tell each other goes through memory of the host; whether
GPUs are the same one or peers makes no difference here.

one_shot
    Up to `hpccoll.cuda.peers.SMALL_BYTES`: every rank copies what it brings into its block, and
    when all have, takes what it wants from all blocks.
direct
    Above: ranks show each other where their vectors are. Each reduces a part of the vector, and
    stores it wherever it is wanted.

Elements are combined by the expression of kernels/tree.h, as everywhere inside a node.

How a call ends early
---------------------
What goes wrong on one rank is raised on all ranks the next time they tell each other something,
and each has waited for its own kernels before that: so nobody is at work in the memory of another
one then. Who leaves for another reason, such as an interrupt or a time limit, waits some seconds
for its own kernels, and makes the communicator unusable for all. Kernels of others may still be at
work in its vectors, or come to that later. So it keeps these vectors from being given back, until
the process ends; but whoever stores to them may find it overwritten.
"""

from typing import TYPE_CHECKING

from hpccoll._device import COMPUTE
from hpccoll.buffers import Array
from hpccoll.calls import Call
from hpccoll.cuda import outcomes
from hpccoll.cuda.mapped_call import MappedCall
from hpccoll.cuda.mapping import Exports, Mappings
from hpccoll.cuda.outcomes import Exchange
from hpccoll.cuda.peers import HALVES, SMALL_BYTES, Peers
from hpccoll.errors import CudaError
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site
    from hpccoll.jobs import Job

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "reduce", "broadcast")


class Mapped:
    """Runs calls on memory that the ranks of a node have mapped of each other.

    Parameters
    ----------
    site : Site
        The device, and the channel.
    peers : Peers
        What its ranks have of each other.

    Attributes
    ----------
    moved : bool
        The peers are those of another site: ranks have met on another device of this rank's.
    half : int
        Where in all blocks the half of the next call begins.
    """

    def __init__(self, site: "Site", peers: Peers, *, moved: bool = False) -> None:
        self.site, self.peers, self.moved = site, peers, moved
        self.exports = Exports(site.device)
        self.mappings = Mappings(site.device)
        self.event = site.device.new_event() if peers.reachable and not moved else 0
        self.half = 0

    @property
    def why_not(self) -> str:
        """Why ranks do not reach each other's memory; empty where they do, which is on all."""
        return self.peers.why_not

    @property
    def reachable(self) -> bool:
        """Whether ranks reach each other's device memory; equal on all ranks."""
        return not self.why_not

    def run(
        self, job: "Job", task: Task, source: Array | None, target: Array | None
    ) -> Call | None:
        """Run a call among the ranks of one node.

        Parameters
        ----------
        job : Job
            The call.
        task : Task
            What to do.
        source, target : DeviceArray or None
            Contiguous: what this rank brings and what it wants; the same for a call in place.

        Returns
        -------
        Call or None
            None where a rank has gone on to another GPU, or could not open what another one has
            shown: nothing has been stored, all ranks know it, and go another way from now on.

        Raises
        ------
        MismatchError
            On all ranks: they make different calls.
        CudaError
            On all ranks: the driver refused something to one of them.
        """
        with Exchange(self.site.channel, job.call, job.settings) as exchange:
            call = MappedCall(self, job, task, source, target, exchange)
            if self.moved:
                call.refuse()
                return None
            return call.one_shot() if task.nbytes <= SMALL_BYTES else call.direct()

    def wait(self, what: str) -> None:
        """Have the host wait for all that the device was given, and for the caller's stream."""
        self.site.queue.record(self.event, COMPUTE)
        self.site.queue.await_event(self.event, what)

    def show(self, name: str, address: int, nbytes: int) -> tuple[int, list[int]]:
        """Return how peers find memory, and its address; in its place, such as can be shared.

        Parameters
        ----------
        name : str
            Of that other memory.
        address, nbytes : int
            Of the memory.
        """
        shown = self.exports.show(address, nbytes)
        if shown is None:
            address = self.site.memory.block(name, nbytes).ctypes.data
            shown = self.exports.show(address, nbytes)
        if shown is None:
            message = "memory of this GPU cannot be shared between processes any more"
            raise CudaError(message)
        return address, shown.numbers()

    def turn_over(self) -> None:
        """Go on to the other half of the blocks, when all ranks have stored to this one."""
        self.half = (self.half + SMALL_BYTES) % (HALVES * SMALL_BYTES)

    def go_without(self, rank: int, code: int) -> None:
        """Take other ways from now on, since a rank could not open memory. All ranks do."""
        self.peers.why_not = f"rank {rank}: {outcomes.describe(code)}"
        self.mappings.close()

    def close(self) -> None:
        """Let go of what is open. Nothing may be under way in it."""
        self.mappings.close()
        if not self.moved:
            self.peers.close(self.site.device)

    def destroy(self) -> None:
        """Give the rest back, when peers have let go of it."""
        if not self.moved:
            self.peers.block = None
        if self.event:
            self.site.device.destroy_event(self.event)

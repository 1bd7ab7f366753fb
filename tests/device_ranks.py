"""Ranks that are threads and have their vectors in the memory of fake CUDA devices.

The transport tells the fake when messages use memory, so that it finds what is not ordered.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from host_kernels import HostCompiler
from local_ranks import CountingTransport, outcomes

from hpccoll.algorithms import find
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.kernels import Kernels
from hpccoll.cuda.site import Site
from hpccoll.cuda.terms import Terms
from hpccoll.engine import SOURCE, TARGET
from hpccoll.local_transport import LocalRanks, LocalRequest
from hpccoll.ops import OPERATIONS
from hpccoll.pattern import NO_OPERATION, Pattern
from hpccoll.reduction import find_reduction, without_loops
from hpccoll.task import Task


class CheckedRequest(LocalRequest):
    """A request that tells the fake from when to when it uses memory."""

    fake: FakeCuda

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        text = f"a {'send' if self.is_send else 'receive'} on {self.route}"
        writes = not self.is_send
        self.accesses = self.fake.host_begins(self.address, self.nbytes, writes=writes, text=text)
        super().Start()

    def Test(self, status: Any = None) -> bool:  # noqa: N802 - mpi4py's name
        done = super().Test(status)
        if done:
            self.fake.host_ends(getattr(self, "accesses", []))
        return done

    def Cancel(self) -> None:  # noqa: N802 - mpi4py's name
        super().Cancel()
        self.fake.host_ends(getattr(self, "accesses", []))


class CheckedTransport(CountingTransport):
    """Makes such requests."""

    def __init__(self, world: LocalRanks, rank: int, fake: FakeCuda) -> None:
        super().__init__(world, rank)
        self.fake = fake

    def _checked(self, request: LocalRequest) -> LocalRequest:
        request.__class__ = CheckedRequest
        request.fake = self.fake
        return request

    def send_request(self, address, nbytes, peer, tag):
        return self._checked(super().send_request(address, nbytes, peer, tag))

    def receive_request(self, address, nbytes, peer):
        return self._checked(super().receive_request(address, nbytes, peer))


class DeviceRank:
    """One rank: a site without a communicator, which makes plans of messages."""

    def __init__(
        self, world: LocalRanks, rank: int, fake: FakeCuda, *, staged: bool, devices: int = 1
    ) -> None:
        self.rank, self.size, self.fake = rank, world.size, fake
        self.transport = CheckedTransport(world, rank, fake)
        self.device = get_device(rank % devices)
        channel: Any = SimpleNamespace(
            rank=rank,
            size=world.size,
            clock=self.transport.clock,
            transport=self.transport,
            meeting=SimpleNamespace(region=0, node=None),
        )
        self.site = Site(channel, self.device, Terms(staged=staged, reduce="device", maps=False))
        self.site.kernels = Kernels(self.device, HostCompiler())
        self.stream = fake.new_stream(self.device.number)

    def array(self, values: np.ndarray) -> FakeArray:
        """Return an array that this rank's stream has yet to fill."""
        made = FakeArray(values.shape, values.dtype, self.device.number, self.stream)
        return made.fill(values)

    def task(
        self,
        pattern: Pattern,
        algorithm: str,
        op: str,
        count: int,
        dtype: Any,
        segment_bytes: int | None,
    ) -> Task:
        """Return what is to be done."""
        dtype = np.dtype(dtype)
        reduction = without_loops(dtype)
        if pattern.reduces:
            reduction = find_reduction(OPERATIONS[op], dtype, self.size)
        name = op if pattern.reduces else NO_OPERATION
        entry = find(algorithm, pattern.collective)
        return Task(pattern.collective, entry, name, reduction, count, segment_bytes, None, pattern)

    def run(self, task: Task, x: FakeArray | None, out: FakeArray | None) -> Any:
        """Run a plan as a site does, on contiguous arrays; None as of `Rank.collective`."""
        target = 0 if out is None else out.address
        source = target if x is None else x.address
        with self.device:
            self.site.queue.follow(self.stream)
            where = (source, target)
            if self.site.staged:  # as a channel does
                where = (TARGET if x is None else SOURCE, TARGET)
            plan = self.site.make_plan(task, *where)
            plan.run(source + plan.own_offset if x is None else source, target)
            self.site.queue.lead(self.stream)
        return plan


def run(fake: FakeCuda, size: int, job: Any, *, staged: bool, devices: int = 1) -> list[Any]:
    """Run ``job(rank)`` on ranks with devices; return what each returned, or raise what one did."""

    def with_device(rank: Any) -> Any:
        made = DeviceRank(rank.transport.world, rank.rank, fake, staged=staged, devices=devices)
        try:
            return job(made)
        finally:
            made.site.close()

    results = outcomes(size, with_device, time_limit=30.0)
    for number, result in enumerate(results):
        if isinstance(result, Exception):
            raise AssertionError(f"rank {number} of {size}: {result!r}") from result
    return results

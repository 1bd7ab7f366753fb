"""Calls on device memory that the host reduces: segments come down, are combined, and go up.

The vector goes through pinned memory that ranks of a node share, so that nothing is copied there
twice. While one segment is combined by a collective of the host, the next ones come down and the
last ones go up.
"""

from typing import TYPE_CHECKING

from hpccoll._device import DOWN, UP
from hpccoll.buffers import Array
from hpccoll.calls import Call, call_of
from hpccoll.chunks import Range, segments
from hpccoll.jobs import Job

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site

SEGMENT_BYTES = 4 << 20
"""What comes down, is combined, or goes up at once: so much that to wait for it costs little."""

SLOTS = 3
"""Segments in pinned memory: one for each of the three."""

BY_ELEMENT = ("allreduce", "reduce", "broadcast")
"""Collectives that can be made of one for each segment of the vector."""


def run_on_host(site: "Site", job: Job, source: Array | None, target: Array | None) -> Call:
    """Run a call in the host's memory.

    Parameters
    ----------
    site : Site
        The device, which is current, and the channel.
    job : Job
        The call.
    source, target : DeviceArray or None
        Contiguous: what this rank brings and what it wants; the same for a call in place.
    """
    if job.pattern.collective in BY_ELEMENT:
        limit = max(1, SEGMENT_BYTES // job.dtype.itemsize)
        parts = list(segments(Range(0, job.count), limit)) or [Range(0, 0)]
    else:
        parts = [Range(0, job.count)]
    pipeline = _Pipeline(site, job, source, target, parts)
    for number in range(len(parts) + SLOTS):
        if number >= SLOTS:
            pipeline.combine(number - SLOTS)
            pipeline.up(number - SLOTS)
        if number < len(parts):
            pipeline.down(number)
    return pipeline.call()


class _Pipeline:
    """The segments of one call, each on its way down, combined, and on its way up."""

    def __init__(
        self,
        site: "Site",
        job: Job,
        source: Array | None,
        target: Array | None,
        parts: list[Range],
    ) -> None:
        self.site, self.job, self.parts = site, job, parts
        self.source, self.target = source, target
        self.by_element = job.pattern.collective in BY_ELEMENT
        rank, size = site.channel.rank, site.channel.size
        self.brings = job.pattern.brings(rank, size, job.count)
        self.wants = job.pattern.wants(rank, size, job.count)
        itemsize = job.dtype.itemsize
        nbytes = max(part.count for part in parts) * itemsize
        self.slots = [
            site.pinned.block(f"segment {number}", nbytes)
            for number in range(min(SLOTS, len(parts)))
        ]
        self.calls: list[Call] = []
        self.result: Array | None = None

    def _slot(self, number: int) -> Array:
        count, dtype = self.parts[number].count, self.job.dtype
        return self.slots[number % SLOTS][: count * dtype.itemsize].view(dtype)

    def down(self, number: int) -> None:
        """Copy what this rank brings of a segment to its slot, when that is free."""
        part, queue, slot = self.parts[number], self.site.queue, self._slot(number)
        if number >= SLOTS:
            queue.wait_for(self.site.up_events[number % SLOTS], DOWN)
        if self.source is not None and self.brings.count:
            source = self.source.reshape(-1)
            if self.by_element:
                source = source[part.start : part.stop]
            elif self.job.pattern.collective == "allgather":
                slot = slot[slice(*self.brings)]
                source = source[slice(*self.brings)] if self.job.x is None else source
            queue.copy(slot.ctypes.data, source.ctypes.data, slot.nbytes, DOWN)
        queue.record(self.site.down_events[number % SLOTS], DOWN)

    def combine(self, number: int) -> None:
        """Wait until a segment is down, and have the host do the collective on it."""
        job, slot = self.job, self._slot(number)
        self.site.queue.await_event(
            self.site.down_events[number % SLOTS], f"{job.call}: a copy to the host"
        )
        x, out = self._operands(slot)
        count = self.parts[number].count
        inner = Job(job.call, job.settings, job.pattern, job.operation, x, out, job.names, count)
        self.calls.append(call_of(inner.run(self.site.channel)))
        self.result = out

    def _operands(self, slot: Array) -> tuple[Array | None, Array | None]:
        """Return input and output of the host's collective, as a `Job` has them."""
        pattern, channel = self.job.pattern, self.site.channel
        if pattern.collective == "reduce_scatter":
            nbytes = self.wants.count * slot.dtype.itemsize
            out = self.site.pinned.block("chunk", nbytes)[:nbytes].view(slot.dtype)
            return slot, out
        # Also of an empty vector.
        if pattern.wants(channel.rank, channel.size, channel.size).count:
            return None, slot
        return slot, None

    def up(self, number: int) -> None:
        """Copy what this rank wants of a segment from its slot, or from the chunk."""
        part, queue = self.parts[number], self.site.queue
        if self.target is not None and self.result is not None and self.wants.count:
            target = self.target.reshape(-1)
            if self.by_element:
                target = target[part.start : part.stop]
            queue.copy(target.ctypes.data, self.result.ctypes.data, self.result.nbytes, UP)
        queue.record(self.site.up_events[number % SLOTS], UP)

    def call(self) -> Call:
        """Return what the calls of all segments did together."""
        counted = (
            "steps",
            "messages_sent",
            "messages_received",
            "bytes_sent",
            "bytes_received",
            "bytes_reduced",
        )
        sums = {name: sum(getattr(call, name) for call in self.calls) for name in counted}
        return self.calls[0]._replace(
            **sums,
            path="host",
            memory=f"{self.site.name}, staged",
            count=self.job.count,
            nbytes=self.job.count * self.job.dtype.itemsize,
            segment_bytes=max(part.count for part in self.parts) * self.job.dtype.itemsize,
            in_place=self.job.x is None,
        )

"""Streams that run late and in any order, and a check that what conflicts is ordered.

Nothing that is submitted runs until the host asks for an event; then streams go on one operation at
a time, in an order drawn at random. That shows in wrong results what was not ordered, now and then.
`Order` does not rely on it: each operation carries a clock of all that is ordered before it (its
stream, events that the stream waited for, and what the host had waited for), so that two accesses
to the same bytes which nothing orders are found whichever runs first.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Access(NamedTuple):
    """Bytes of a region that an operation uses."""

    start: int
    stop: int
    writes: bool
    stream: "Stream"
    number: int
    text: str

    def overlaps(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop


@dataclass(eq=False)
class Stream:
    """A stream of a device."""

    handle: int
    device: int
    name: str
    blocking: bool = False
    waiting: deque = field(default_factory=deque)
    issued: int = 0
    done: int = 0
    clock: dict["Stream", int] = field(default_factory=dict)
    held: bool = False

    def __str__(self) -> str:
        return f"{self.name} of device {self.device}"


class Operation(NamedTuple):
    """What waits in a stream."""

    number: int
    after: list[tuple[Stream, int]]
    action: Callable[[], None] | None


@dataclass(eq=False)
class Event:
    """An event of a device; `point` is what it was recorded behind."""

    handle: int
    device: int
    point: tuple[Stream, int] | None = None
    clock: dict[Stream, int] = field(default_factory=dict)


@dataclass(eq=False)
class HostAccess:
    """Bytes of a region that the host or MPI uses now."""

    start: int
    stop: int
    writes: bool
    text: str


@dataclass(eq=False)
class Region:
    """Memory that the driver knows: of a device, or pinned.

    `accesses` are those that nothing orders before all that comes.
    """

    number: int
    base: int
    nbytes: int
    name: str
    device: int | None = None
    fd: int = -1
    freed: bool = False
    opened: int = 0
    accesses: list[Access] = field(default_factory=list)
    host: list[HostAccess] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} {self.number} ({self.nbytes} bytes)"


class Piece(NamedTuple):
    """Bytes of a region."""

    region: Region
    start: int
    stop: int
    writes: bool


def merge(clock: dict[Stream, int], other: dict[Stream, int]) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def is_before(access: Access, clock: dict[Stream, int]) -> bool:
    return clock.get(access.stream, 0) >= access.number


class Order:
    """All streams of a fake, and what the host knows to be complete.

    The host is one: what one thread has waited for, all know.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.streams: list[Stream] = []
        self.host: dict[Stream, int] = {}
        self.violations: list[str] = []
        self.legacy: dict[int, Stream] = {}

    def add(self, stream: Stream) -> Stream:
        self.streams.append(stream)
        return stream

    def legacy_of(self, device: int) -> Stream:
        """Return the legacy default stream of a device."""
        if device not in self.legacy:
            name = "the legacy default stream"
            self.legacy[device] = self.add(Stream(0, device, name, blocking=True))
        return self.legacy[device]

    def submit(
        self,
        stream: Stream,
        text: str,
        action: Callable[[], None] | None = None,
        pieces: Iterable[Piece] = (),
        after: Iterable[Event] = (),
    ) -> None:
        """Submit an operation, and note what of it nothing orders."""
        points = []
        for event in after:
            points.append(event.point)
            merge(stream.clock, event.clock)
        for other in self._implicit(stream):
            points.append((other, other.issued))
            merge(stream.clock, other.clock)
        merge(stream.clock, self.host)
        stream.issued += 1
        stream.clock[stream] = stream.issued
        for piece in pieces:
            access = Access(
                piece.start, piece.stop, piece.writes, stream, stream.issued, f"{text} on {stream}"
            )
            self._check(piece.region, access)
        stream.waiting.append(Operation(stream.issued, points, action))

    def _implicit(self, stream: Stream) -> list[Stream]:
        """Return the streams that a stream waits for by itself."""
        legacy = self.legacy_of(stream.device)
        if stream is legacy:
            mine = [other for other in self.streams if other.device == stream.device]
            return [other for other in mine if other.blocking and other is not stream]
        return [legacy] if stream.blocking else []

    def _check(self, region: Region, new: Access) -> None:
        clock, kept = new.stream.clock, []
        for old in region.accesses:
            conflicts = old.overlaps(new.start, new.stop) and (old.writes or new.writes)
            if conflicts and not is_before(old, clock):
                self.conflict(region, new.text, new.writes, old.text, old.writes)
            # What is ordered after the new one is ordered after the old one, too.
            covered = new.start <= old.start and old.stop <= new.stop
            if covered and is_before(old, clock) and new.writes >= old.writes:
                continue
            if not is_before(old, self.host):
                kept.append(old)
        for held in region.host:
            overlaps = held.start < new.stop and new.start < held.stop
            if overlaps and (held.writes or new.writes):
                self.conflict(region, new.text, new.writes, held.text, held.writes)
        region.accesses = [*kept, new]

    def conflict(
        self, region: Region, new: str, new_writes: bool, old: str, old_writes: bool
    ) -> None:
        verbs = {True: "writes to", False: "reads"}
        self.violations.append(
            f"{new} {verbs[new_writes]} {region}, which {old} {verbs[old_writes]}, "
            "and nothing orders the two"
        )

    def host_begins(self, piece: Piece, text: str) -> HostAccess:
        """Note that the host begins to use memory, until `host_ends`."""
        region = piece.region
        for old in region.accesses:
            if not old.overlaps(piece.start, piece.stop) or not (old.writes or piece.writes):
                continue
            if not is_before(old, self.host):
                self.conflict(region, text, piece.writes, old.text, old.writes)
        access = HostAccess(piece.start, piece.stop, piece.writes, text)
        region.host.append(access)
        return access

    def in_use(self, region: Region, start: int, stop: int) -> list[str]:
        """Return what may still use a part of a region."""
        used = [
            old.text
            for old in region.accesses
            if old.overlaps(start, stop) and not is_before(old, self.host)
        ]
        return used + [old.text for old in region.host if old.start < stop and start < old.stop]

    def record(self, event: Event, stream: Stream) -> None:
        self.submit(stream, "an event")
        event.point = (stream, stream.issued)
        event.clock = dict(stream.clock)

    def wait(self, stream: Stream, event: Event) -> None:
        if event.point is None:
            self.violations.append(f"{stream} waits for an event that was never recorded")
            return
        self.submit(stream, "a wait", after=[event])

    def query(self, event: Event) -> bool:
        """Let streams go on for a while; tell whether an event is complete."""
        if event.point is None:
            self.violations.append("the host asks for an event that was never recorded")
            return True
        if not self._is_done(event.point):
            self._go_on(event.point)
        if not self._is_done(event.point):
            return False
        merge(self.host, event.clock)
        return True

    def finish(self, stream: Stream) -> None:
        """Run all that is in a stream, with the host waiting for it."""
        event = Event(0, stream.device)
        self.record(event, stream)
        while not self.query(event):
            pass

    @staticmethod
    def _is_done(point: tuple[Stream, int]) -> bool:
        return point[0].done >= point[1]

    def _go_on(self, point: tuple[Stream, int]) -> None:
        needed = self._needed(point)
        if not any(self._is_runnable(stream) for stream in needed):
            if not any(stream.held for stream in needed):
                raise RuntimeError(f"{point[0]} can never go on")
            needed = set(self.streams)
        # All that could run may run, or nothing but what must.
        allowed = self.streams if self.random.random() < 0.5 else needed
        for _ in range(self.random.randrange(4)):
            runnable = [stream for stream in self.streams if stream in allowed]
            runnable = [stream for stream in runnable if self._is_runnable(stream)]
            if not runnable:
                return
            self._step(self.random.choice(runnable))

    def _needed(self, point: tuple[Stream, int]) -> set[Stream]:
        needed: set[Stream] = set()
        points, seen = [point], {}
        while points:
            stream, number = points.pop()
            if stream.done >= number or seen.get(stream, 0) >= number:
                continue
            seen[stream] = number
            needed.add(stream)
            for operation in stream.waiting:
                if operation.number <= number:
                    points += operation.after
        return needed

    def _is_runnable(self, stream: Stream) -> bool:
        if stream.held or not stream.waiting:
            return False
        return all(self._is_done(point) for point in stream.waiting[0].after)

    @staticmethod
    def _step(stream: Stream) -> None:
        operation = stream.waiting.popleft()
        if operation.action:
            operation.action()
        stream.done = operation.number

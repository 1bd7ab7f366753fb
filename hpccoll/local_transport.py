"""Ranks that are threads of one process, for tests: nothing to launch, any number of them."""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Collection

from hpccoll._plans import CallClock
from hpccoll.transport import (
    LOOK_BACK,
    Failure,
    Request,
    Word,
    failure_of,
    word_tag,
)

Route = tuple[int, int]
"""Sender and receiver."""

NAP = 200_000
"""Longest nanoseconds between two looks of a thread at its message."""


class LocalRanks:
    """The ranks of one test.

    A message moves when both sides have started it (rendezvous), so that a program that leans on
    buffering inside MPI hangs here, and is ended by the time limit.

    Parameters
    ----------
    size : int
        Number of ranks.
    time_limit : float
        Seconds that one wait may take.
    """

    def __init__(self, size: int, time_limit: float = 20.0) -> None:
        self.size = size
        self.time_limit = time_limit
        self.changed = threading.Condition()
        self.sends: dict[Route, deque[LocalRequest]] = {}
        self.receives: dict[Route, deque[LocalRequest]] = {}

    def transport(self, rank: int) -> "LocalTransport":
        """Return the transport of one rank."""
        return LocalTransport(self, rank)

    def start(self, request: "LocalRequest") -> None:
        """Queue a request, and move its data if the peer has started the other half."""
        with self.changed:
            route = request.route
            queues = self.sends if request.is_send else self.receives
            queues.setdefault(route, deque()).append(request)
            sends, receives = self.sends.get(route), self.receives.get(route)
            while sends and receives:
                send, receive = sends.popleft(), receives.popleft()
                receive.came, receive.came_tag = send.nbytes, send.tag
                ctypes.memmove(receive.address, send.address, min(send.nbytes, receive.nbytes))
                send.active = receive.active = False
            self.changed.notify_all()


class LocalTruncationError(Exception):
    """More came than there is room for."""


class LocalStatus:
    """What a receive tells about the message that came."""

    count = 0
    tag = 0

    def Get_tag(self) -> int:  # noqa: N802 - mpi4py's name
        """Return the tag."""
        return self.tag

    def Get_count(self, datatype: object = None) -> int:  # noqa: N802 - mpi4py's name
        """Return the number of bytes."""
        return self.count


class LocalRequest:
    """A persistent send or receive between two threads."""

    def __init__(
        self, world: LocalRanks, address: int, nbytes: int, route: Route, tag: int | None
    ) -> None:
        self.world = world
        self.address = address
        self.nbytes = nbytes
        self.route = route
        self.tag = tag or 0
        self.is_send = tag is not None
        self.active = False
        self.came = nbytes
        self.came_tag = 0
        self.started = 0.0

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        """Begin the transfer."""
        assert not self.active, "started twice"
        self.active = True
        self.came_tag = 0
        self.started = time.monotonic()
        self.world.start(self)

    def Test(self, status: LocalStatus | None = None) -> bool:  # noqa: N802 - mpi4py's name
        """Return whether the transfer is complete; it is where none was started."""
        if self.active:
            if time.monotonic() - self.started > self.world.time_limit:
                raise self.hangs()
            return False
        if status is not None:
            status.count = self.came
            status.tag = self.came_tag
        if self.came > self.nbytes:
            message = f"{self.came} bytes came, room for {self.nbytes}"
            raise LocalTruncationError(message)
        return True

    def hangs(self) -> TimeoutError:
        """Return the error of a wait without an end."""
        kind = "send" if self.is_send else "receive"
        return TimeoutError(f"{kind} of {self.nbytes} bytes on {self.route} hangs")

    def Cancel(self) -> None:  # noqa: N802 - mpi4py's name
        """Take back a receive that nothing has come for."""
        with self.world.changed:
            if self.active:
                self.world.receives[self.route].remove(self)
                self.active = False

    def Free(self) -> None:  # noqa: N802 - mpi4py's name
        """Give the request back."""


class LocalTransport:
    """One rank of a `LocalRanks`."""

    def __init__(self, world: LocalRanks, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size
        self.byte = None
        self.clock = CallClock()
        self.silent: set[int] = set()
        self.nap = NAP
        self.test_function = 0
        self.tag_limit = 1 << 28

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""
        route = (self.rank, peer)
        return LocalRequest(self.world, address, nbytes, route, tag)

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`, with any tag."""
        route = (peer, self.rank)
        return LocalRequest(self.world, address, nbytes, route, None)

    def new_status(self) -> LocalStatus:
        """Return an object to hand to ``Test``, which tells what came."""
        return LocalStatus()

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""
        return isinstance(error, LocalTruncationError)

    def handle(self, thing: object) -> int:
        """Return 0: nothing takes it."""
        return 0

    def error(self, code: int, peer: int) -> Exception:
        """Return an exception that nobody asks for."""
        return RuntimeError(code)

    def told(self, tag: int) -> Failure | None:
        """Note the tag of a message that came; return what its sender says if it has given up."""
        failure = failure_of(tag)
        if failure is Failure.LOST:
            self.clock.lose()
        return failure

    def word(self) -> Word | None:
        """Return who has given up this call, or one shortly before, as far as has come here."""
        numbers = range(self.clock.number - LOOK_BACK, self.clock.number + 1)
        tags = {word_tag(failure, number) for number in numbers for failure in Failure}
        with self.world.changed:
            for peer in range(self.size):
                for send in self.world.sends.get((peer, self.rank), ()):
                    failure = failure_of(send.tag)
                    if failure is not None and send.tag in tags:
                        return Word(peer, failure)
        return None

    def give_up(
        self,
        active: list[LocalRequest],
        told_by: Collection[int],
        failure: Failure,
        patience: float,
    ) -> tuple[int, ...]:
        """End a call that failed: tell all other ranks, and take in what they still send."""
        self.silent = set(range(self.size)) - {self.rank, *told_by}
        # Before the others are told: what they send in their next call must not land here.
        for request in active:
            request.Cancel()
            if self.told(request.came_tag) is not None:
                self.silent.discard(request.route[0])
        for peer in range(self.size):
            if peer != self.rank:
                self.send_request(0, 0, peer, word_tag(failure, self.clock.number)).Start()
        with self.world.changed:
            self.world.changed.wait_for(self._all_heard, patience)
            return tuple(sorted(self.silent))

    def settle(self) -> None:
        """Wait until all others have given up the call that failed here."""
        with self.world.changed:
            if not self.world.changed.wait_for(self._all_heard, self.world.time_limit):
                message = f"ranks {sorted(self.silent)} have not given up"
                raise TimeoutError(message)

    def _all_heard(self) -> bool:
        """Receive, for nothing, what those send that have not given up yet."""
        taken = False
        for peer in list(self.silent):
            sends = self.world.sends.get((peer, self.rank), deque())
            while sends and peer in self.silent:
                send = sends.popleft()
                send.active = False
                taken = True
                if self.told(send.tag) is not None:
                    self.silent.discard(peer)
        if taken:  # else two ranks that wait would wake each other all the time
            self.world.changed.notify_all()
        return not self.silent

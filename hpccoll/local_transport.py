"""Ranks that are threads of one process, for tests: nothing to launch, any number of them."""

import ctypes
import threading
from collections import deque

from hpccoll.transport import Request


class LocalWorld:
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
        self.sends: dict[tuple[int, int], deque[LocalRequest]] = {}
        self.receives: dict[tuple[int, int], deque[LocalRequest]] = {}

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
                receive.came = send.nbytes
                ctypes.memmove(receive.address, send.address, min(send.nbytes, receive.nbytes))
                send.active = receive.active = False
            self.changed.notify_all()


class LocalTruncationError(Exception):
    """More came than there is room for."""


class LocalStatus:
    """What a receive tells about the message that came."""

    count = 0

    def Get_count(self, datatype: object = None) -> int:  # noqa: N802 - mpi4py's name
        """Return the number of bytes."""
        return self.count


class LocalRequest:
    """A persistent send or receive between two threads."""

    def __init__(
        self, world: LocalWorld, address: int, nbytes: int, route: tuple[int, int], is_send: bool
    ) -> None:
        self.world = world
        self.address = address
        self.nbytes = nbytes
        self.route = route
        self.is_send = is_send
        self.active = False
        self.came = nbytes

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        """Begin the transfer."""
        assert not self.active, "started twice"
        self.active = True
        self.world.start(self)

    def Wait(self, status: LocalStatus | None = None) -> None:  # noqa: N802 - mpi4py's name
        """Return when the transfer is complete; at once where none was started."""
        with self.world.changed:
            if not self.world.changed.wait_for(lambda: not self.active, self.world.time_limit):
                kind = "send" if self.is_send else "receive"
                message = f"{kind} of {self.nbytes} bytes on {self.route} hangs"
                raise TimeoutError(message)
        if status is not None:
            status.count = self.came
        if self.came > self.nbytes:
            message = f"{self.came} bytes came, room for {self.nbytes}"
            raise LocalTruncationError(message)

    def Free(self) -> None:  # noqa: N802 - mpi4py's name
        """Give the request back."""


class LocalTransport:
    """One rank of a `LocalWorld`."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size
        self.byte = None

    def send_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""
        return LocalRequest(self.world, address, nbytes, (self.rank, peer), is_send=True)

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`."""
        return LocalRequest(self.world, address, nbytes, (peer, self.rank), is_send=False)

    def send_nothing(self, peer: int) -> Request:
        """Start an empty message, which tells a peer that waits for data that there is none."""
        request = self.send_request(0, 0, peer)
        request.Start()
        return request

    def new_status(self) -> LocalStatus:
        """Return an object to hand to ``Wait``, which tells what came."""
        return LocalStatus()

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""
        return isinstance(error, LocalTruncationError)

"""What moves bytes between two ranks: MPI point-to-point (in tests: `local_transport`).

A transport makes persistent requests. They have the methods of mpi4py's ``Prequest`` that the
executor uses: ``Start``, ``Wait``, ``Test``, ``Cancel`` and ``Free``. Messages between two ranks
arrive in the order they were started; a receive is told how many bytes came, and with which tag.
"""

import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_LIMIT = 1 << 26
"""Most bytes in one message: far below the 2^31 - 1 that an MPI count can hold, whatever the MPI,
and small enough to keep room for one in scratch memory. Tests lower it."""

PATIENCE = 5.0
"""Seconds that a rank whose call failed waits until all others have noticed."""


GRACE = 1.0
"""Seconds that a rank goes on waiting in memory after another one has given up, perhaps the next
call."""

FAILED = 1
"""Tag of a message that says: the sender has given up this call; there is no data."""

FAILED_ON_NODE = 32766
"""Likewise, of a sender that had begun a call through the memory of its node."""

FAILED_TAGS = (FAILED, FAILED_ON_NODE)


def message_tag(operation: str, dtype: str, *, partial: bool, last: bool) -> int:
    """Return the tag of a message with data; receives take any tag, and look.

    It tells operations and types apart, partial values from finished ones, and whether the message
    is the last of its step, so that ranks that disagree notice even where their messages have the
    same size. MPI guarantees tags up to 32767.

    Examples
    --------
    >>> both = (False, True)
    >>> tags = {message_tag("sum", "int32", partial=p, last=last) for p in both for last in both}
    >>> len(tags | set(FAILED_TAGS)), max(tags) < 32768
    (6, True)
    """
    what = f"{operation} {dtype} {'partial' if partial else 'finished'}"
    return 2 + 2 * (zlib.crc32(what.encode()) % 16381) + last


class Request(Protocol):
    """A persistent send or receive."""

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        """Begin the transfer."""

    def Wait(self, status: Any = None) -> Any:  # noqa: N802 - mpi4py's name
        """Return when the transfer is complete; at once where none was started."""

    def Test(self, status: Any = None) -> bool:  # noqa: N802 - mpi4py's name
        """Return whether the transfer is complete."""

    def Cancel(self) -> None:  # noqa: N802 - mpi4py's name
        """Take back a receive that nothing has come for."""

    def Free(self) -> None:  # noqa: N802 - mpi4py's name
        """Give the request back. A local operation."""


class Transport(Protocol):
    """Makes requests; the same on both sides of the test seam."""

    rank: int
    size: int
    byte: Any
    """The datatype of a byte, as ``status.Get_count`` takes it."""
    nap: int
    """Longest nanoseconds to sleep between two looks at a message that has not come; 0: leave
    waiting to MPI, which spins."""
    failed_on_node: bool
    """Another rank has told that it gave up a call through the memory of its node. The reader
    resets it."""

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`, with any tag."""

    def new_status(self) -> Any:
        """Return an object to hand to ``Wait`` and ``Test``, which tells what came."""

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""

    def told(self, tag: int) -> bool:
        """Note the tag of a message that came; return whether its sender has given up."""

    def give_up(self, active: list[Request], told_by: int, on_node: bool = False) -> bool:
        """End a call that failed: tell all other ranks, and take in what they still send.

        A rank that has failed, or was told so, sends `FAILED` to every other one and nothing of
        this call after it. So when that has come from all, nothing is under way any more.

        Parameters
        ----------
        active : list of Request
            Receives that were started and not waited for. They are cancelled.
        told_by : int
            The rank that has told this one already, or -1.
        on_node : bool
            Whether this rank had begun the call through the memory of its node, and tells so.

        Returns
        -------
        bool
            Whether all others have given up within `PATIENCE` seconds. Otherwise `settle` must be
            called before the next message.
        """

    def settle(self) -> None:
        """Wait until all others have given up the call that failed here."""


class MpiTransport:
    """Persistent point-to-point messages on a communicator of our own.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        A private duplicate, used by nobody else: a few constant tags are enough. Freed by `close`.
    """

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.byte = MPI.BYTE
        self.nap = 0
        self.failed_on_node = False
        self._silent: set[int] = set()
        self._failed_since: float | None = None

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Send_init([memory, nbytes, self.byte], peer, tag)

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`, with any tag."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Recv_init([memory, nbytes, self.byte], peer, self._mpi.ANY_TAG)

    def new_status(self) -> Any:
        """Return an object to hand to ``Wait`` and ``Test``, which tells what came."""
        return self._mpi.Status()

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""
        if not isinstance(error, self._mpi.Exception):
            return False
        return error.Get_error_class() == self._mpi.ERR_TRUNCATE

    def told(self, tag: int) -> bool:
        """Note the tag of a message that came; return whether its sender has given up."""
        self.failed_on_node |= tag == FAILED_ON_NODE
        return tag in FAILED_TAGS

    def calls_otherwise(self, late: list[int]) -> int | None:
        """Return a rank that does not come to this call, since it makes another one; or None.

        Parameters
        ----------
        late : list of int
            Ranks that have not come yet: a message from one of them belongs to another call.
        """
        # In any case one look, which also moves what this rank has sent.
        self.comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
        for peer in late:
            if self.comm.Iprobe(peer, self._mpi.ANY_TAG):
                return peer
        status = self._mpi.Status()
        if not any(self.comm.Iprobe(self._mpi.ANY_SOURCE, tag, status) for tag in FAILED_TAGS):
            self._failed_since = None
            return None
        if late:
            return int(status.source)
        # Where all have come, the sender may have failed in the call after this one, which then is
        # about to end here, too.
        now = time.monotonic()
        if self._failed_since is None:
            self._failed_since = now
        return int(status.source) if now - self._failed_since > GRACE else None

    def give_up(self, active: list[Request], told_by: int, on_node: bool = False) -> bool:
        """End a call that failed: tell all other ranks, and take in what they still send."""
        tag = FAILED_ON_NODE if on_node else FAILED
        self._silent = {peer for peer in range(self.size) if peer not in (self.rank, told_by)}
        status = self._mpi.Status()
        # Before the others are told: what they send in their next call must not land here.
        for request in active:
            request.Cancel()
            if self._wait(request, status) and not status.Is_cancelled():
                self._listen(status)
        told = [
            self.comm.Isend([b"", 0, self.byte], peer, tag)
            for peer in range(self.size)
            if peer != self.rank
        ]
        deadline = time.monotonic() + PATIENCE
        while self._silent and time.monotonic() < deadline:
            self._take_in()
        self._mpi.Request.Waitall(told)
        return not self._silent

    def settle(self) -> None:
        """Wait until all others have given up the call that failed here."""
        while self._silent:
            self._take_in()

    def _take_in(self) -> None:
        """Receive, for nothing, what those send that have not given up yet."""
        status = self._mpi.Status()
        for peer in list(self._silent):
            while peer in self._silent and self.comm.Iprobe(peer, self._mpi.ANY_TAG, status):
                rubbish = bytearray(status.Get_count(self.byte))
                self.comm.Recv([rubbish, self.byte], peer, status.tag)
                self._listen(status)
        time.sleep(1e-4)

    def _listen(self, status: "MPI.Status") -> None:
        if self.told(status.tag):
            self._silent.discard(status.source)

    def _wait(self, request: Request, status: "MPI.Status") -> bool:
        """Wait for a receive that may be truncated; return whether it was not."""
        try:
            request.Wait(status)
        except self._mpi.Exception:
            return False
        return True

    def close(self) -> None:
        """Free the communicator. Collective."""
        self.comm.Free()

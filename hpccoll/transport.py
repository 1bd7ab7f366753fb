"""What moves bytes between two ranks: MPI point-to-point (in tests: `local_transport`).

A transport makes persistent requests. They have the methods of mpi4py's ``Prequest`` that the
executor uses: ``Start()``, ``Wait(status=None)`` and ``Free()``. Messages between two ranks arrive
in the order they were started, and a receive is told how many bytes came.
"""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_LIMIT = 1 << 30
"""Most bytes in one message: below the 2^31 - 1 that an MPI count can hold, whatever the MPI.
Tests lower it."""

TAG = 1


class Request(Protocol):
    """A persistent send or receive."""

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        """Begin the transfer."""

    def Wait(self, status: Any = None) -> Any:  # noqa: N802 - mpi4py's name
        """Return when the transfer is complete; at once where none was started."""

    def Free(self) -> None:  # noqa: N802 - mpi4py's name
        """Give the request back. A local operation."""


class Transport(Protocol):
    """Makes requests; the same on both sides of the test seam."""

    rank: int
    size: int
    byte: Any
    """The datatype of a byte, as ``status.Get_count`` takes it."""

    def send_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`."""

    def send_nothing(self, peer: int) -> Request:
        """Start an empty message, which tells a peer that waits for data that there is none."""

    def new_status(self) -> Any:
        """Return an object to hand to ``Wait``, which tells what came."""

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""


class MpiTransport:
    """Persistent point-to-point messages on a communicator of our own.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Used by nobody else, so that one constant tag is enough.
    """

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.byte = MPI.BYTE

    def send_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Send_init([memory, nbytes, self.byte], peer, TAG)

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Recv_init([memory, nbytes, self.byte], peer, TAG)

    def send_nothing(self, peer: int) -> Request:
        """Start an empty message, which tells a peer that waits for data that there is none."""
        return self.comm.Isend([bytearray(), 0, self.byte], peer, TAG)  # type: ignore[return-value]

    def new_status(self) -> Any:
        """Return an object to hand to ``Wait``, which tells what came."""
        return self._mpi.Status()

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""
        if not isinstance(error, self._mpi.Exception):
            return False
        return error.Get_error_class() == self._mpi.ERR_TRUNCATE

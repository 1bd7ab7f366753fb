"""What moves bytes between two ranks: MPI point-to-point (in tests: `local_transport`).

A transport makes persistent requests. They have the methods of mpi4py's ``Prequest`` that the
executor uses: ``Start``, ``Test``, ``Cancel`` and ``Free``. Messages between two
ranks arrive in the order they were started; a receive is told how many bytes came, and with which
tag.
"""

import contextlib
import ctypes
import enum
import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hpccoll._plans import CallClock
from hpccoll.errors import CollectiveTimeoutError, join_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_LIMIT = 1 << 26
"""Most bytes in one message: far below the 2^31 - 1 that an MPI count can hold, whatever the MPI,
and small enough to keep room for one in scratch memory. Tests lower it."""

PATIENCE = 5.0
"""Seconds that a rank whose call failed waits until all others have noticed."""

LOST_PATIENCE = 1.0
"""Likewise, where it has waited for long already: who gives no sign then is not in the call."""

SHORT_PATIENCE = 0.5
"""Likewise, where it was interrupted."""

TAGS = 1 << 15
"""MPI guarantees tags below this."""

NUMBERS = 64
"""A call's number is told modulo this; no rank is ahead of another by half as many."""

TEXT_BYTES = 256
"""Of what a rank tells about its call."""

LOOK_BACK = NUMBERS // 2 - 1
"""Calls before this one in which another rank may have failed without this one's noticing: who only
sends may have come far. Words are taken in before the next call that all agree on."""


class Failure(enum.IntEnum):
    """Why a rank has given up a call, as it tells the others."""

    DISAGREES = 0
    """Another message came than it expected, or it was interrupted: all can go on later."""
    LOST = 1
    """It has waited too long, or MPI failed: nobody can go on."""


class Word(NamedTuple):
    """What a rank has told."""

    rank: int
    failure: Failure


KIND_BITS = 13
"""Of a message: three for the collective, four for the operation, five for the type, and one."""

MOST_INDEX_BITS = 6
"""Messages between two ranks are told apart by their order modulo 64."""

FIRST_WORD = TAGS - len(Failure) * NUMBERS
"""Tags from here on say that the sender has given up a call; there is no data."""


def word_tag(failure: Failure, number: int) -> int:
    """Return the tag of a message that says: the sender has given up this call."""
    return FIRST_WORD + len(Failure) * (number % NUMBERS) + failure


def failure_of(tag: int) -> Failure | None:
    """Return what a tag says of its sender; None for data, whose tags are others.

    Examples
    --------
    >>> failure_of(word_tag(Failure.LOST, 1000)), failure_of(2)
    (<Failure.LOST: 1>, None)
    """
    return Failure((tag - FIRST_WORD) % len(Failure)) if FIRST_WORD <= tag < TAGS else None


def message_tag(kind: int, salt: int, index: int, *, last: bool, limit: int) -> int:
    """Return the tag of a message with data; receives take any tag, and look.

    Messages of different kinds never have the same one; where tags are long enough, it tells also
    the order of messages between two ranks, so that one that is missing or came twice is noticed.

    Parameters
    ----------
    kind : int
        Below 2 ** `KIND_BITS`: collective, operation, type, and whether values are partial.
    salt : int
        What else must be equal on both sides.
    index : int
        How many messages go from the sender to the receiver before, in this call.
    last : bool
        Whether it is the last one of its step.
    limit : int
        Tags are below this, a power of two.

    Examples
    --------
    >>> tags = {message_tag(5, 0, k, last=last, limit=1 << 28) for k in (0, 1) for last in (0, 1)}
    >>> len(tags), max(tags) < 1 << 28, min(tags) >= TAGS
    (4, True, True)
    >>> message_tag(5, 7, 3, last=True, limit=TAGS) < FIRST_WORD
    True
    """
    least = KIND_BITS + 1
    spare = limit.bit_length() - 2 - least  # without the bit that lifts it above all words
    tag = 2 * kind + last
    if spare <= 0:
        return tag
    index_bits = min(MOST_INDEX_BITS, (spare + 1) // 2)
    salt_bits = min(MOST_INDEX_BITS, spare - index_bits)
    more = (salt % (1 << salt_bits)) << index_bits | index % (1 << index_bits)
    return 1 << (least + index_bits + salt_bits) | more << least | tag


class Request(Protocol):
    """A persistent send or receive."""

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        """Begin the transfer."""

    def Test(self, status: Any = None) -> bool:  # noqa: N802 - mpi4py's name
        """Return whether the transfer is complete; it is where none was started."""

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
    clock: CallClock
    """Of all calls that go this way, or through memory beside it."""
    nap: int
    """Longest nanoseconds to sleep between two looks at a message that has not come; 0: look all
    the time."""
    tag_limit: int
    """Tags are below this, a power of two."""
    test_function: int
    """Address of a C function ``int (void *request, int *flag, void *status)`` that tells whether a
    transfer is complete; 0: requests have to be asked by ``Test``. A result that is not 0 is an
    error, for `error`."""

    def handle(self, thing: Any) -> int:
        """Return the address that `test_function` takes for a request, or for a status."""

    def error(self, code: int, peer: int) -> Exception:
        """Return the exception for what `test_function` returned of a message to or from `peer`."""

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`, with any tag."""

    def new_status(self) -> Any:
        """Return an object to hand to ``Test``, which tells what came."""

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""

    def told(self, tag: int) -> Failure | None:
        """Note the tag of a message that came; return what its sender says if it has given up."""

    def word(self) -> Word | None:
        """Return who has given up this call, or one shortly before, as far as has come here."""

    def give_up(
        self, active: list[Request], told_by: Collection[int], failure: Failure, patience: float
    ) -> tuple[int, ...]:
        """End a call that failed: tell all other ranks, and take in what they still send.

        A rank that has failed, or was told so, tells every other one and sends nothing of this
        call after it. So when that has come from all, nothing is under way any more.

        Parameters
        ----------
        active : list of Request
            Receives that were started and not waited for. They are cancelled.
        told_by : collection of int
            The ranks whose words were received already.
        failure : Failure
            What to tell.
        patience : float
            Seconds to wait for the others.

        Returns
        -------
        tuple of int
            The ranks that have not given up in that time. If there are any, `settle` must be called
            before the next message.
        """

    def settle(self) -> None:
        """Wait until all others have given up the call that failed here.

        Raises
        ------
        CollectiveTimeoutError
            When the time limit is over.
        """


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
        self.clock = CallClock()
        self.nap = 0
        self.test_function = _find_test()
        highest = comm.Get_attr(MPI.TAG_UB) or TAGS - 1
        self.tag_limit = 1 << ((highest + 1).bit_length() - 1)
        self._silent: set[int] = set()
        self._unfinished: list[object] = []
        """What MPI may still use."""

    def handle(self, thing: Any) -> int:
        """Return the address that `test_function` takes for a request, or for a status."""
        return self._mpi._addressof(thing)

    def error(self, code: int, peer: int) -> Exception:
        """Return the exception for what `test_function` returned; Python 3.11 shows its note.

        MPI moves other messages on meanwhile, and what it says may be about one of these.
        """
        error: Exception = self._mpi.Exception(code)
        if hasattr(error, "add_note"):
            error.add_note(f"rank {self.rank} was waiting for a message to or from rank {peer}")
        return error

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> Request:
        """Return a request that sends `nbytes` bytes at `address`."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Send_init([memory, nbytes, self.byte], peer, tag)

    def receive_request(self, address: int, nbytes: int, peer: int) -> Request:
        """Return a request that receives at most `nbytes` bytes at `address`, with any tag."""
        memory = self._mpi.buffer.fromaddress(address, nbytes)
        return self.comm.Recv_init([memory, nbytes, self.byte], peer, self._mpi.ANY_TAG)

    def new_status(self) -> Any:
        """Return an object to hand to ``Test``, which tells what came."""
        return self._mpi.Status()

    def is_truncation(self, error: Exception) -> bool:
        """Whether the error of a receive says that more came than there is room for."""
        if not isinstance(error, self._mpi.Exception):
            return False
        return error.Get_error_class() == self._mpi.ERR_TRUNCATE

    def told(self, tag: int) -> Failure | None:
        """Note the tag of a message that came; return what its sender says if it has given up."""
        failure = failure_of(tag)
        if failure is Failure.LOST:  # whatever this rank has failed by
            self.clock.lose()
        return failure

    def word(self) -> Word | None:
        """Return who has given up this call, or one shortly before, as far as has come here."""
        status = self._mpi.Status()
        if not self.comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG):
            return None  # as nearly always
        for number in range(self.clock.number - LOOK_BACK, self.clock.number + 1):
            for failure in Failure:
                if self.comm.Iprobe(self._mpi.ANY_SOURCE, word_tag(failure, number), status):
                    return Word(status.source, failure)
        return None

    def calls_otherwise(self, late: list[int]) -> Word | None:
        """Return who does not come to this call, since it makes another one or has given up.

        Parameters
        ----------
        late : list of int
            Ranks that have not come yet: a message from one of them belongs to another call.
        """
        # In any case one look, which also moves what this rank has sent.
        status = self._mpi.Status()
        word = self.word()
        # Who disagrees after it has come says so in memory: then this rank sees why.
        if word is not None and (word.failure is Failure.LOST or word.rank in late):
            return word
        status = self._mpi.Status()
        for peer in late:
            if self.comm.Iprobe(peer, self._mpi.ANY_TAG, status):
                # A word may have come just now.
                return Word(peer, self.told(status.tag) or Failure.DISAGREES)
        return None

    def give_up(
        self, active: list[Request], told_by: Collection[int], failure: Failure, patience: float
    ) -> tuple[int, ...]:
        """End a call that failed: tell all other ranks, and take in what they still send."""
        deadline = time.monotonic() + patience
        self._silent = set(range(self.size)) - {self.rank, *told_by}
        status = self._mpi.Status()
        # Before the others are told: what they send in their next call must not land here.
        for request in active:
            with contextlib.suppress(self._mpi.Exception):  # of a request that MPI has failed
                request.Cancel()
                if self._wait(request, status, deadline) and not status.Is_cancelled():
                    self._listen(status)
        tag = word_tag(failure, self.clock.number)
        words = []
        for peer in range(self.size):
            if peer != self.rank:
                with contextlib.suppress(self._mpi.Exception):  # of a peer that is dead
                    words.append(self.comm.Isend([b"", 0, self.byte], peer, tag))
        while self._silent and time.monotonic() < deadline:
            self._take_in()
        for word in words:
            if not self._wait(word, status, deadline):
                self._unfinished.append(word)
        return tuple(sorted(self._silent))

    def settle(self) -> None:
        """Wait until all others have given up the call that failed here."""
        start = time.monotonic_ns()
        while self._silent:
            self._take_in()
            if 0 < self.clock.limit < time.monotonic_ns() - start:
                message = f"{join_ranks(sorted(self._silent))} did not end the call that failed"
                self.lose("ranks did not come to the call after one that failed")
                raise CollectiveTimeoutError(message)

    def gather_texts(self, text: str) -> list[str]:
        """Return a text of each rank; long ones are cut. Collective."""
        told = bytearray(TEXT_BYTES * self.size)
        mine = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES)
        request = self.comm.Iallgather([mine, self.byte], [told, self.byte])
        self.finish(request, (mine, told), PATIENCE)
        parts = (told[k : k + TEXT_BYTES] for k in range(0, len(told), TEXT_BYTES))
        return [part.decode(errors="replace").rstrip() for part in parts]

    def finish(self, request: "MPI.Request", buffers: object, patience: float = math.inf) -> None:
        """Wait for a collective that all ranks come to.

        What ends the wait before, leaves it under way: then no call can be made any more, and the
        others are told so.

        Parameters
        ----------
        request : mpi4py.MPI.Request
            Of the collective.
        buffers : object
            What it writes to, and reads from.
        patience : float
            Seconds to wait, if there is no time limit.

        Raises
        ------
        CollectiveTimeoutError
            Others have not come in time, or have given up for good.
        """
        limit = self.clock.limit / 1e9 or patience
        start = time.monotonic()
        nap = 1e-5
        try:
            while not request.Test():
                time.sleep(nap)
                nap = min(2 * nap, 1e-3)
                word = self.word() if nap == 1e-3 else None
                if word is not None and word.failure is Failure.LOST:
                    raise CollectiveTimeoutError(f"rank {word.rank} has given up for good")
                if time.monotonic() - start > limit:
                    message = "not all ranks came to what follows a call that failed"
                    raise CollectiveTimeoutError(message)
        except BaseException:
            self._unfinished.append((request, buffers))
            self.lose(f"what follows call {self.clock.number} was given up")
            raise

    def lose(self, why: str) -> None:
        """Note why no call can be made any more, if that is not known yet, and tell the others."""
        self.clock.broken = self.clock.broken or why
        self.give_up([], (), Failure.LOST, 0.0)

    def _take_in(self) -> None:
        """Receive, for nothing, what those send that have not given up yet."""
        status = self._mpi.Status()
        for peer in list(self._silent):
            while peer in self._silent and self.comm.Iprobe(peer, self._mpi.ANY_TAG, status):
                rubbish = bytearray(status.Get_count(self.byte))
                entry = (self.comm.Irecv([rubbish, self.byte], peer, status.tag), rubbish)
                self._unfinished.append(entry)  # the sender may be gone, or this be interrupted
                if not self._wait(entry[0], status, time.monotonic() + SHORT_PATIENCE):
                    break
                self._unfinished.remove(entry)
                self._listen(status)
        time.sleep(1e-4)

    def _listen(self, status: "MPI.Status") -> None:
        if self.told(status.tag) is not None:
            self._silent.discard(status.source)

    def _wait(
        self, request: "Request | MPI.Request", status: "MPI.Status", deadline: float
    ) -> bool:
        """Wait for a transfer that may fail; return whether it did not."""
        try:
            while not request.Test(status):
                if time.monotonic() > deadline:  # the other end may be gone
                    return False
                time.sleep(1e-5)
        except self._mpi.Exception:
            return False
        return True

    def come_together(self, patience: float) -> bool:
        """Return whether all ranks have come to this within so many seconds. Collective."""
        barrier = self.comm.Ibarrier()
        if self._wait(barrier, self._mpi.Status(), time.monotonic() + patience):
            return True
        self._unfinished.append(barrier)
        return False

    def close(self) -> None:
        """Free the communicator. Collective."""
        self.comm.Free()


def _find_test() -> int:
    """Return the address of the MPI_Test that mpi4py calls, or 0.

    It takes nothing but pointers, whatever the MPI. The library is loaded: nothing is linked here.
    """
    from mpi4py import MPI

    try:
        test = ctypes.CDLL(MPI.__file__).MPI_Test
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(test, ctypes.c_void_p).value or 0

"""Objects that hang on the user's communicators, as MPI attributes, and go when these are freed."""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from mpi4py import MPI

from hpccoll.forks import is_forked, refuse_forked


class Closable(Protocol):
    """What can hang on a communicator."""

    is_open: bool
    """Whether it can be used."""

    def open(self, call: str, timeout: float | None) -> None:
        """Make it ready. Collective, with a time limit."""

    def close(self) -> None:
        """Give everything back. Collective, as the ``Free`` that leads here is."""


Attached = TypeVar("Attached", bound=Closable)


class Attachment(Generic[Attached]):
    """Objects of one kind that hang on communicators, one each, as MPI attributes.

    Parameters
    ----------
    make : callable
        ``make(comm)`` makes one.
    """

    def __init__(self, make: Callable[[MPI.Intracomm], Attached]) -> None:
        self._make = make
        self._keyval = MPI.KEYVAL_INVALID
        self._bookkeeping = threading.Lock()
        self._creations: dict[int, threading.Lock] = {}

    def find(self, comm: MPI.Intracomm) -> Attached | None:
        """Return what hangs on a communicator, or None. A local call."""
        if self._keyval == MPI.KEYVAL_INVALID:
            return None
        return comm.Get_attr(self._keyval)  # type: ignore[return-value]

    def of(self, comm: MPI.Intracomm, call: str, timeout: float | None = None) -> Attached:
        """Return what hangs on a communicator, ready for use; make it if it is not there.

        Raises
        ------
        RuntimeError
            In a forked child; the text names the `call`.
        """
        refuse_forked(call)
        with self._bookkeeping:
            if self._keyval == MPI.KEYVAL_INVALID:
                # Without a copy function, a duplicate of the communicator starts without one.
                self._keyval = MPI.Comm.Create_keyval(copy_fn=None, delete_fn=_freed)
        found = self.find(comm)
        if found is not None and found.is_open:
            return found
        # One lock per communicator, since it may be held while other ranks are waited for: threads
        # may come with their communicators in another order there.
        handle = MPI._handleof(comm)
        with self._bookkeeping:
            creation = self._creations.setdefault(handle, threading.Lock())
        with creation:
            found = self.find(comm)
            if found is None:
                found = self._make(comm)
                comm.Set_attr(self._keyval, found)
            if not found.is_open:
                try:
                    found.open(call, timeout)
                except ValueError:  # that of all ranks; nothing is left
                    comm.Delete_attr(self._keyval)
                    raise
        with self._bookkeeping:
            self._creations.pop(handle, None)
        return found


def _freed(comm: MPI.Comm, keyval: int, attached: Closable) -> None:
    # Predefined communicators are never freed by a user; what comes here is MPI_Finalize, in which
    # MPI takes its duplicates down itself.
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF) and not is_forked():
        postponed: list[Closable] | None = getattr(_of_thread, "postponed", None)
        if postponed is None:
            attached.close()
        else:
            postponed.append(attached)


_of_thread = threading.local()


def postpone_closing() -> list[Closable]:
    """Return a list in which what is to be closed in this thread is put instead.

    MPICH frees a communicator that is being duplicated when that is done, in the middle of a call
    of whoever finds it done.
    """
    postponed: list[Closable] = []
    _of_thread.postponed = postponed
    return postponed

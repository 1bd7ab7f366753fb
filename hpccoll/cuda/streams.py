"""The caller's stream: which one it is, and how a call is put in order with it.

A call reads what the caller's stream had been given when the call was made, and what is given to
that stream after the call finds its result. The stream is, in this order:

* `stream=`, where it is given;
* of a torch tensor, torch's current stream on the tensor's device; of a CuPy array, CuPy's;
* the stream that ``__cuda_array_interface__`` names;
* else the legacy default stream.
"""

import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from hpccoll.cuda import driver as drivers
from hpccoll.errors import CudaError

LEGACY = 1
"""CUDA's handle of the legacy default stream, which 0 stands for, too."""

PER_THREAD = 2
"""CUDA's handle of the default stream of the calling thread."""

NAP = 20e-6
"""Seconds between two looks whether an event has come."""

CHOICES = (
    "wanted a handle (int), or a stream of CuPy, torch, Numba or cuda.core (an object with "
    "__cuda_stream__, ptr, cuda_stream or handle)"
)


@dataclass(frozen=True, slots=True)
class GivenStream:
    """What the user passed as `stream`.

    Attributes
    ----------
    handle : int
        CUDA's.
    device : int or None
        The device that it is on, where it says so.
    """

    handle: int
    device: int | None = None


def given_stream(stream: object) -> GivenStream | None:
    """Take what the user passed as `stream`; None for None.

    Parameters
    ----------
    stream : int or stream
        A handle, or an object with ``__cuda_stream__`` (the protocol of cuda.core), ``ptr`` (CuPy),
        ``cuda_stream`` (torch) or ``handle`` (Numba).

    Raises
    ------
    TypeError
        It is none of these.
    ValueError
        The handle is negative.
    """
    if stream is None:
        return None
    handle = _handle(stream)
    if handle < 0:
        message = f"stream is {handle}; wanted the handle of a stream, from 0 on"
        raise ValueError(message)
    device = getattr(stream, "device_index", getattr(stream, "device_id", None))
    # CuPy has -1 where it does not know.
    known = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    return GivenStream(handle or LEGACY, device if known else None)


def check_stream(stream: GivenStream, device: int) -> None:
    """Raise ValueError where a stream is none of a device, as far as that shows.

    Parameters
    ----------
    stream : GivenStream
    device : int
        Where the arrays lie.
    """
    if stream.device not in (None, device):
        message = f"stream is one of device {stream.device}, and x lies on device {device}"
        raise ValueError(message)
    try:
        Moment(device, stream.handle).record()
    except CudaError as error:
        message = (
            f"stream is {stream.handle:#x}, which is no stream of device {device}, where x lies, "
            f"or was destroyed ({error})"
        )
        raise ValueError(message) from error


def _handle(stream: object) -> int:
    if not isinstance(stream, bool) and hasattr(stream, "__index__"):
        return operator.index(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version_and_handle = protocol() if callable(protocol) else protocol
        return _number(stream, version_and_handle[1])
    if hasattr(stream, "cuda_stream"):
        return _number(stream, stream.cuda_stream)
    # Events and pointers have attributes of the same names, but not these.
    if hasattr(stream, "ptr") and hasattr(stream, "wait_event"):
        return _number(stream, stream.ptr)
    if hasattr(stream, "handle") and hasattr(stream, "synchronize"):
        return _number(stream, stream.handle)
    return _refuse(stream)


def _number(stream: object, handle: Any) -> int:
    if hasattr(handle, "value"):  # of ctypes
        handle = handle.value
    try:
        return 0 if handle is None else int(handle)
    except (TypeError, ValueError):
        return _refuse(stream)


def _refuse(stream: object) -> NoReturn:
    message = f"stream is {stream!r} of type {type(stream).__name__}; {CHOICES}"
    raise TypeError(message)


class Exported(NamedTuple):
    """What gave its memory by DLPack, and the view that keeps it."""

    x: Any
    view: object


def current_stream(x: object, device: int) -> int:
    """Return the handle of the stream that the work on an array is on, now and in this thread.

    Parameters
    ----------
    x : array or Exported
        In memory of a device, of any library.
    device : int
        That one.
    """
    if isinstance(x, Exported):  # its library sees to the order with a stream that it is told
        x.x.__dlpack__(stream=LEGACY)
        return LEGACY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return int(torch.cuda.current_stream(device).cuda_stream) or LEGACY
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr) or LEGACY
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return LEGACY
    stream = interface.get("stream")
    if stream is None:
        return LEGACY
    if isinstance(stream, bool) or not isinstance(stream, int) or stream <= 0:
        message = (
            f"__cuda_array_interface__ of a {type(x).__name__} has the stream {stream!r}; wanted "
            "None, 1 (the legacy default stream), 2 (that of the thread), or a handle"
        )
        raise ValueError(message)
    return stream


@dataclass(slots=True)
class Moment:
    """What the caller's streams had been given when a call was made: the call comes behind it.

    Attributes
    ----------
    device : int
        On which the call works.
    stream : int
        The caller's stream, as a handle: the call follows it, and leads it.
    others : tuple of int
        Other streams of the caller, where arguments are of several libraries; of a moment that was
        recorded, also those that the runner's stream waits for as they are when it is resumed.
    event : int
        Marks the moment in `stream`, after `record`; else 0.
    """

    device: int
    stream: int
    others: tuple[int, ...] = ()
    event: int = 0

    @contextmanager
    def joined(self) -> "Iterator[Moment]":
        """Have `stream` wait for the other streams, and them for what the body submits to it."""
        for other in self.others:
            order(self.device, first=other, then=self.stream)
        try:
            yield self
        finally:  # also of a call that failed: what it submitted may still be under way
            for other in self.others:
                order(self.device, first=self.stream, then=other)

    def record(self) -> "Moment":
        """Mark the moment by an event, for a call that another thread runs later."""
        device = drivers.get_device(self.device)
        for other in self.others:
            order(self.device, first=other, then=self.stream)
        with device:
            self.event = device.new_event()
            _call("cuEventRecord", self.event, self.stream)
        self.others = ()
        return self

    def resume(self, stream: int) -> "Moment":
        """Return the moment in another stream, which waits for the event; in the thread that runs.

        Parameters
        ----------
        stream : int
            Of the runner's own.
        """
        with drivers.get_device(self.device):
            _call("cuStreamWaitEvent", stream, self.event, 0)
        for other in self.others:
            order(self.device, first=other, then=stream)
        self.release()
        return Moment(self.device, stream)

    def release(self) -> None:
        """Give the event back. It may be under way: CUDA keeps it until then."""
        if self.event:
            device = drivers.get_device(self.device)
            with device:
                device.destroy_event(self.event)
            self.event = 0

    def __del__(self) -> None:
        """Give the event back, of a call that never ran."""
        if self.event and drivers.is_loaded() and drivers.get_driver().usable:
            with suppress(CudaError):  # the context may be broken, or gone
                self.release()


@dataclass(frozen=True, slots=True)
class CallerStreams:
    """Which streams a call is put in order with, each time it is made.

    Attributes
    ----------
    device : int
        On which the call works.
    handles : tuple of int
        Of streams that are known, as that which the user passed.
    owners : tuple of object
        Arrays whose current streams count, too.
    """

    device: int
    handles: tuple[int, ...] = ()
    owners: tuple[object, ...] = ()

    def now(self) -> Moment:
        """Return the moment in this thread."""
        current = [current_stream(owner, self.device) for owner in self.owners]
        first, *others = dict.fromkeys([*self.handles, *current]) or (LEGACY,)
        return Moment(self.device, first, tuple(others))

    def fixed(self) -> "CallerStreams":
        """Return the same with the streams that are current now."""
        moment = self.now()
        return CallerStreams(self.device, (moment.stream, *moment.others))

    def joined(self, others: "Sequence[CallerStreams]") -> "CallerStreams":
        """Return all streams of this and of others, which are of the same device."""
        every = (self, *others)
        owners = {id(owner): owner for one in every for owner in one.owners}
        return CallerStreams(
            self.device,
            tuple(dict.fromkeys(handle for one in every for handle in one.handles)),
            tuple(owners.values()),
        )


def order(device: int, *, first: int, then: int) -> None:
    """Have a stream wait for what another one has been given; the host does not wait.

    Parameters
    ----------
    device : int
        Of both.
    first, then : int
        Handles.
    """
    if first == then:
        return
    owner = drivers.get_device(device)
    with owner:
        event = owner.new_event()
        try:
            _call("cuEventRecord", event, first)
            _call("cuStreamWaitEvent", then, event, 0)
        finally:
            owner.destroy_event(event)


def wait_for(
    device: int, stream: int, look: Callable[[], object] | None = None, nap: float = NAP
) -> None:
    """Return when a stream has done what it has been given so far. No other stream is waited for.

    Parameters
    ----------
    device : int
        Of the stream.
    stream : int
        Its handle.
    look : callable, optional
        Called between two looks; may raise.
    nap : float
        Seconds between two looks. With 0, other threads and processes may run there.
    """
    owner = drivers.get_device(device)
    with owner:
        event = owner.new_event()
        try:
            _call("cuEventRecord", event, stream)
            while not owner.has_come(event):
                if look is not None:
                    look()
                time.sleep(nap)
        finally:
            owner.destroy_event(event)


def _call(name: str, *arguments: int) -> None:
    drivers.get_driver().call(name, *arguments)

"""What a channel has on a device for calls that are not the caller's own thread's to order.

A call that another thread runs is on a stream of the channel's, behind the moment at which it was
made; that thread waits for its end, so that the result is there for any stream. And memory to pack
arrays in, which calls on one channel use one after the other.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hpccoll.cuda import streams
from hpccoll.cuda.device import Device
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.memory import device_bytes
from hpccoll.errors import CudaError

if TYPE_CHECKING:
    from hpccoll.channel import Channel
    from hpccoll.cuda.streams import Moment


LEAVE_PATIENCE = 5.0
"""Seconds that a call which failed waits for what it has submitted."""


class Resources:
    """Of one channel, on one device.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    stream : int
        Handle of a stream of its own.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.new_stream()
        self._rooms: dict[str, DeviceArray] = {}
        weakref.finalize(self, _give_back, device, self.stream).atexit = False

    def room(self, purpose: str, nbytes: int) -> DeviceArray:
        """Return so many bytes. All work in them is to be at its end before they are used again.

        Parameters
        ----------
        purpose : str
            Names the room; there is one of each name.
        nbytes : int
        """
        found = self._rooms.get(purpose)
        if found is None or found.nbytes < nbytes:
            found = device_bytes(self.device, 1 << max(nbytes - 1, 4095).bit_length())
            self._rooms[purpose] = found
        return found[:nbytes]


def _give_back(device: Device, stream: int) -> None:
    if device.driver.usable:
        with suppress(CudaError):  # the context may be broken, or gone
            device.destroy_stream(stream)


_all: "weakref.WeakKeyDictionary[Channel, dict[Device, Resources]]" = weakref.WeakKeyDictionary()
_making = threading.Lock()


def resources_of(channel: "Channel", device: int) -> Resources:
    """Return what a channel has on a device; the first call makes it."""
    key = get_device(device)
    with _making:
        found = _all.setdefault(channel, {})
        if key not in found:
            found[key] = Resources(key)
        return found[key]


@contextmanager
def taken_up(moment: "Moment", channel: "Channel") -> Iterator["Moment"]:
    """Take up a moment of the caller's, and give the streams back when the body has ended.

    A moment that is now is followed on the caller's stream, and its other streams wait for what
    the body submits. One that was recorded is followed on the channel's, and the host waits for
    what the body submits.

    Parameters
    ----------
    moment : Moment
    channel : Channel
        Where the call runs.

    Yields
    ------
    Moment
        Whose `stream` is the one to follow and to lead.
    """
    if not moment.event:
        with moment.joined():
            yield moment
        return
    here = moment.resume(resources_of(channel, moment.device).stream)
    try:
        yield here
    except BaseException:
        # The arrays may be gone soon. The error that ends the call says more than one of this.
        with suppress(CudaError, TimeoutError):
            streams.wait_for(here.device, here.stream, _end_of_patience())
        raise
    streams.wait_for(here.device, here.stream)


def _end_of_patience() -> Callable[[], None]:
    end = time.monotonic() + LEAVE_PATIENCE

    def look() -> None:
        if time.monotonic() > end:
            raise TimeoutError

    return look

"""Allocations that ranks of a node show each other: exported here, opened there, and kept open.

To export an allocation, and to open one, takes longer than many a call. So both are done once, and
what a rank tells in each call is which of its allocations its vectors are in.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpccoll.buffers import Array
from hpccoll.cuda.device import Device
from hpccoll.cuda.driver import Allocation
from hpccoll.cuda.driver_api import IPC_HANDLE_BYTES
from hpccoll.errors import CudaError

MOST_ALLOCATIONS = 64
"""Of each rank that are kept open, and of this one whose handles are kept."""


class Shown(NamedTuple):
    """Where in which allocation of a rank a vector lies, as it tells its peers.

    Attributes
    ----------
    handle : bytes
        Of the allocation.
    allocation : Allocation
        The same, as that rank sees it.
    offset : int
        Bytes from the start of the allocation to the vector.
    """

    handle: bytes
    allocation: Allocation
    offset: int

    def numbers(self) -> list[int]:
        """Return the same as `NUMBERS` integers of 64 bits."""
        base, nbytes, buffer_id = self.allocation
        unsigned = np.array((base, nbytes, buffer_id, self.offset), np.uint64)
        return [*np.frombuffer(self.handle, np.int64).tolist(), *unsigned.view(np.int64).tolist()]

    @classmethod
    def of(cls, numbers: "Sequence[int] | Array") -> "Shown | None":
        """Return what a rank has told; None where it showed nothing."""
        told = np.array(numbers, np.int64)
        base, nbytes, buffer_id, offset = told[HANDLE_NUMBERS:].view(np.uint64).tolist()
        if not nbytes:
            return None
        return cls(told[:HANDLE_NUMBERS].tobytes(), Allocation(base, nbytes, buffer_id), offset)


HANDLE_NUMBERS = IPC_HANDLE_BYTES // 8

NUMBERS = HANDLE_NUMBERS + 4

NOTHING = [0] * NUMBERS
"""What a rank tells that shows nothing."""


class Exports:
    """Allocations of this process, and the handles by which others can open them.

    Parameters
    ----------
    device : Device
        Whose memory it is.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handles: OrderedDict[Allocation, bytes] = OrderedDict()

    def show(self, address: int, nbytes: int) -> Shown | None:
        """Return how others find memory; None where it is of a kind that cannot be shared.

        Memory of pools that work in the order of streams is such, and what is put together by the
        driver's functions for virtual memory.

        Parameters
        ----------
        address, nbytes : int
            Of the memory, on the device.

        Raises
        ------
        CudaError
            It is no memory of a device; it was freed, for example.
        """
        allocation = self._device.driver.allocation_of(address)
        handle = self._handles.get(allocation)
        if handle is None:
            try:
                handle = self._device.export(allocation.base)
            except CudaError:
                handle = b""
            self._handles[allocation] = handle
            if len(self._handles) > MOST_ALLOCATIONS:
                self._handles.popitem(last=False)
        self._handles.move_to_end(allocation)
        offset = address - allocation.base
        if not handle or offset + nbytes > allocation.nbytes:
            return None
        return Shown(handle, allocation, offset)


class _Mapping(NamedTuple):
    allocation: Allocation
    address: int


class Mappings:
    """Allocations of other processes, as far as this one has opened them.

    An allocation stays open, up to `MOST_ALLOCATIONS` of each rank, until its owner shows another
    one in its place. Until then the memory of one that its owner frees is not given back.

    All methods close only what no work can use any more: whoever calls them has waited for the
    works of all calls before.

    Parameters
    ----------
    device : Device
        Whose kernels reach them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._open: dict[int, OrderedDict[bytes, _Mapping]] = defaultdict(OrderedDict)
        self._used: set[tuple[int, bytes]] = set()

    def begin(self) -> None:
        """Begin a call: what it opens stays open until the next one."""
        self._used.clear()

    def open(self, rank: int, shown: Shown) -> int:
        """Return the address here of what another rank shows.

        Raises
        ------
        CudaError
            It cannot be opened.
        """
        mappings = self._open[rank]
        self._close_former(rank, shown)
        found = mappings.get(shown.handle)
        if found is None:
            if len(mappings) >= MOST_ALLOCATIONS:
                self._close(rank, next(iter(mappings)))
            found = mappings[shown.handle] = _Mapping(shown.allocation, self._opened(rank, shown))
        mappings.move_to_end(shown.handle)
        self._used.add((rank, shown.handle))
        return found.address + shown.offset

    def _opened(self, rank: int, shown: Shown) -> int:
        try:
            return self._device.open(shown.handle)
        except CudaError:
            # What is open may be in the way: the driver maps small allocations by larger blocks.
            others = [one for one in self._open[rank] if (rank, one) not in self._used]
            if not others:
                raise
            for other in others:
                self._close(rank, other)
            return self._device.open(shown.handle)

    def _close_former(self, rank: int, shown: Shown) -> None:
        """Close what was where the allocation is now, and is no more."""
        base, nbytes, buffer_id = shown.allocation
        former = [
            handle
            for handle, (there, _) in self._open[rank].items()
            if there.buffer_id != buffer_id
            and there.base < base + nbytes
            and base < there.base + there.nbytes
        ]
        for handle in former:
            self._close(rank, handle)

    def _close(self, rank: int, handle: bytes) -> None:
        self._device.close(self._open[rank].pop(handle).address)

    def close(self) -> None:
        """Close all."""
        for rank, mappings in self._open.items():
            for handle in list(mappings):
                self._close(rank, handle)

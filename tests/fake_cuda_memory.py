"""Memory that a fake CUDA driver gives out: files without a name, mapped, which processes share.

The address of memory that was freed is never used again, so that whoever uses it is found.
"""

import bisect
import ctypes
import itertools
import os
import struct
from typing import NamedTuple

from fake_cuda_order import Region

POISON = 0xFF
"""What new memory is full of: not-a-numbers, or the number -1."""

PROTECTION = 1 | 2  # may be read and written
SHARED, PRIVATE, FIXED, ANONYMOUS, NO_RESERVE = 1, 2, 0x10, 0x20, 0x4000

HANDLE = struct.Struct("<8sqqqqq16x")
MAGIC = b"FAKECUDA"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_numbers = itertools.count(1)


def map_file(fd: int, nbytes: int, address: int | None = None) -> int:
    flags = SHARED if fd >= 0 else PRIVATE | ANONYMOUS | NO_RESERVE
    flags |= FIXED if address else 0
    result = _libc.mmap(address, nbytes, PROTECTION, flags, fd, 0)
    if result in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(result)


class Block(NamedTuple):
    """Addresses at which a region is mapped, or where one was."""

    base: int
    nbytes: int
    region: Region
    is_own: bool


class FakeMemory:
    """What is mapped where."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._mapped: list[tuple[int, int]] = []
        self.regions: dict[int, Region] = {}

    def _add(self, block: Block) -> Block:
        # The system may give the host's memory, that was registered once, to somebody else.
        end = block.base + block.nbytes
        for base in list(self._bases):
            former = self._blocks[base]
            if former.region.freed and base < end and block.base < base + former.nbytes:
                self._bases.remove(base)
                del self._blocks[base]
        bisect.insort(self._bases, block.base)
        self._blocks[block.base] = block
        return block

    def allocate(self, nbytes: int, device: int) -> Region:
        """Return new memory of a device."""
        fd = os.memfd_create("fake-cuda")
        os.ftruncate(fd, nbytes)
        base = map_file(fd, nbytes)
        return self._new(base, nbytes, f"memory of device {device}, allocation", device, fd)

    def allocate_pinned(self, nbytes: int) -> Region:
        """Return new pinned memory."""
        return self._new(map_file(-1, nbytes), nbytes, "pinned memory", None, -1)

    def _new(self, base: int, nbytes: int, name: str, device: int | None, fd: int) -> Region:
        ctypes.memset(base, POISON, nbytes)
        self._mapped.append((base, nbytes))
        region = Region(next(_numbers), base, nbytes, name, device, fd)
        self._add(Block(base, nbytes, region, True))
        self.regions[region.number] = region
        return region

    def free(self, region: Region) -> None:
        """Take memory back. Its address stays where it is, without its contents."""
        region.freed = True
        map_file(-1, region.nbytes, region.base)
        if region.fd >= 0:
            os.close(region.fd)
            region.fd = -1

    def register(self, base: int, nbytes: int) -> Region | None:
        """Take the host's memory for pinned; None where a part of it is that already."""
        page = os.sysconf("SC_PAGE_SIZE")
        first, last = base // page, (base + nbytes - 1) // page
        for block in self._blocks.values():
            end = (block.base + block.nbytes - 1) // page
            if not block.region.freed and block.base // page <= last and first <= end:
                return None
        region = Region(next(_numbers), base, nbytes, "registered memory")
        self._add(Block(base, nbytes, region, True))
        return region

    def unregister(self, region: Region) -> None:
        """Undo `register`."""
        region.freed = True

    def blocks(self) -> list[Block]:
        """Return all that is, or was, mapped."""
        return list(self._blocks.values())

    def find(self, address: int) -> Block | None:
        """Return what is, or was, at an address."""
        place = bisect.bisect_right(self._bases, address)
        if place == 0:
            return None
        block = self._blocks[self._bases[place - 1]]
        return block if address < block.base + max(block.nbytes, 1) else None

    def export(self, region: Region) -> bytes:
        """Return the handle of an allocation."""
        numbers = (os.getpid(), region.fd, region.nbytes, region.number, region.device)
        return HANDLE.pack(MAGIC, *numbers)

    def open(self, handle: bytes) -> Block | None:
        """Map an allocation by its handle; None where that is no handle."""
        magic, pid, fd, nbytes, number, device = HANDLE.unpack(handle)
        if magic != MAGIC:
            return None
        here = pid == os.getpid()
        region = self.regions.get(number) if here else None
        if here and (region is None or region.freed):
            return None
        name = f"memory of device {device} of process {pid}, allocation"
        for block in self._blocks.values():
            known = block.region is region if here else block.region.name == f"{name} {number}"
            if known and not block.is_own and block.region.opened:
                return block
        try:
            copy = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        except OSError:
            return None
        try:
            base = map_file(copy, nbytes)
        finally:
            os.close(copy)
        self._mapped.append((base, nbytes))
        region = region or Region(number, base, nbytes, f"{name} {number}", device)
        return self._add(Block(base, nbytes, region, False))

    def close_peer(self, block: Block) -> None:
        """Undo `open`."""
        map_file(-1, block.nbytes, block.base)
        former = block.region
        gone = Region(former.number, block.base, block.nbytes, former.name, former.device)
        gone.freed = True
        self._blocks[block.base] = block._replace(region=gone)

    def close(self) -> None:
        """Unmap everything."""
        for region in self.regions.values():
            if region.fd >= 0:
                os.close(region.fd)
                region.fd = -1
        for base, nbytes in self._mapped:
            _libc.munmap(base, nbytes)
        self._mapped.clear()

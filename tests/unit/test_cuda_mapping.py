"""Allocations that ranks show each other: exported and opened once, and closed in time."""

import itertools

import pytest

from hpccoll.cuda import mapping
from hpccoll.cuda.driver import Allocation
from hpccoll.cuda.mapping import NOTHING, NUMBERS, Exports, Mappings, Shown
from hpccoll.errors import CudaError


class Opener:
    """A device that opens what it is told, and counts."""

    def __init__(self):
        self.addresses = itertools.count(0x7000_0000, 0x1000_0000)
        self.open_now = {}
        self.failures = 0

    def open(self, handle):
        if self.failures:
            self.failures -= 1
            raise CudaError("not now", 208)
        address = next(self.addresses)
        self.open_now[address] = handle
        return address

    def close(self, address):
        del self.open_now[address]


def shown(number, *, base=None, nbytes=1 << 20, buffer_id=None, offset=0):
    handle = number.to_bytes(8, "little") * 8
    base = number << 24 if base is None else base
    return Shown(
        handle, Allocation(base, nbytes, number if buffer_id is None else buffer_id), offset
    )


def test_shown_is_numbers_and_back():
    for one in (shown(3, offset=24), shown(2**63 + 5, base=2**63 + 4096, buffer_id=2**64 - 1)):
        numbers = one.numbers()
        assert len(numbers) == NUMBERS
        assert all(-(2**63) <= number < 2**63 for number in numbers)
        assert Shown.of(numbers) == one
    assert Shown.of(NOTHING) is None


def test_what_is_open_stays_open():
    device = Opener()
    mappings = Mappings(device)
    mappings.begin()
    first = mappings.open(1, shown(5, offset=8))
    mappings.begin()
    assert mappings.open(1, shown(5, offset=24)) == first + 16
    assert len(device.open_now) == 1
    # Another rank's allocation of the same place, handle and number is another one.
    assert mappings.open(2, shown(5)) != first - 8
    mappings.close()
    assert not device.open_now


@pytest.mark.parametrize("same_handle", [False, True])
def test_another_allocation_in_its_place(same_handle):
    device = Opener()
    mappings = Mappings(device)
    first = mappings.open(1, shown(5, base=4096))
    handle = 5 if same_handle else 6
    mappings.begin()
    second = mappings.open(1, shown(handle, base=4096, buffer_id=77))
    assert second != first
    assert list(device.open_now) == [second]


def test_overlapping_allocations():
    """A larger one where two were, and the other way round; neighbours stay."""
    device = Opener()
    mappings = Mappings(device)
    small = [mappings.open(1, shown(k, base=k << 20)) for k in (1, 2, 3)]
    mappings.begin()
    large = mappings.open(1, shown(9, base=1 << 20, nbytes=2 << 20))
    assert list(device.open_now) == [small[2], large]
    mappings.begin()
    other = mappings.open(1, shown(10, base=2 << 20))
    assert list(device.open_now) == [small[2], other]


def test_the_longest_unused_are_closed(monkeypatch):
    monkeypatch.setattr(mapping, "MOST_ALLOCATIONS", 3)
    device = Opener()
    mappings = Mappings(device)
    addresses = {}
    for number in (1, 2, 3, 1, 4):
        mappings.begin()
        addresses[number] = mappings.open(1, shown(number))
    assert set(device.open_now) == {addresses[1], addresses[3], addresses[4]}
    mappings.open(2, shown(1))  # each rank has its own
    assert len(device.open_now) == 4


def test_others_are_closed_where_opening_fails():
    device = Opener()
    mappings = Mappings(device)
    mappings.begin()
    mappings.open(1, shown(1))
    mappings.begin()
    used = mappings.open(1, shown(2))
    device.failures = 1
    made = mappings.open(1, shown(3))
    assert list(device.open_now) == [used, made]
    device.failures = 2
    with pytest.raises(CudaError, match="not now"):
        mappings.open(1, shown(4))


class Exporter:
    """A device with allocations of 1 MiB, some of which cannot be shared."""

    def __init__(self):
        self.driver = self
        self.exported = []
        self.pools = set()
        self.buffer_id = 1

    def allocation_of(self, address):
        return Allocation(address >> 20 << 20, 1 << 20, self.buffer_id)

    def export(self, base):
        self.exported.append(base)
        if base in self.pools:
            raise CudaError("of a pool", 1)
        return bytes([len(self.exported)]) * 64


def test_an_allocation_is_exported_once():
    device = Exporter()
    exports = Exports(device)
    base = 3 << 20
    assert exports.show(base + 100, 50) == Shown(b"\1" * 64, Allocation(base, 1 << 20, 1), 100)
    assert exports.show(base, 1 << 20) == Shown(b"\1" * 64, Allocation(base, 1 << 20, 1), 0)
    device.buffer_id = 2  # freed, and another one in its place
    assert exports.show(base, 8) == Shown(b"\2" * 64, Allocation(base, 1 << 20, 2), 0)
    assert device.exported == [base, base]


def test_what_cannot_be_shared():
    device = Exporter()
    exports = Exports(device)
    device.pools.add(5 << 20)
    assert exports.show(5 << 20, 8) is None
    assert exports.show((5 << 20) + 8, 8) is None
    assert device.exported == [5 << 20]
    # Nor what is put together of several allocations.
    assert exports.show(6 << 20, (1 << 20) + 1) is None
    assert exports.show(6 << 20, 1 << 20) is not None


def test_only_so_many_handles_are_kept(monkeypatch):
    monkeypatch.setattr(mapping, "MOST_ALLOCATIONS", 2)
    device = Exporter()
    exports = Exports(device)
    for number in (1, 2, 1, 3, 1, 2):
        exports.show(number << 20, 8)
    assert device.exported == [1 << 20, 2 << 20, 3 << 20, 2 << 20]

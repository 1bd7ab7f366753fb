"""The arena and its allocator: what is handed out, what comes back, and who can map it."""

import ctypes
import fcntl
import mmap
import os
import random
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from fresh import python
from hypothesis import given
from hypothesis import strategies as st

from hpccoll import _arena, arena

MIB = 1 << 20
REGION_BYTES = 64 << 10

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""For a program that forks, of which Python 3.12 warns where there are threads."""


@pytest.fixture(scope="module")
def region():
    """Make a small region of memory that is not zero, beside the arena."""
    memory = mmap.mmap(-1, REGION_BYTES)
    memory.write(b"\xff" * REGION_BYTES)
    first = ctypes.c_char.from_buffer(memory)
    number = _arena.add_region(ctypes.addressof(first), REGION_BYTES)
    yield number
    _arena.remove_region(number)
    del first
    memory.close()


@pytest.fixture(autouse=True)
def opened():
    arena.ensure_open()


def bytes_at(address, nbytes):
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def resident():
    """Return the bytes of memory that the arena takes."""
    return os.fstat(arena.descriptor().fd).st_blocks * 512


# What a program does with memory: make a block of some size, zeroed or not; free, or resize, one of
# those that are there.
SIZES = st.one_of(st.integers(0, 400), st.integers(0, REGION_BYTES))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["empty", "zeros"]), SIZES),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("resize"), st.integers(0, 99), SIZES),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_blocks_are_apart_keep_their_bytes_and_come_back(region, actions):
    check_actions(region, actions)


@given(actions=ACTIONS)
def test_the_arena_does_as_well_where_free_memory_is_known_to_be_zero(actions):
    check_actions(0, actions)


def check_actions(region, actions):
    """Run actions on arrays of a region, whose bytes tell whether anybody else wrote to them."""
    handler = _arena.new_handler(region)
    before = _arena.used(region), _arena.live(region), _arena.largest_free(region)
    arrays = []
    for number, (action, *rest) in enumerate(actions):
        mark = number % 255 + 1
        outer = _arena.set_handler(handler)
        try:
            if action == "empty":
                arrays.append([np.empty(rest[0], np.uint8), mark])
                arrays[-1][0][:] = mark
            elif action == "zeros":
                zeros = np.zeros(rest[0], np.uint8)
                assert not zeros.any()
                zeros[:] = mark
                arrays.append([zeros, mark])
            elif action == "free" and arrays:
                del arrays[rest[0] % len(arrays)]
            elif action == "resize" and arrays:
                array, old = arrays[rest[0] % len(arrays)]
                kept = min(array.size, rest[1])
                array.resize(rest[1], refcheck=False)
                assert (array[:kept] == old).all()
                array[:] = old
        except MemoryError:
            assert rest[-1] > _arena.largest_free(region)
        finally:
            _arena.set_handler(outer)
            zeros = array = None  # or the last one would stay alive by that name
        check_arrays(arrays, region, before)
    arrays.clear()
    assert (_arena.used(region), _arena.live(region), _arena.largest_free(region)) == before


def check_arrays(arrays, region, before):
    last = 0
    for array, mark in sorted(arrays, key=lambda entry: entry[0].ctypes.data):
        address = array.ctypes.data
        assert address % 64 == 0
        assert address >= last
        last = address + array.nbytes
        assert _arena.locate(address, array.nbytes)[0] == region
        assert (array == mark).all()
    assert _arena.live(region) == before[1] + len(arrays)
    assert _arena.used(region) - before[0] >= sum(array.nbytes for array, _ in arrays)


def test_freed_neighbours_become_one_block_in_any_order(region):
    whole = _arena.largest_free(region)
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]):
        blocks = [_arena.allocate(10_000, region) for _ in range(3)]
        assert _arena.largest_free(region) < whole - 30_000
        for k in order:
            _arena.free(blocks[k])
        assert _arena.largest_free(region) == whole


def test_all_of_a_region_can_be_had_and_no_more(region):
    whole = _arena.largest_free(region)
    assert REGION_BYTES - 256 <= whole < REGION_BYTES
    with pytest.raises(MemoryError, match=f"no {whole + 1} bytes in one piece"):
        _arena.allocate(whole + 1, region)
    address = _arena.allocate(whole, region)
    assert _arena.free_bytes(region) == _arena.largest_free(region) == 0
    with pytest.raises(MemoryError):
        _arena.allocate(1, region)
    _arena.free(address)
    for nbytes in (2**62, 2**64 - 1):
        with pytest.raises(MemoryError):
            _arena.allocate(nbytes, region)


def test_wrong_addresses_are_refused(region):
    address = _arena.allocate(1000, region)
    outside = np.empty(100)
    base = _arena.base()
    for wrong in (address + 64, address + 1, outside.ctypes.data, 0, base, base + 64):
        with pytest.raises(ValueError, match="no allocated block begins at address 0x"):
            _arena.free(wrong)
    _arena.free(address)
    with pytest.raises(ValueError, match="no allocated block"):
        _arena.free(address)
    with pytest.raises(ValueError, match="there is no region 31"):
        _arena.allocate(1, 31)


def test_memory_is_located_by_any_address_in_it(region):
    for number in (0, region):
        address = _arena.allocate(1000, number)
        start = _arena.locate(address)[1]
        assert _arena.locate(address + 17, 100) == (number, start + 17)
        assert _arena.contains(address, 1000)
        _arena.free(address)
    end = _arena.base() + _arena.capacity()
    assert _arena.locate(end - 10, 10) == (0, _arena.capacity() - 10)
    assert _arena.locate(end - 10, 11) is None
    assert _arena.locate(end, 0) is None
    assert _arena.locate(_arena.base() - 1, 1) is None
    assert _arena.locate(end - 10, 2**64 - 1) is None


def test_a_region_with_arrays_is_not_removed():
    memory = np.zeros(8192, np.uint8)
    number = _arena.add_region(memory.ctypes.data, memory.nbytes)
    with pytest.raises(ValueError, match="lies in a region already"):
        _arena.add_region(memory.ctypes.data + 4096, 4096)
    address = _arena.allocate(100, number)
    with pytest.raises(BufferError, match=rf"region {number} has live blocks \(1\)"):
        _arena.remove_region(number)
    assert _arena.locate(address) is not None
    _arena.free(address)
    _arena.remove_region(number)
    assert _arena.locate(address) is None
    with pytest.raises(ValueError, match=f"there is no region {number}"):
        _arena.allocate(1, number)
    with pytest.raises(ValueError, match="region 0 is the arena"):
        _arena.remove_region(0)


def test_threads_do_not_get_the_same_memory():
    used = _arena.used()
    wrong = []

    def work(mark):
        draw = random.Random(mark)
        blocks = []
        for _ in range(400):
            if len(blocks) > 20:
                address, nbytes = blocks.pop(draw.randrange(len(blocks)))
                wrong.extend([mark] if (bytes_at(address, nbytes) != mark).any() else [])
                _arena.free(address)
            nbytes = draw.randrange(1, 50_000)
            address = _arena.allocate(nbytes)
            bytes_at(address, nbytes)[:] = mark
            blocks.append((address, nbytes))
        for address, _ in blocks:
            _arena.free(address)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _arena.used() == used


def test_large_freed_memory_goes_back_to_the_system_and_small_is_kept():
    small = _arena.allocate(4 * MIB)
    bytes_at(small, 4 * MIB)[:] = 1
    before = resident()
    large = _arena.allocate(96 * MIB)
    bytes_at(large, 96 * MIB)[:] = 1
    assert resident() >= before + 92 * MIB  # some of it may have been held already
    _arena.free(large)
    assert resident() <= before + MIB
    before = resident()
    held = _arena.held()
    _arena.free(small)
    assert _arena.held() >= held + 4 * MIB
    assert resident() == before


def test_a_loop_of_arrays_does_not_grow():
    most = 0
    for k in range(30):
        addresses = [_arena.allocate((k % 5 + 1) * MIB) for _ in range(3)]
        for j, address in enumerate(addresses):
            bytes_at(address, (k % 5 + 1) * MIB)[:] = j
        most = max(most, resident())
        for address in addresses:
            _arena.free(address)
        assert _arena.held() <= 64 * MIB
    assert most <= (15 + 64 + 1) * MIB


@pytest.mark.parametrize("nbytes", [100, 3 * MIB, 80 * MIB])  # the last ones' pages are given back
def test_zeroed_memory_is_zero_after_other_use(nbytes):
    for _ in range(3):
        address = _arena.allocate(nbytes, zeroed=True)
        assert not bytes_at(address, nbytes).any()
        bytes_at(address, nbytes)[:] = 0xFF
        _arena.free(address)


def test_the_rest_of_a_page_is_zero_after_its_block_went_back_to_the_system():
    first = _arena.allocate(80 * MIB + 64)
    second, third = _arena.allocate(1000), _arena.allocate(1000)
    bytes_at(first, 80 * MIB + 64)[:] = 0xFF
    _arena.free(first)
    again = _arena.allocate(80 * MIB + 64, zeroed=True)
    assert again == first
    assert not bytes_at(again, 80 * MIB + 64).any()
    # Now with the header of a neighbour between memory that is zero and memory that is not.
    _arena.free(again)
    bytes_at(second, 1000)[:] = 0xFF
    _arena.free(second)
    both = _arena.allocate(80 * MIB + 1000, zeroed=True)
    assert both == first
    assert not bytes_at(both, 80 * MIB + 1000).any()
    _arena.free(both)
    _arena.free(third)


def test_a_block_may_grow_over_all_of_a_free_neighbour(region):
    before = _arena.used(region), _arena.largest_free(region)
    outer = _arena.set_handler(_arena.new_handler(region))
    first, second, third, fourth = (np.full(960, k, np.uint8) for k in range(4))
    _arena.set_handler(outer)
    address = first.ctypes.data
    del second
    first.resize(960 + 64 + 960, refcheck=False)
    assert first.ctypes.data == address
    # Bytes that look like the header of a free block, where the neighbour had its own.
    first.view(np.uint64)[:] = 0x6E8F1D3BA97C2450
    kept = first.copy()
    del third
    assert (first == kept).all()
    del first
    assert (fourth == 3).all()
    del fourth
    assert (_arena.used(region), _arena.largest_free(region)) == before


def test_zeroed_memory_that_nobody_used_is_not_touched():
    before = resident()
    address = _arena.allocate(512 * MIB, zeroed=True)
    assert resident() <= before + MIB
    _arena.free(address)


def test_the_file_is_private_unnamed_and_cannot_shrink():
    pid, fd, capacity, nonce = arena.descriptor()
    facts = os.fstat(fd)
    assert pid == os.getpid()
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert facts.st_size == capacity == _arena.capacity()
    assert facts.st_nlink == 0
    assert not os.get_inheritable(fd)
    assert os.pread(fd, 16, 0) == nonce
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 4096)


PEER = """
import os, sys
from pathlib import Path
import numpy as np, ctypes
from hpccoll import arena, _arena
pid, fd, capacity, nonce, offset = sys.argv[1:]
peer = arena.Descriptor(int(pid), int(fd), int(capacity), bytes.fromhex(nonce))
descriptors = os.listdir('/proc/self/fd')
def mappings():
    return Path('/proc/self/maps').read_text().count('/memfd:hpccoll')
address = arena.map_peer(peer)
assert arena.map_peer(peer) == address and mappings() == 1
array = np.frombuffer((ctypes.c_double * 1000).from_address(address + int(offset)))
print(array.sum())
array[:] = 7
arena.unmap_peer(peer)
assert array[0] == 7 and mappings() == 1
arena.unmap_peer(peer)
assert mappings() == 0
assert os.listdir('/proc/self/fd') == descriptors
assert '/dev/shm' not in Path('/proc/self/maps').read_text()
assert not _arena.is_open()   # a peer need not have one
"""


def test_a_peer_sees_and_changes_what_lies_here():
    address = _arena.allocate(8000)
    array = bytes_at(address, 8000).view(np.float64)
    array[:] = np.arange(1000)
    pid, fd, capacity, nonce = arena.descriptor()
    offset = address - _arena.base()
    said = python(PEER, str(pid), str(fd), str(capacity), nonce.hex(), str(offset))
    assert float(said) == 499500
    assert (array == 7).all()
    _arena.free(address)


def test_the_own_descriptor_gives_the_own_arena():
    own = arena.descriptor()
    assert arena.map_peer(own) == _arena.base()
    arena.unmap_peer(own)
    assert bytes_at(_arena.base(), 16).tobytes() == own.nonce


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nonce": b"?" * 16}, "another file"),
        ({"capacity": 4096}, "another file"),
        ({"fd": 0}, "another file|cannot be opened"),
        ({"fd": 9999}, "cannot be opened"),
        ({"pid": 2**22 + 1}, "cannot be opened"),  # more than Linux ever counts
    ],
)
def test_what_is_not_the_arena_announced_is_not_mapped(change, text):
    # Another nonce than ours, so that it is not known as our own.
    wrong = arena.descriptor()._replace(**{"nonce": b"!" * 16, **change})
    before = descriptors()
    with pytest.raises(OSError, match=f"cannot map the arena of process {wrong.pid}: .*({text})"):
        arena.map_peer(wrong)
    assert descriptors() == before
    with pytest.raises(ValueError, match="the nonce has 3 bytes; wanted 16"):
        arena.map_peer(wrong._replace(nonce=b"abc"))


FORK = """
import os
import numpy as np
import hpccoll, warnings
from hpccoll import _arena, arena
x = hpccoll.zeros(100_000)
y = hpccoll.full(10, 1.0)
with hpccoll.shared_arrays():
    w = np.full(10_000, 2.0)
used = _arena.used()
def refused(call):
    try:
        call()
    except (MemoryError, RuntimeError) as error:
        return str(error)
child = os.fork()
if child == 0:
    assert 'a forked child process cannot allocate' in refused(lambda: hpccoll.empty(3))
    assert 'it has that of its parent' in refused(arena.descriptor)
    assert 'no arena of its own' in refused(_arena.descriptor)
    x[:] = 5
    del y
    assert _arena.used() == used
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        with hpccoll.shared_arrays():
            z = np.ones(10_000)
    w.resize(20_000, refcheck=False)
    assert not hpccoll.is_shared(z) and not hpccoll.is_shared(w)
    assert (w[:10_000] == 2).all() and _arena.used() == used
    assert refused(lambda: x.resize(200_000, refcheck=False))
    assert 'a forked child process cannot' in str(caught[0].message), caught
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (x == 5).all() and (y == 1).all() and _arena.used() == used
del x
assert _arena.used() < used
hpccoll.empty(3)
"""


def test_a_forked_child_shares_and_leaves_alone():
    python(FORK, **ONE_THREAD)


def test_a_child_forked_before_there_was_an_arena_has_its_own():
    code = (
        "import os, hpccoll\n"
        "child = os.fork()\n"
        "x = hpccoll.empty(3)\n"
        "if child == 0: os._exit(0 if hpccoll.is_shared(x) else 1)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    assert python(code, **ONE_THREAD) == "0"


def test_importing_makes_no_arena():
    code = (
        "import hpccoll.shared, numpy, pathlib\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "print('memfd' in maps, hpccoll.is_shared(numpy.empty(3)))"
    )
    assert python(code) == "False False"


@pytest.mark.parametrize("text", ["", "many", "-1G", "4 X", "1e9", "0", "32K", "100T", "4GG"])
def test_a_bad_size_names_the_variable(text, monkeypatch):
    with pytest.raises(ValueError, match=r"HPCCOLL_ARENA is .*; wanted a number of bytes from 64K"):
        arena.parse_size(text)
    code = "import hpccoll\ntry: hpccoll.empty(3)\nexcept ValueError as error: print(error)"
    if text in ("", "many"):
        assert f"HPCCOLL_ARENA is {text!r}; wanted" in python(code, HPCCOLL_ARENA=text)


def test_sizes():
    texts = ["65536", "64K", "64k", "64KiB", "0.5M", " 1 GB "]
    assert [arena.parse_size(text) for text in texts] == [65536] * 4 + [524288, 1 << 30]


def test_the_size_is_what_the_variable_says():
    code = "from hpccoll import arena, _arena; print(arena.descriptor().capacity, _arena.held())"
    assert python(code, HPCCOLL_ARENA="100K") == f"{25 * 4096} 0"


def test_limits_of_all_groups_above_count(tmp_path):
    for name, text in {
        "memory.max": "max\n",
        "a/memory.max": "5000\n",
        "a/b/memory.max": "9000\n",
        "memory/memory.limit_in_bytes": "7000\n",
        "cpu/memory.limit_in_bytes": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert arena.cgroup_limits("0::/a/b\n", tmp_path) == [9000, 5000]
    assert arena.cgroup_limits("0::/gone/x\n1:cpu:/\n", tmp_path) == []
    assert arena.cgroup_limits("4:cpu,memory:/gone\n", tmp_path) == [7000]


def test_there_is_room_for_all_memory_where_addresses_allow():
    assert _arena.capacity() == arena.total_memory() or "HPCCOLL_ARENA" in os.environ
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))\n"
        "from hpccoll import arena\n"
        "print(arena.descriptor().capacity)"
    )
    assert 0 < int(python(code, **ONE_THREAD)) < 4 << 30


def test_where_the_system_refuses_the_error_says_what():
    code = (
        "import resource, hpccoll, numpy\n"
        "import hpccoll.shared\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try: hpccoll.empty(3)\n"
        "except OSError as error: print(error)"
    )
    assert "cannot make the arena of 1 MiB for arrays" in python(code, HPCCOLL_ARENA="1M")

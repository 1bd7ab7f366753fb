"""The GPU kernels that copy; which kernels there are; what memory they touch.

They run on the CPU, or on the first GPU with ``HPCCOLL_TEST_GPU=1``.
"""

import ctypes
import itertools

import host_kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import HOST, address, launch
from kernel_requests import movements
from operands import Guarded, random_bits

from hpccoll import _kernels
from hpccoll.cuda import kernel_arguments
from hpccoll.cuda.kernel_arguments import (
    FinishArguments,
    ManyArguments,
    PairArguments,
    ViewArguments,
)
from hpccoll.cuda.kernels import BLOCK_THREADS, MOST_BLOCKS, VIEW_ITEMSIZES, Kernels, launch_shape

# --- copies ---------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.data())
def test_copy_many(data):
    n = data.draw(st.integers(0, 700))
    step = data.draw(st.sampled_from([1, 4, 16]))
    offset = st.integers(0, 64 // step).map(lambda x: x * step)
    common = data.draw(st.integers(0, 15))
    source = Guarded(random_bits("uint8", n, n), common + data.draw(offset))
    offsets = data.draw(st.lists(offset.map(lambda x: common + x), min_size=1, max_size=5))
    targets = [Guarded(np.zeros(n, np.uint8), x) for x in offsets]
    addresses = [address(x.array) for x in targets]
    arguments = ManyArguments.of([address(source.array)], addresses, n)
    launch("copy_many", arguments, [source.memory, *(x.memory for x in targets)], movements)
    for target, x in zip(targets, offsets, strict=True):
        assert target.bytes() == Guarded(source.array, x).bytes()


def strided(memory, data, shape, dtype, *, broadcast):
    """Draw an array of that shape in memory: its axes in any order, reversed, with gaps."""
    order = data.draw(st.permutations(range(len(shape))))
    strides, stride = [0] * len(shape), dtype.itemsize
    start = 0
    for axis in order:
        if broadcast and data.draw(st.integers(0, 4)) == 0:
            continue
        strides[axis] = stride
        stride *= shape[axis] * data.draw(st.integers(1, 2))
        if data.draw(st.booleans()):
            start += (shape[axis] - 1) * strides[axis]
            strides[axis] *= -1
    offset = data.draw(st.sampled_from([0, 0, dtype.itemsize, 1]))
    memory = memory[: stride + offset]
    assert len(memory) == stride + offset
    return np.ndarray(shape, dtype, memory, start + offset, strides)


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("itemsize", VIEW_ITEMSIZES)
def test_views(itemsize, data):
    dtype = np.dtype(f"V{itemsize}")
    dimensions = data.draw(st.integers(0, kernel_arguments.MOST_DIMENSIONS))
    longest = 9 if dimensions < 4 else 2
    shape = tuple(data.draw(st.integers(1, longest)) for _ in range(dimensions))
    room = 4 * itemsize * 2**dimensions * max(1, np.prod(shape, dtype=int))
    memory = np.frombuffer(np.random.default_rng(room).bytes(room), np.uint8)
    source = strided(memory, data, shape, dtype, broadcast=True)
    target = np.zeros(room, np.uint8)
    out = strided(target, data, shape, dtype, broadcast=False)
    wanted_memory = target.copy()
    wanted = np.ndarray(shape, dtype, wanted_memory, address(out) - address(target), out.strides)
    swap = data.draw(st.sampled_from([0, 1, *(size for size in (2, 4, 8) if size <= itemsize)]))
    wanted[...] = swapped(source, swap)
    arguments = ViewArguments.of(
        address(out), address(source), shape, out.strides, source.strides, swap
    )
    launch(f"view_{itemsize}", arguments, [memory, target], movements)
    assert target.tobytes() == wanted_memory.tobytes()


def swapped(array, swap):
    if swap < 2:
        return array
    numbers = np.ascontiguousarray(array).reshape(array.shape).tobytes()
    return np.frombuffer(numbers, f"u{swap}").byteswap().view(array.dtype).reshape(array.shape)


def test_views_of_numpy_types():
    for dtype in ("<i2", ">i2", "<f4", ">f8", ">c8", ">c16"):
        foreign = np.arange(60).reshape(3, 4, 5).astype(dtype)
        out = np.zeros((4, 3, 5), np.dtype(dtype).newbyteorder("="))
        source = foreign.transpose(1, 0, 2)[::-1]
        parts = 2 if foreign.dtype.kind == "c" else 1
        swap = 0 if foreign.dtype.isnative else foreign.itemsize // parts
        arguments = ViewArguments.of(
            address(out), address(source), out.shape, out.strides, source.strides, swap
        )
        memories = [x.reshape(-1).view(np.uint8) for x in (foreign, out)]
        launch(f"view_{foreign.itemsize}", arguments, memories, movements)
        np.testing.assert_array_equal(out, source)


def test_views_without_elements():
    arguments = ViewArguments.of(0, 0, (3, 0, 2), (0, 0, 0), (0, 0, 0))
    launch("view_4", arguments, [], movements)


# --- which memory ---


def test_ranges_of_what_lies_in_one_piece():
    pair = PairArguments(100, 200, 300, 5)
    assert host_kernels.ranges("pair_sum_complex64", bytes(pair)) == (
        [(200, 40), (300, 40)],
        [(100, 40)],
    )
    assert host_kernels.ranges("pair_sum_int8", bytes(PairArguments(1, 2, 3, 0))) == ([], [])
    finish = FinishArguments(100, 200, 5, 0.0)
    assert host_kernels.ranges("finish_float32_bfloat16", bytes(finish)) == (
        [(200, 20)],
        [(100, 10)],
    )
    many = ManyArguments.of([100, 200, 300], [400, 500], 6)
    sources = [(100, 12), (200, 12), (300, 12)]
    targets = [(400, 24), (500, 24)]
    assert host_kernels.ranges("many_sum_float16_float32", bytes(many)) == (sources, targets)
    copies = ManyArguments.of([100], [400, 500], 6)
    assert host_kernels.ranges("copy_many", bytes(copies)) == ([(100, 6)], [(400, 6), (500, 6)])


def test_ranges_of_views():
    view = ViewArguments.of(100, 1000, (2, 3), (12, 4), (-20, 8))
    reads, writes = host_kernels.ranges("view_4", bytes(view))
    assert reads == [(980, 4), (988, 4), (996, 8), (1008, 4), (1016, 4)]
    assert writes == [(100, 24)]
    broadcast = ViewArguments.of(100, 1000, (4,), (4,), (0,))
    assert host_kernels.ranges("view_4", bytes(broadcast)) == ([(1000, 4)], [(100, 16)])
    empty = ViewArguments.of(100, 1000, (0,), (4,), (4,))
    assert host_kernels.ranges("view_4", bytes(empty)) == ([], [])


@pytest.mark.parametrize(
    ("place", "n", "itemsize", "split"),
    [
        (0, 100, 4, (0, 25, 0)),
        (4, 100, 4, (3, 24, 4)),
        (12, 3, 4, (1, 0, 3)),
        (8, 1, 4, (0, 0, 1)),  # no element lies where a packet may start
        (6, 50, 2, (5, 5, 10)),
        (2, 100, 4, (0, 0, 100)),  # nor here
        (5, 0, 1, (0, 0, 0)),
    ],
)
def test_arrays_are_split_into_packets(place, n, itemsize, split):
    text = """#include "cuda/threads.h"
    struct split split_at(uint64_t place, uint64_t n, int itemsize)
    {
        const struct split packets = split_by((const void *)place, n, itemsize);
        return split_if(fits(packets, (const void *)place, itemsize), packets, n);
    }
    """

    class Split(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("head", "packets", "rest")]

    function = ctypes.CDLL(HOST.compile_text(text).rstrip(b"\0").decode()).split_at
    function.restype = Split
    result = function(ctypes.c_uint64(place), ctypes.c_uint64(n), itemsize)
    if split[1]:
        assert (result.head, result.packets, result.rest) == split
    else:
        assert (result.packets, result.rest) == split[1:]


# --- what there is --------------------------------------------------------------------------------


def test_kernels_are_compiled_and_loaded_once():
    device = Recorder()
    kernels = Kernels(device, device)
    assert kernels.pair("sum", "float32") == kernels.pair("sum", "float32")
    assert kernels.many("sum", "float32") == kernels.many("sum", "float32", partial=True)
    assert kernels.many("sum", "float16") != kernels.many("sum", "float16", partial=True)
    assert kernels.many("min", "float16") == kernels.many("min", "float16", partial=True)
    assert len(device.names) == len(set(device.names)) == 5


class Recorder:
    """A device, and a compiler, that only note what is asked of them."""

    arch = "sm_90"

    def __init__(self):
        self.names = []

    def compile(self, source_name, defines, arch):
        return b""

    def load_module(self, code):
        return 1

    def function(self, module, name):
        self.names.append(name)
        return len(self.names)


def test_there_are_kernels_for_what_there_are_loops_for():
    kernels = Kernels(Recorder(), Recorder())
    for op, name in itertools.product(_kernels.OPERATIONS, _kernels.TYPES):
        assert Kernels.supports(op, name) == _kernels.supports(op, name)
        if not Kernels.supports(op, name):
            with pytest.raises(ValueError, match=f"no kernel for '{op}' of '{name}'"):
                kernels.pair(op, name)
    assert not Kernels.supports("mean", "float32")
    with pytest.raises(ValueError, match="no kernel"):
        kernels.many("sum", "float128")
    with pytest.raises(ValueError, match="finish: type 'int32'; wanted one of float16"):
        kernels.finish("int32")
    with pytest.raises(ValueError, match="finish: type 'float64'; wanted one of float16, bfloat16"):
        kernels.finish("float64", narrow=True)
    with pytest.raises(ValueError, match="widen: type 'float32'"):
        kernels.widen("float32")
    with pytest.raises(ValueError, match="elements of 3 bytes"):
        kernels.view(3)


def test_launch_shapes():
    assert launch_shape(0, 4) == (1, BLOCK_THREADS)
    assert launch_shape(4 * BLOCK_THREADS, 4) == (1, BLOCK_THREADS)
    assert launch_shape(4 * BLOCK_THREADS + 1, 4) == (2, BLOCK_THREADS)
    assert launch_shape(1 << 40, 8) == (MOST_BLOCKS, BLOCK_THREADS)


def test_arguments_must_fit():
    with pytest.raises(ValueError, match="0 sources; wanted 1 to 32"):
        ManyArguments.of([], [1], 0)
    with pytest.raises(ValueError, match="33 targets; wanted 1 to 32"):
        ManyArguments.of([1], range(33), 0)
    with pytest.raises(ValueError, match="9 dimensions; wanted 8 at most"):
        ViewArguments.of(0, 0, 9 * [1], 9 * [1], 9 * [1])
    with pytest.raises(ValueError, match="numbers of 16 bytes"):
        ViewArguments.of(0, 0, [1], [1], [1], 16)


def test_arguments_lie_as_in_c():
    in_c_too = {"source": "in", "source_strides": "in_strides"}
    structs = {
        "pair_arguments": PairArguments,
        "finish_arguments": FinishArguments,
        "many_arguments": ManyArguments,
        "view_arguments": ViewArguments,
    }
    places = []
    wanted = [kernel_arguments.MOST_ARRAYS, kernel_arguments.MOST_DIMENSIONS, BLOCK_THREADS]
    for name, struct in structs.items():
        places.append(f"sizeof(struct {name})")
        wanted.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            member = in_c_too.get(field, field)
            places.append(f"offsetof(struct {name}, {member})")
            places.append(f"sizeof ((struct {name} *)0)->{member}")
            wanted += [getattr(struct, field).offset, getattr(struct, field).size]
    text = (
        '#include "cuda/arguments.h"\n#include "cuda/threads.h"\n'
        "const long long places[] = {MOST_ARRAYS, MOST_DIMENSIONS, BLOCK_THREADS, "
        f"{', '.join(places)}}};"
    )
    code = HOST.compile_text(text)
    library = ctypes.CDLL(code.rstrip(b"\0").decode())
    assert list((ctypes.c_longlong * len(wanted)).in_dll(library, "places")) == wanted

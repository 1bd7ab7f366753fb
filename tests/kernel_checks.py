"""Comparisons of GPU kernels with the loops of the CPU, byte by byte.

The kernels run where `kernel_runners.runner` says.
"""

import ctypes
import functools
from pathlib import Path

import numpy as np
from host_kernels import HostCompiler
from kernel_requests import conversions, pairs, requested, trees
from kernel_runners import runner
from operands import FLOATS, HALVES, REAL, Guarded, dtype_of, first_difference, special_values

from hpccoll import _kernels
from hpccoll.cuda.kernel_arguments import FinishArguments, ManyArguments, PairArguments

HOST = HostCompiler()
KERNELS = Path(__file__).resolve().parents[1] / "kernels"

GRID = (2, 32)
"""Blocks and threads: few, so that each thread has several packets."""


@functools.cache
def program(family, *arguments):
    """Return the kernels of a family as one program."""
    return "".join(text for text, _ in requested(family, *arguments))


def launch(name, arguments, memories, family, *family_arguments, grid=GRID):
    """Run a kernel; `memories` are the arrays of bytes, each once, that it has addresses of."""
    different = {memory.ctypes.data: memory for memory in memories}
    runner().run(program(family, *family_arguments), name, arguments, grid, [*different.values()])


def address(array):
    return array.ctypes.data


def in_c(name):
    return "boolean" if name == "bool" else name


# --- pairs ----------------------------------------------------------------------------------------


def run_kernel(op, out, left, right, grid):
    arguments = PairArguments(*(address(x.array) for x in (out, left, right)), out.array.size)
    name = left.array.dtype.name
    memories = [out.memory, left.memory, right.memory]
    launch(f"pair_{op}_{in_c(name)}", arguments, memories, pairs, name, grid=grid)


def run_loop(op, out, left, right, grid):
    _kernels.combine(out.array, left.array, right.array, op)


def assert_pair(op, left, right, arrangement="apart", offsets=(0, 0, 0), grid=GRID):
    """Compare a kernel with the loop; of the operands and the result, each at its offset."""
    results = []
    for run in (run_kernel, run_loop):
        a, b = Guarded(left, offsets[1]), Guarded(right, offsets[2])
        if arrangement == "both":
            b = a
        out = {"left": a, "right": b, "both": a}.get(arrangement)
        out = out or Guarded(np.zeros_like(left), offsets[0])
        run(op, out, a, b, grid)
        results.append(out)
    got, wanted = results
    text = (op, arrangement, offsets, grid)
    assert got.bytes() == wanted.bytes(), (text, first_difference(got, wanted))


# --- division and conversions ---------------------------------------------------------------------


def assert_converted(
    kernel, x, out_dtype, wanted, divisor=0.0, offsets=((0, 0), (2, 1), (4, 4)), lengths=range(40),
    grid=GRID,
):  # fmt: skip
    """Compare a conversion of the whole array, and of as many elements as `lengths` has."""
    for n in (*lengths, len(x)):
        for out_offset, offset in offsets:
            out = Guarded(np.zeros(n, out_dtype), out_offset)
            source = Guarded(x[:n], offset)
            arguments = FinishArguments(address(out.array), address(source.array), n, divisor)
            launch(kernel, arguments, [out.memory, source.memory], conversions, grid=grid)
            expected = Guarded(wanted[:n], out_offset)
            assert out.bytes() == expected.bytes(), (n, first_difference(out, expected))


# --- many -----------------------------------------------------------------------------------------

NODE_PATH = """
#include <stdlib.h>
#include "tree.h"

/* What a rank of a node does: the result of all elements, in blocks. */
int reduce_on_node(void *reduce, void *divide, void *widen, void *narrow, double divisor,
                   size_t itemsize, size_t partial_itemsize, const char *const *inputs, int size,
                   size_t n, char *out)
{
    char *memory = malloc((size_t)MOST_LEVELS * BLOCK_BYTES);
    const struct loops loops = {reduce, divide, widen, narrow, divisor, itemsize, partial_itemsize};
    if (!memory)
        return 1;
    reduce_range(&loops, inputs, size, 0, n, &out, 1, memory);
    free(memory);
    return 0;
}
"""


@functools.cache
def node_path():
    code = HOST.compile_text(NODE_PATH, include=KERNELS)
    function = ctypes.CDLL(code.rstrip(b"\0").decode()).reduce_on_node
    pointers = 4 * [ctypes.c_void_p]
    sizes = [ctypes.c_double, ctypes.c_size_t, ctypes.c_size_t]
    arrays = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    function.argtypes = [*pointers, *sizes, *arrays]
    return function


def on_node(op, sources, divisor=0.0, partial=False):
    """Return what the node path makes of the arrays."""
    dtype, n = sources[0].dtype, sources[0].size
    widens = dtype.name in HALVES and op in ("sum", "prod")
    computed = np.dtype(np.float32) if widens else dtype
    out = np.zeros(n, computed if partial else dtype)
    addresses = (ctypes.c_void_p * len(sources))(*(address(x) for x in sources))
    status = node_path()(
        _kernels.reduce_address(op, computed.name),
        _kernels.divide_address(computed.name) if divisor else None,
        _kernels.widen_address(dtype.name) if widens else None,
        _kernels.narrow_address(dtype.name) if widens and not partial else None,
        divisor,
        dtype.itemsize,
        computed.itemsize,
        addresses,
        len(sources),
        n,
        address(out),
    )
    assert status == 0
    return out


def vectors(name, count, n):
    """Return arrays in which special values meet, and numbers whose sum depends on the order."""
    special = special_values(REAL.get(name, name))
    random = np.random.default_rng(count)
    made = []
    for _ in range(count):
        if name in FLOATS or name in REAL:
            x = random.uniform(-2, 2, 2 * n).astype(special.dtype)
        else:
            x = np.frombuffer(random.bytes(2 * n * special.itemsize), special.dtype).copy()
        mixed = random.random(x.size) < 0.5 / count
        x[mixed] = random.choice(special, mixed.sum())
        made.append(x.view(dtype_of(name))[:n].copy())
    return made


def assert_many(
    op, sources, divisor=0.0, partial=False, targets=1, offsets=(0, 0), in_place=False, grid=GRID
):
    """Compare a kernel with the node path; sources and targets are at their offsets."""
    wanted = on_node(op, sources, divisor, partial)
    name = in_c(sources[0].dtype.name)
    inputs = [Guarded(x, offsets[0]) for x in sources]
    outputs = [Guarded(np.zeros_like(wanted), offsets[1]) for _ in range(targets)]
    if in_place:
        outputs[-1] = inputs[-1]
    arguments = ManyArguments.of(
        [address(x.array) for x in inputs],
        [address(x.array) for x in outputs],
        wanted.size,
        divisor,
    )
    launch(
        f"many_{op}_{name}_{in_c(wanted.dtype.name)}",
        arguments,
        [x.memory for x in (*inputs, *outputs)],
        trees,
        sources[0].dtype.name,
        grid=grid,
    )
    expected = Guarded(wanted, offsets[1]).bytes()
    for out in outputs:
        assert out.bytes() == expected, (op, len(sources), divisor, partial, offsets, in_place)

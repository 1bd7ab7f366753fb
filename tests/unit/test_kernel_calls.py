"""The doors to the compiled loops: what there is, addresses, refusals, HPCCOLL_KERNEL."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpccoll import _kernels

# --- addresses ------------------------------------------------------------------------------------


def test_addresses_lead_to_the_loops(target):
    pointer, number = ctypes.c_void_p, ctypes.c_size_t
    x = np.arange(10, dtype=np.float32)
    half = np.zeros(10, np.float16)

    convert = ctypes.CFUNCTYPE(None, pointer, pointer, number)
    convert(_kernels.narrow_address("float16"))(half.ctypes.data, x.ctypes.data, 10)
    np.testing.assert_array_equal(half, x)
    convert(_kernels.widen_address("float16"))(x.ctypes.data, half.ctypes.data, 10)

    reduce = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, number)
    address = _kernels.reduce_address("sum", "float32")
    reduce(address)(x.ctypes.data, x.ctypes.data, x.ctypes.data, 10)
    divide = ctypes.CFUNCTYPE(None, pointer, ctypes.c_double, number)
    divide(_kernels.divide_address("float32"))(x.ctypes.data, 4, 10)
    np.testing.assert_array_equal(x, np.arange(10) / 2)


def test_each_target_has_its_own_loops():
    before = _kernels.target()
    addresses = set()
    for target in _kernels.targets():
        _kernels.set_target(target)
        addresses.add(_kernels.reduce_address("sum", "float32"))
    _kernels.set_target(before)
    assert len(addresses) == len(_kernels.targets())


# --- refusals -------------------------------------------------------------------------------------

FLOAT = np.zeros(4, np.float32)
STRIDED = np.zeros(8, np.float32)[::2]
READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False
FOREIGN = np.zeros(4, np.dtype(np.float32).newbyteorder())
OVERLAPPING = np.zeros(5, np.float32)


@pytest.mark.parametrize(
    ("call", "arguments", "error", "text"),
    [
        ("reduce_into", ([1.0], FLOAT, "sum"), TypeError, "acc must be a NumPy array, not list"),
        ("reduce_into", (FLOAT, 1.0, "sum"), TypeError, "incoming must be a NumPy array, not fl"),
        ("reduce_into", (np.zeros(4, "U1"), FLOAT, "sum"), TypeError, "acc has dtype <U1; wanted"),
        ("reduce_into", (FOREIGN, FLOAT, "sum"), TypeError, "foreign byte order; wanted one of"),
        ("reduce_into", (FLOAT, np.zeros(4), "sum"), TypeError, "incoming has dtype float64; wan"),
        ("reduce_into", (FLOAT, np.zeros(3, "f4"), "sum"), ValueError, "incoming has 3 elements; "),
        ("reduce_into", (FLOAT, FLOAT, "mean"), ValueError, "op is 'mean', which is unknown; want"),
        ("reduce_into", (FLOAT, FLOAT, ["sum"]), TypeError, "op must be a str, not list; wanted"),
        ("reduce_into", (FLOAT, FLOAT, "band"), TypeError, "'band' makes no sense for float32"),
        ("reduce_into", (np.zeros(2, bool),) * 2 + ("sum",), TypeError, "makes no sense for bool"),
        ("reduce_into", (np.zeros(2, "c8"),) * 2 + ("min",), TypeError, "one of sum, prod, land, "),
        ("reduce_into", (FLOAT, FLOAT, "sum", "up"), ValueError, "side is 'up'; wanted 'left' or"),
        ("reduce_into", (STRIDED, FLOAT, "sum"), BufferError, "acc is not C-contiguous"),
        ("reduce_into", (FLOAT, STRIDED, "sum"), BufferError, "incoming is not C-contiguous"),
        ("reduce_into", (READ_ONLY, FLOAT, "sum"), BufferError, "acc is read-only"),
        ("reduce_into", (OVERLAPPING[1:], OVERLAPPING[:4], "sum"), ValueError, "overlap in part"),
        ("combine", (READ_ONLY, FLOAT, FLOAT, "sum"), BufferError, "combine: out is read-only"),
        ("combine", (FLOAT, np.zeros(4), FLOAT, "sum"), TypeError, "combine: left has dtype"),
        ("combine", (FLOAT, FLOAT, STRIDED, "sum"), BufferError, "right is not C-contiguous"),
        ("combine", (FLOAT, FLOAT, np.zeros(5, "f4"), "sum"), ValueError, "right has 5 elements"),
        ("divide_by", (np.zeros(4, int), 2), TypeError, "x has dtype int64; wanted one of float16"),
        ("divide_by", (FLOAT, "2"), TypeError, "must be real number"),
        ("widen", (FLOAT, FLOAT), TypeError, "half has dtype float32; wanted one of float16, bflo"),
        ("widen", (np.zeros(4), np.zeros(4, "f2")), TypeError, "out has dtype float64; wanted one"),
        ("widen", (FLOAT, np.zeros(5, "f2")), ValueError, "half has 5 elements; wanted as many as"),
        ("widen", (FLOAT, FLOAT.view("f2")[:4]), ValueError, "out and half overlap"),
        ("narrow", (FLOAT, FLOAT), TypeError, "out has dtype float32; wanted one of float16"),
        ("narrow", (np.zeros(4, "f2"), np.zeros(4)), TypeError, "x has dtype float64; wanted one"),
        ("copy", (FLOAT, np.zeros(4)), TypeError, "copy: x has dtype float64; wanted that of out"),
        ("copy", (READ_ONLY, FLOAT), BufferError, "copy: out is read-only"),
        ("set_target", ("sse9",), ValueError, "'sse9', which does not exist; wanted one of basel"),
    ],
)
def test_refusals(call, arguments, error, text):
    with pytest.raises(error, match=text) as caught:
        getattr(_kernels, call)(*arguments)
    assert text.startswith("must be") or str(caught.value).startswith(f"{call}: ")


def test_nothing_is_written_after_a_refusal():
    assert not any(x.any() for x in (FLOAT, STRIDED, READ_ONLY, FOREIGN, OVERLAPPING))


# --- HPCCOLL_KERNEL -------------------------------------------------------------------------------


def target_with(value):
    """Import the module in a process of its own, with HPCCOLL_KERNEL set to `value`."""
    code = "from hpccoll import _kernels; print(_kernels.target())"
    root = str(Path(_kernels.__file__).parents[1])
    environment = {**os.environ, "HPCCOLL_KERNEL": value, "PYTHONPATH": root}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", _kernels.targets())
def test_environment_forces_a_target(name):
    assert target_with(name).stdout.strip() == name


def test_empty_environment_means_the_fastest_target():
    assert target_with("").stdout.strip() == _kernels.targets()[-1]


@pytest.mark.parametrize("name", ["sse9", "AVX2"])
def test_environment_refuses_an_unknown_target(name):
    process = target_with(name)
    choices = ", ".join(_kernels.targets())
    assert process.returncode != 0
    assert process.stderr.endswith(
        f"ValueError: HPCCOLL_KERNEL is {name!r}, which does not exist; wanted one of {choices}\n"
    )


@pytest.mark.parametrize("name", {"avx2", "avx512"} - set(_kernels.targets()))
def test_environment_refuses_what_the_cpu_does_not_run(name):
    assert f"HPCCOLL_KERNEL is {name!r}, which " in target_with(name).stderr

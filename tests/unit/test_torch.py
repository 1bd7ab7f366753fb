"""Tensors of torch as what users pass; see test_buffers.py."""

import sys

import ml_dtypes
import numpy as np
import pytest

from hpccoll import buffers

torch = pytest.importorskip("torch")


def numbered(shape=(3, 4), dtype=torch.float64):
    count = int(np.prod(shape))
    return torch.arange(1, count + 1, dtype=torch.float64).reshape(shape).to(dtype)


LAYOUTS = {
    "contiguous": lambda dtype: numbered(dtype=dtype),
    "gaps": lambda dtype: numbered((6, 8), dtype)[1::2, ::3],
    "transposed": lambda dtype: numbered((4, 3), dtype).T,
    "axes turned": lambda dtype: numbered((2, 3, 4), dtype).permute(1, 2, 0),
    "channels last": lambda dtype: numbered((2, 3, 4, 5), dtype).to(
        memory_format=torch.channels_last
    ),
    "no dimensions": lambda dtype: numbered((1,), dtype)[0],
    "empty": lambda dtype: numbered((0, 3), dtype),
}

DTYPES = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}


def check_same_memory(view, x):
    assert type(view) is np.ndarray
    assert view.shape == tuple(x.shape)
    assert view.dtype == DTYPES[x.dtype]
    if view.size:
        assert view.__array_interface__["data"][0] == x.data_ptr()
        strides = [step // view.itemsize for step in view.strides]
        assert [s for s, n in zip(strides, view.shape, strict=True) if n > 1] == [
            s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1
        ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_is_taken_where_it_lies(dtype, layout):
    x = LAYOUTS[layout](dtype)
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    check_same_memory(buffers.of_spec(x), x)
    memory, value = operand.new_result(None)
    memory[...] = operand.array
    result = value()
    assert type(result) is torch.Tensor
    assert result.dtype is x.dtype
    assert result.shape == x.shape
    assert result.is_contiguous()
    assert torch.equal(result, x)
    if x.numel():
        assert result.data_ptr() != x.data_ptr()
        operand.array[...] = 0
        assert not x.any()


def test_a_detached_parameter_is_taken():
    x = torch.nn.Parameter(numbered())
    for tensor in (x.detach(), x.data):
        check_same_memory(buffers.of_array("x", tensor).array, x)
    frozen = torch.nn.Parameter(numbered(), requires_grad=False)
    operand = buffers.of_array("x", frozen)
    check_same_memory(operand.array, frozen)
    assert type(operand.new_result(None)[1]()) is torch.Tensor


def test_a_gradient_is_taken_where_it_lies():
    weight = torch.nn.Parameter(numbered())
    (weight * weight).sum().backward()
    view = buffers.of_array("x", weight.grad).array
    view[0, 0] = 99
    assert weight.grad[0, 0] == 99


REFUSED = {
    "requires grad": (lambda: numbered().requires_grad_(), r"requires grad.*x\.detach\(\)"),
    "a parameter": (lambda: torch.nn.Parameter(numbered()), r"requires grad.*x\.detach\(\)"),
    "conjugated": (lambda: numbered(dtype=torch.complex64).conj(), "resolve_conj"),
    "negated": (lambda: numbered(dtype=torch.complex64).conj().imag, "resolve_neg"),
    "another device": (lambda: torch.empty(3, device="meta"), r"on meta; .*x\.cpu\(\)"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_whose_memory_is_not_its_elements_is_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(TypeError, match=text):
        buffers.of_array("x", make())


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", [name for name in REFUSED if name != "another device"])
def test_neither_is_it_taken_as_a_spec(name):
    with pytest.raises(TypeError, match=REFUSED[name][1]):
        buffers.of_spec(REFUSED[name][0](), "x")


def test_device_memory_is_left_to_mpi4py():
    assert buffers.of_spec(REFUSED["another device"][0]()) is None


def test_types_that_numpy_does_not_know_are_refused():
    with pytest.raises(TypeError, match="Float8_e5m2"):
        buffers.of_array("x", numbered(dtype=torch.float8_e5m2))


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises((ImportError, TypeError), match="ml_dtypes"):
        buffers.of_array("x", numbered(dtype=torch.bfloat16))


def test_torch_is_used_only_where_it_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    buffers.of_array("x", np.ones(3))
    assert "torch" not in sys.modules

"""The table of operations: what is known by which name, and what makes sense on which type."""

import inputs
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.ops import OPERATIONS, check_type, find_operation, kind_of

MPI_OPS = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
    "land": MPI.LAND,
    "lor": MPI.LOR,
    "lxor": MPI.LXOR,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
}


def test_the_table_holds_what_is_promised():
    assert set(OPERATIONS) == set(inputs.OPS)
    assert [name for name, operation in OPERATIONS.items() if operation.divides] == ["mean"]
    for name, operation in OPERATIONS.items():
        assert operation.name == name
        assert isinstance(getattr(np, operation.ufunc), np.ufunc)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_found_by_its_name(name):
    assert find_operation(name) is OPERATIONS[name]
    assert find_operation("".join(name)) is OPERATIONS[name]  # also by an equal string


@pytest.mark.parametrize("name", MPI_OPS)
def test_an_operation_is_found_by_its_mpi_object(name):
    assert find_operation(MPI_OPS[name]) is OPERATIONS[name]
    assert find_operation(MPI.Op(MPI_OPS[name])) is OPERATIONS[name]


def test_operations_of_mpi_and_of_the_table_are_the_same_ones():
    assert {name: getattr(MPI, op.mpi) for name, op in OPERATIONS.items() if op.mpi} == MPI_OPS


@pytest.mark.parametrize("name", ["MAXLOC", "MINLOC", "REPLACE", "NO_OP"])
def test_operations_without_loops_are_left_to_mpi(name):
    assert find_operation(getattr(MPI, name)) is None


def test_operations_that_users_make_are_left_to_mpi():
    op = MPI.Op.Create(lambda x, y, datatype: None, commute=True)
    try:
        assert find_operation(op) is None
    finally:
        op.Free()


@pytest.mark.parametrize("name", ["", "SUM", "Sum", "sum ", "add", "average", "avg", "maxloc"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(name):
    with pytest.raises(ValueError, match=f"unknown op {name!r}; choose from sum, mean, prod") as e:
        find_operation(name)
    assert all(known in str(e.value) for known in OPERATIONS)


def test_the_null_operation_is_refused():
    with pytest.raises(ValueError, match=r"op is MPI\.OP_NULL"):
        find_operation(MPI.OP_NULL)


@pytest.mark.parametrize("op", [None, 3, b"sum", np.add, sum, MPI.DOUBLE, ["sum"]])
def test_what_is_no_operation_is_refused(op):
    with pytest.raises(TypeError, match=f"of type {type(op).__name__}; wanted an mpi4py.MPI.Op"):
        find_operation(op)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", inputs.DTYPES, ids=str)
def test_what_has_a_meaning_is_allowed_and_nothing_else(op, dtype):
    # Logical operations on floating types have no MPI counterpart, but one in NumPy.
    allowed = inputs.supports(dtype, op) or (op in inputs.LOGICAL and dtype.kind in "fcV")
    if allowed:
        check_type(OPERATIONS[op], dtype)
    else:
        with pytest.raises(TypeError, match=f"op {op!r} cannot run on {dtype}.*; it takes "):
            check_type(OPERATIONS[op], dtype)


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        ("sum", "bool", r"use 'lor' \(any\), 'land' \(all\)"),
        ("mean", "bool", r"use 'lor' \(any\), 'land' \(all\)"),
        ("prod", "bool", "use 'land'"),
        (
            "mean",
            "int32",
            "convert to a floating type, or use 'sum'.*floating types, complex types$",
        ),
        ("mean", "uint8", "convert to a floating type, or use 'sum'"),
        ("min", "complex64", "complex numbers have no order"),
        ("max", "complex128", "complex numbers have no order"),
        ("fmin", "complex64", "complex numbers have no order"),
        ("fmax", "complex64", "complex numbers have no order"),
        ("bor", "float32", "use 'lor'.*; it takes bool, signed integers, unsigned integers$"),
        ("band", "complex64", "use 'lor', 'land', 'lxor'"),
        ("sum", "M8[s]", "cannot run on datetime64"),
        ("prod", "m8[s]", "cannot run on timedelta64"),
        ("mean", "M8[s]", "cannot run on datetime64"),
        ("lor", "m8[s]", "cannot run on timedelta64"),
        ("sum", "O", "cannot run on object"),
        ("max", "U3", "cannot run on <U3"),
        ("lor", "V4", "cannot run on"),
    ],
)
def test_a_refusal_says_why_and_what_to_use(op, dtype, text):
    with pytest.raises(TypeError, match=text):
        check_type(OPERATIONS[op], np.dtype(dtype))


@pytest.mark.parametrize(("op", "dtype"), [("sum", "m8[s]"), ("min", "M8[D]"), ("max", "m8[ms]")])
def test_times_and_durations_have_the_operations_that_make_sense(op, dtype):
    check_type(OPERATIONS[op], np.dtype(dtype))


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "min"])
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "longdouble", ">f8"])
def test_floating_types_of_any_width_and_byte_order_are_allowed(op, dtype):
    assert kind_of(np.dtype(dtype)) == "f"
    check_type(OPERATIONS[op], np.dtype(dtype))


def test_kinds_are_those_of_numpy_but_for_bfloat16():
    assert [kind_of(np.dtype(code)) for code in ("?", "i2", "u8", "f2", "c8", "O", "V3")] == list(
        "biufcOV"
    )
    assert kind_of(np.dtype(ml_dtypes.bfloat16)) == "f"
    assert kind_of(np.dtype([("bfloat16", "f4")])) == "V"

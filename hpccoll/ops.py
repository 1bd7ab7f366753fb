"""The table of operations: names, what they do, and on which types they make sense.

Names are those of MPI in lower case, plus "mean", "fmin" and "fmax". What MPI calls ``MPI.SUM`` is
"sum" here; both are accepted wherever an operation is asked for.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes
    ----------
    name : str
        What users pass as `op`.
    kernel : str
        The kernel that combines two elements; "mean" adds, and divides when the sum is complete.
    ufunc : str
        The NumPy function that does the same, for types without a kernel.
    kinds : str
        `numpy.dtype.kind` of the types it makes sense on; "h" stands for the half types,
        of which NumPy knows only one.
    mpi : str
        Name of the predefined MPI operation, or empty.
    why_not : dict
        For kinds that people try: why it makes no sense, and what to use.
    """

    name: str
    kernel: str
    ufunc: str
    kinds: str
    mpi: str
    why_not: dict[str, str]

    @property
    def divides(self) -> bool:
        """Whether complete elements are divided by the number of ranks."""
        return self.name == "mean"


_NO_BOOL_SUM = "a sum of bool has no one meaning: use 'lor' (any), 'land' (all), or convert to int"
_NO_ORDER = "complex numbers have no order"
_NO_BITS = "bitwise operations take bool and integers; for truth values use 'lor', 'land', 'lxor'"
_BITS = {"f": _NO_BITS, "c": _NO_BITS}

OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("sum", "sum", "add", "iufcm", "SUM", {"b": _NO_BOOL_SUM}),
        Operation(
            "mean",
            "sum",
            "add",
            "fc",
            "",
            {
                "b": _NO_BOOL_SUM,
                "i": "a mean of integers is no integer: convert to a floating type, or use 'sum'",
                "u": "a mean of integers is no integer: convert to a floating type, or use 'sum'",
            },
        ),
        Operation("prod", "prod", "multiply", "iufc", "PROD", {"b": "use 'land'"}),
        Operation("min", "min", "minimum", "biufmM", "MIN", {"c": _NO_ORDER}),
        Operation("max", "max", "maximum", "biufmM", "MAX", {"c": _NO_ORDER}),
        Operation("fmin", "fmin", "fmin", "biufmM", "", {"c": _NO_ORDER}),
        Operation("fmax", "fmax", "fmax", "biufmM", "", {"c": _NO_ORDER}),
        Operation("land", "land", "logical_and", "biufc", "LAND", {}),
        Operation("lor", "lor", "logical_or", "biufc", "LOR", {}),
        Operation("lxor", "lxor", "logical_xor", "biufc", "LXOR", {}),
        Operation("band", "band", "bitwise_and", "biu", "BAND", _BITS),
        Operation("bor", "bor", "bitwise_or", "biu", "BOR", _BITS),
        Operation("bxor", "bxor", "bitwise_xor", "biu", "BXOR", _BITS),
    )
}


@functools.lru_cache(maxsize=256)  # NumPy makes the name of a type anew each time
def kind_of(dtype: np.dtype[Any]) -> str:
    """Return `numpy.dtype.kind`, with "f" for bfloat16 (which NumPy files under void)."""
    return "f" if dtype.name == "bfloat16" else dtype.kind


def find_operation(op: object) -> Operation | None:
    """Return the operation that `op` names, or None for an MPI operation that has no kernels.

    Parameters
    ----------
    op : str or mpi4py.MPI.Op
        A name of this table, or a predefined MPI operation.

    Raises
    ------
    TypeError, ValueError
        `op` is of another type, or an unknown name. The text lists the names.
    """
    if isinstance(op, str):
        try:
            return OPERATIONS[op]
        except KeyError:
            message = f"unknown op {op!r}; choose from {', '.join(OPERATIONS)}"
            raise ValueError(message) from None
    from mpi4py import MPI

    if isinstance(op, MPI.Op):
        for operation in OPERATIONS.values():
            if operation.mpi and op == getattr(MPI, operation.mpi):
                return operation
        if op == MPI.OP_NULL:
            message = "op is MPI.OP_NULL; wanted an operation"
            raise ValueError(message)
        return None
    message = (
        f"op is {op!r} of type {type(op).__name__}; "
        f"wanted an mpi4py.MPI.Op or one of {', '.join(OPERATIONS)}"
    )
    raise TypeError(message)


def check_type(operation: Operation, dtype: np.dtype[Any]) -> None:
    """Raise TypeError where the operation makes no sense on the type."""
    kind = kind_of(dtype)
    if kind in operation.kinds:
        return
    allowed = [
        name
        for letter, name in {
            "b": "bool",
            "i": "signed integers",
            "u": "unsigned integers",
            "f": "floating types",
            "c": "complex types",
            "m": "timedelta64",
            "M": "datetime64",
        }.items()
        if letter in operation.kinds
    ]
    reason = operation.why_not.get(kind)
    message = f"op {operation.name!r} cannot run on {dtype}"
    message += f" ({reason})" if reason else ""
    message += f"; it takes {', '.join(allowed)}"
    raise TypeError(message)

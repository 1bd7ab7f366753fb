"""Makes sense of any `Call`: what does not go together is replaced by what does.

So the generator may draw fields one by one, and the shrinker change them one by one.
"""

from dataclasses import replace

from fuzz.data import COMMON, FLOATING, operations_of
from fuzz.steps import Call
from hpccoll.algorithms import AUTO, COLLECTIVES, REGISTRY

SCALARS = ("scalar", "python scalar")
PYTHON_TYPES = ("bool", "int64", "float64", "complex128")
ARRAY = "array"
FORMS_OF_BUFFERS = (
    ARRAY, "type", "code", "count", "count and type", "both", "part", "bytes", "memoryview",
)  # fmt: skip
TYPED = tuple(name for name in COMMON if name not in ("float16", "bfloat16"))
"""Types that MPI has, too."""


def normal(call: Call) -> Call:
    """Return the call that this one stands for."""
    kind = COLLECTIVES[call.collective]
    changed: dict[str, object] = {}
    method = call.door == "method"
    if call.collective == "barrier":
        return Call(
            "barrier", call.number, call.comm, call.door, form=_form(call), times=call.times
        )
    changed["form"] = _form(call)

    rows = call.rows
    if kind.split and method and not call.vector:
        rows = rows[:1]
    if not kind.split:
        rows = rows[:1]
    if not rows and (call.rest or (method and kind.split) or call.collective == "reduce_scatter"):
        rows = (2,)
    changed["rows"] = rows

    where = call.where
    if call.collective == "broadcast" and (method or where == "new"):
        where = "in place"
    elif method and where == "new":
        where = "apart"
    source = call.source
    if source in SCALARS:
        if method or rows:
            source = "C order"
        else:
            where = "new"
            source = source if call.dtype in PYTHON_TYPES else "scalar"
            changed["shared"] = "none"
    if where == "in place" and not rows and call.collective == "allgather":
        where = "apart"  # a row of the output has one dimension
    changed["where"], changed["source"] = where, source
    changed["target"] = "C order" if where in ("new", "in place", "overlap") else call.target
    if where == "overlap":
        changed["source"] = "C order"
    else:
        changed["shift"] = 0
    if where in ("in place", "overlap"):
        changed["readonly"] = False

    changed.update(_operation(call, kind.reduces))
    changed["root"] = call.root if kind.rooted else 0
    changed["vector"] = call.vector and method and kind.split
    changed["displaced"] = (
        call.displaced and changed["vector"] and call.collective == "allgather"
        and where != "overlap"
    )  # fmt: skip
    changed["counts"] = call.counts or not kind.split or bool(changed["displaced"])
    if method and call.collective == "reduce_scatter" and where == "in place":
        changed["counts"] = True
    changed["form_of_buffer"] = _buffer(call, changed)
    if not method and call.algorithm.partition(":")[0] not in REGISTRY[call.collective]:
        changed["algorithm"] = AUTO
    return replace(call, **changed)  # type: ignore[arg-type]


def _form(call: Call) -> str:
    return "blocking" if call.form == "prepared" and call.door == "function" else call.form


def _operation(call: Call, reduces: bool) -> dict[str, object]:
    """Return what the operation is, and what goes with it."""
    if not reduces:
        return {"op": "sum", "rounded": False, "mpi_op": False}
    op = call.op if call.op in operations_of(call.dtype) else operations_of(call.dtype)[0]
    may_round = op in ("sum", "mean", "prod") and call.dtype in FLOATING
    return {"op": op, "rounded": call.rounded and may_round}


def _buffer(call: Call, changed: dict[str, object]) -> str:
    """Return the form of buffers that can hold: those with a type or a count want C order."""
    form = call.form_of_buffer
    plain = (changed["source"], changed["target"], call.turn) == ("C order", "C order", 0)
    if call.door == "function" or not plain or changed["where"] == "overlap":
        return ARRAY
    if form in ("array", "count"):
        return form
    return form if call.dtype in TYPED else ARRAY

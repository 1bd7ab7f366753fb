"""Reduction loops in C, for every operation, element type and CPU target.

The loops are chosen once, at import: the fastest that this CPU runs, or the one that the
environment variable ``HPCCOLL_KERNEL`` names. All targets give the same bytes. What the loops do
to NaN, zeros and overflow is written down where it is decided, in ``kernels/operations.h``.

Arrays are NumPy's, C-contiguous, in native byte order, at any address. TypeError says that an
argument is no array, or of a dtype that there is no loop for; ValueError that a name is unknown,
sizes differ, or arrays overlap that must not; BufferError that an array is not contiguous, or
read-only. Nothing is written then.
"""

import os

import numpy

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from libc.string cimport memcpy

from reduce_loops cimport (
    OPERATION_COUNT,
    TARGET_COUNT,
    TYPE_COUNT,
    TYPE_float32,
    compiled_targets,
    convert_loop,
    divide_loop,
    operation_names,
    reduce_loop,
    target_loops,
    type_itemsizes,
    type_names,
)


cdef extern from "Python.h":
    # Declared here because a failure is answered with an error text of our own.
    int PyObject_GetBuffer(object array, Py_buffer *view, int flags)


OPERATIONS = tuple([operation_names[i].decode() for i in range(OPERATION_COUNT)])
TYPES = tuple([type_names[i].decode() for i in range(TYPE_COUNT)])

cdef object ndarray = numpy.ndarray
cdef dict operation_numbers = {name: number for number, name in enumerate(OPERATIONS)}
cdef dict type_numbers = {name: number for number, name in enumerate(TYPES)}

# By dtype object, which hashes faster than its name is made. bfloat16 is none of NumPy's own and
# joins when it is first met.
cdef dict dtype_numbers = {
    numpy.dtype(name): number for name, number in type_numbers.items() if name != "bfloat16"}

cdef int target_number = 0
cdef const target_loops *loops = compiled_targets[0].loops

# The memory of up to three arrays, the one to write first.
cdef struct Views:
    Py_buffer[3] at
    int count

# A loop over so few bytes ends sooner than the GIL is handed over and taken back.
cdef Py_ssize_t SHORT_BYTES = 4096


def targets():
    """Return the CPU targets that run here, slowest first.

    Returns
    -------
    tuple of str
        Some of "baseline", "avx2" and "avx512".
    """
    return tuple([compiled_targets[i].name.decode() for i in range(TARGET_COUNT)
                  if compiled_targets[i].runs_here()])


def target():
    """Return the CPU target whose loops run.

    Returns
    -------
    str
        One of `targets()`.
    """
    return compiled_targets[target_number].name.decode()


def set_target(str name):
    """Run the loops of another CPU target from now on.

    Addresses handed out before still lead to the loops of the target they were asked for.

    Parameters
    ----------
    name : str
        One of `targets()`.

    Raises
    ------
    ValueError
        If there is no such target, or this CPU does not run it.
    """
    choose_target(name, "set_target: name")


cdef int choose_target(str name, str source) except -1:
    global target_number, loops
    cdef int i
    compiled = []
    for i in range(TARGET_COUNT):
        compiled.append(compiled_targets[i].name.decode())
        if compiled[i] == name and compiled_targets[i].runs_here():
            target_number = i
            loops = compiled_targets[i].loops
            return 0
    reason = "which this CPU does not run" if name in compiled else "which does not exist"
    raise ValueError(f"{source} is {name!r}, {reason}; wanted one of {', '.join(targets())}")


def supports(str op, str dtype_name):
    """Tell whether there is a loop for an operation on a type; unknown names are none."""
    return reduce_address(op, dtype_name) != 0


def reduce_into(acc, incoming, op, side="left"):
    """Reduce an array into another, element by element.

    Parameters
    ----------
    acc : numpy.ndarray
        Receives ``incoming op acc``, or ``acc op incoming``.
    incoming : numpy.ndarray
        Of the dtype and size of `acc`; the same memory, or apart from it.
    op : str
        One of `OPERATIONS`.
    side : {"left", "right"}
        Where `incoming` stands.
    """
    cdef Views views
    cdef int number = number_of(acc, "reduce_into", "acc")
    cdef reduce_loop loop = loop_of(op, number, "reduce_into")
    cdef bint left = is_left(side)
    need_number(incoming, number, "reduce_into", "incoming", "acc")
    views.count = 0
    try:
        open_view(&views, acc, PyBUF_WRITABLE, "reduce_into", "acc")
        open_view(&views, incoming, PyBUF_SIMPLE, "reduce_into", "incoming")
        need_match(&views, 1, number, "reduce_into", "acc", "incoming")
        if left:
            run(loop, views.at[0].buf, views.at[1].buf, views.at[0].buf, views.at[0].len, number)
        else:
            run(loop, views.at[0].buf, views.at[0].buf, views.at[1].buf, views.at[0].len, number)
    finally:
        close(&views)


def combine(out, left, right, op):
    """Reduce two arrays into a third: ``out = left op right``, element by element.

    Parameters
    ----------
    out : numpy.ndarray
        The same memory as `left` or `right`, or apart from them.
    left, right : numpy.ndarray
        Of the dtype and size of `out`.
    op : str
        One of `OPERATIONS`.
    """
    cdef Views views
    cdef int number = number_of(out, "combine", "out")
    cdef reduce_loop loop = loop_of(op, number, "combine")
    need_number(left, number, "combine", "left", "out")
    need_number(right, number, "combine", "right", "out")
    views.count = 0
    try:
        open_view(&views, out, PyBUF_WRITABLE, "combine", "out")
        open_view(&views, left, PyBUF_SIMPLE, "combine", "left")
        open_view(&views, right, PyBUF_SIMPLE, "combine", "right")
        need_match(&views, 1, number, "combine", "out", "left")
        need_match(&views, 2, number, "combine", "out", "right")
        run(loop, views.at[0].buf, views.at[1].buf, views.at[2].buf, views.at[0].len, number)
    finally:
        close(&views)


def divide_by(x, double divisor):
    """Divide an array in place.

    Half types are divided in float32 and rounded once. Division by zero gives infinities and NaN.

    Parameters
    ----------
    x : numpy.ndarray
        Of a floating or complex type.
    divisor : float
        Rounded to the type that is computed in: float32 for halves, float32 and complex64.
    """
    cdef Views views
    cdef int number = number_of(x, "divide_by", "x")
    cdef divide_loop loop = loops.divide[number]
    if loop == NULL:
        raise wrong_dtype(x, "divide_by", "x", [name for name in TYPES if divide_address(name)])
    views.count = 0
    open_view(&views, x, PyBUF_WRITABLE, "divide_by", "x")
    with nogil:
        loop(views.at[0].buf, divisor, views.at[0].len // type_itemsizes[number])
    close(&views)


def widen(out, half):
    """Convert an array of a half type to float32, exactly.

    Parameters
    ----------
    out : numpy.ndarray
        float32, apart from `half` in memory.
    half : numpy.ndarray
        float16 or bfloat16, of the size of `out`.
    """
    cdef int number = number_of(half, "widen", "half")
    if loops.widen[number] == NULL:
        raise wrong_dtype(half, "widen", "half", ["float16", "bfloat16"])
    if number_of(out, "widen", "out") != TYPE_float32:
        raise wrong_dtype(out, "widen", "out", ["float32"])
    convert(loops.widen[number], out, TYPE_float32, half, number, "widen", "half")


def narrow(out, x):
    """Convert a float32 array to a half type, rounding to nearest, ties to even.

    Parameters
    ----------
    out : numpy.ndarray
        float16 or bfloat16, apart from `x` in memory.
    x : numpy.ndarray
        float32, of the size of `out`.
    """
    cdef int number = number_of(out, "narrow", "out")
    if loops.narrow[number] == NULL:
        raise wrong_dtype(out, "narrow", "out", ["float16", "bfloat16"])
    if number_of(x, "narrow", "x") != TYPE_float32:
        raise wrong_dtype(x, "narrow", "x", ["float32"])
    convert(loops.narrow[number], out, number, x, TYPE_float32, "narrow", "x")


def copy(out, x):
    """Copy an array.

    Parameters
    ----------
    out : numpy.ndarray
        The same memory as `x`, or apart from it.
    x : numpy.ndarray
        Of the dtype and size of `out`.
    """
    cdef Views views
    cdef int number = number_of(out, "copy", "out")
    need_number(x, number, "copy", "x", "out")
    views.count = 0
    try:
        open_view(&views, out, PyBUF_WRITABLE, "copy", "out")
        open_view(&views, x, PyBUF_SIMPLE, "copy", "x")
        need_match(&views, 1, number, "copy", "out", "x")
        if views.at[0].buf != views.at[1].buf:
            with nogil:
                memcpy(views.at[0].buf, views.at[1].buf, views.at[0].len)
    finally:
        close(&views)


# Addresses, for other compiled modules. The loops need no GIL.

def reduce_address(str op, str dtype_name):
    """Return where the active target's loop for an operation on a type lies; 0 if there is none.

    The loop is a ``void (*)(void *out, const void *left, const void *right, size_t n)``.
    """
    number = type_numbers.get(dtype_name)
    operation = operation_numbers.get(op)
    if number is None or operation is None:
        return 0
    return <size_t>loops.reduce[<int>operation][<int>number]


def divide_address(str dtype_name):
    """Return where the active target's loop that divides a type lies; 0 if there is none.

    The loop is a ``void (*)(void *x, double divisor, size_t n)``.
    """
    number = type_numbers.get(dtype_name)
    return 0 if number is None else <size_t>loops.divide[<int>number]


def widen_address(str half_dtype_name):
    """Return where the active target's loop from a half type to float32 lies; 0 if there is none.

    The loop is a ``void (*)(void *out, const void *x, size_t n)``.
    """
    number = type_numbers.get(half_dtype_name)
    return 0 if number is None else <size_t>loops.widen[<int>number]


def narrow_address(str half_dtype_name):
    """Return where the active target's loop from float32 to a half type lies; 0 if there is none.

    The loop is a ``void (*)(void *out, const void *x, size_t n)``.
    """
    number = type_numbers.get(half_dtype_name)
    return 0 if number is None else <size_t>loops.narrow[<int>number]


cdef inline void run(
    reduce_loop loop, void *out, const void *left, const void *right, Py_ssize_t nbytes, int number
) noexcept:
    cdef size_t n = <size_t>nbytes // type_itemsizes[number]
    if nbytes <= SHORT_BYTES:
        loop(out, left, right, n)
    else:
        with nogil:
            loop(out, left, right, n)


cdef int convert(
    convert_loop loop, out, int out_number, x, int x_number, str call, str argument
) except -1:
    cdef Views views
    cdef size_t count, other_count
    views.count = 0
    try:
        open_view(&views, out, PyBUF_WRITABLE, call, "out")
        open_view(&views, x, PyBUF_SIMPLE, call, argument)
        count = views.at[0].len // type_itemsizes[out_number]
        other_count = views.at[1].len // type_itemsizes[x_number]
        if count != other_count:
            raise wrong_count(other_count, count, call, "out", argument)
        if overlap(&views, 1):
            raise ValueError(f"{call}: out and {argument} overlap; wanted them apart in memory")
        with nogil:
            loop(views.at[0].buf, views.at[1].buf, count)
    finally:
        close(&views)
    return 0


# What the calls above ask of their arguments. Each check is a comparison; the texts are made where
# one fails.

cdef inline int number_of(array, str call, str argument) except -1:
    """Return the number of the array's type."""
    cdef PyObject *number = NULL
    if PyObject_TypeCheck(array, <PyTypeObject *>ndarray):
        number = PyDict_GetItemWithError(dtype_numbers, array.dtype)
    return <int><object>number if number != NULL else first_seen_number(array, call, argument)


cdef int first_seen_number(array, str call, str argument) except -1:
    if not isinstance(array, ndarray):
        raise TypeError(f"{call}: {argument} must be a NumPy array, not {type(array).__name__}")
    dtype = array.dtype
    if dtype.name != "bfloat16" or dtype.itemsize != 2 or not dtype.isnative:
        raise wrong_dtype(array, call, argument, TYPES)
    dtype_numbers[dtype] = type_numbers["bfloat16"]
    return type_numbers["bfloat16"]


cdef object wrong_dtype(array, str call, str argument, choices):
    order = "" if array.dtype.isnative else " of foreign byte order"
    return TypeError(
        f"{call}: {argument} has dtype {array.dtype}{order}; wanted one of {', '.join(choices)}")


cdef inline int need_number(array, int number, str call, str argument, str other) except -1:
    if number_of(array, call, argument) != number:
        raise TypeError(
            f"{call}: {argument} has dtype {array.dtype}; wanted that of {other}, {TYPES[number]}")
    return 0


cdef inline reduce_loop loop_of(op, int number, str call) except NULL:
    cdef PyObject *operation = NULL
    if isinstance(op, str):
        operation = PyDict_GetItemWithError(operation_numbers, op)
    if operation == NULL or loops.reduce[<int><object>operation][number] == NULL:
        raise wrong_op(op, number, call)
    return loops.reduce[<int><object>operation][number]


cdef object wrong_op(op, int number, str call):
    choices = [name for name in OPERATIONS if reduce_address(name, TYPES[number])]
    wanted = f"wanted one of {', '.join(choices)}"
    if not isinstance(op, str):
        return TypeError(f"{call}: op must be a str, not {type(op).__name__}; {wanted}")
    if op not in operation_numbers:
        return ValueError(f"{call}: op is {op!r}, which is unknown; {wanted}")
    return TypeError(f"{call}: op {op!r} makes no sense for {TYPES[number]}; {wanted}")


cdef inline int is_left(side) except -1:
    if side == "left":
        return 1
    if side == "right":
        return 0
    raise ValueError(f"reduce_into: side is {side!r}; wanted 'left' or 'right'")


cdef inline int open_view(Views *views, array, int flags, str call, str argument) except -1:
    if PyObject_GetBuffer(array, &views.at[views.count], flags) < 0:
        PyErr_Clear()
        raise wrong_layout(array, call, argument)
    views.count += 1
    return 0


cdef inline int close(Views *views) except -1:
    cdef int i
    for i in range(views.count):
        PyBuffer_Release(&views.at[i])
    return 0


cdef object wrong_layout(array, str call, str argument):
    if not array.flags.c_contiguous:
        return BufferError(
            f"{call}: {argument} is not C-contiguous (shape {array.shape}, strides "
            f"{array.strides}); wanted a C-contiguous array")
    return BufferError(f"{call}: {argument} is read-only; wanted a writable array")


cdef inline int need_match(
    Views *views, int i, int number, str call, str out, str argument
) except -1:
    """See that view `i` is of the size of view 0, and the same memory or apart from it."""
    cdef Py_ssize_t itemsize = type_itemsizes[number]
    if views.at[i].len != views.at[0].len:
        raise wrong_count(
            views.at[i].len // itemsize, views.at[0].len // itemsize, call, out, argument)
    if views.at[i].buf != views.at[0].buf and overlap(views, i):
        raise ValueError(
            f"{call}: {out} and {argument} overlap in part; wanted the same memory, or apart")
    return 0


cdef object wrong_count(count, wanted, str call, str out, str argument):
    return ValueError(
        f"{call}: {argument} has {count} elements; wanted as many as in {out}, {wanted}")


cdef inline bint overlap(Views *views, int i) noexcept:
    cdef char *out = <char *>views.at[0].buf
    cdef char *x = <char *>views.at[i].buf
    return out < x + views.at[i].len and x < out + views.at[0].len


choose_target(os.environ.get("HPCCOLL_KERNEL") or list(targets()).pop(), "HPCCOLL_KERNEL")

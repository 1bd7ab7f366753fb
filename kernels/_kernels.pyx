"""Reduction loops in C, for every operation, element type and CPU target.

The loops are chosen once, at import: the fastest that this CPU runs, or the one that the
environment variable ``HPCCOLL_KERNEL`` names. All targets give the same bytes. What the loops do
to NaN, zeros and overflow is written down where it is decided, in ``kernels/operations.h``.
"""

import os

import numpy

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from libc.string cimport memcpy


cdef extern from "Python.h":
    # Declared here because a failure is answered with an error text of our own.
    int PyObject_GetBuffer(object array, Py_buffer *view, int flags)


cdef extern from "reduce_loops.h" nogil:
    enum:
        OPERATION_COUNT
        TYPE_COUNT
        TARGET_COUNT
        TYPE_float32
    ctypedef void (*reduce_loop)(
        void *out, const void *left, const void *right, size_t n) noexcept nogil
    ctypedef void (*divide_loop)(void *x, double divisor, size_t n) noexcept nogil
    ctypedef void (*convert_loop)(void *out, const void *x, size_t n) noexcept nogil
    struct target_loops:
        (reduce_loop[TYPE_COUNT])[OPERATION_COUNT] reduce
        divide_loop[TYPE_COUNT] divide
        convert_loop[TYPE_COUNT] widen
        convert_loop[TYPE_COUNT] narrow
    struct compiled_target:
        const char *name
        const target_loops *loops
        int (*runs_here)() noexcept nogil
    const char **operation_names
    const char **type_names
    size_t *type_itemsizes
    compiled_target *compiled_targets


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
    """Tell whether there is a loop for an operation on a type.

    Parameters
    ----------
    op : str
        Any name; one of `OPERATIONS` where the answer is to be true.
    dtype_name : str
        Any name; one of `TYPES` where the answer is to be true.

    Returns
    -------
    bool
    """
    return reduce_address(op, dtype_name) != 0


def reduce_into(acc, incoming, op, side="left"):
    """Reduce an array into another, element by element.

    Parameters
    ----------
    acc : numpy.ndarray
        C-contiguous and writable; receives ``incoming op acc``, or ``acc op incoming``.
    incoming : numpy.ndarray
        C-contiguous, of the dtype and size of `acc`; `acc` itself, or apart from it in memory.
    op : str
        One of `OPERATIONS`.
    side : {"left", "right"}
        Where `incoming` stands.

    Raises
    ------
    TypeError
        If an argument is no array, or of a type without loops for `op`.
    ValueError
        If `op` or `side` is unknown, the sizes differ, or the arrays overlap in part.
    BufferError
        If an array is not C-contiguous, or `acc` is read-only.
    """
    cdef Py_buffer target, source
    cdef int number = number_of(acc, "reduce_into", "acc")
    cdef reduce_loop loop = loop_of(op, number, "reduce_into")
    cdef bint left = is_left(side)
    need_number(incoming, number, "reduce_into", "incoming", "acc")
    open_buffer(acc, &target, PyBUF_WRITABLE, "reduce_into", "acc")
    try:
        open_buffer(incoming, &source, PyBUF_SIMPLE, "reduce_into", "incoming")
        try:
            need_same_size(&target, &source, number, "reduce_into", "acc", "incoming")
            need_same_or_apart(&target, &source, "reduce_into", "acc", "incoming")
            if left:
                run(loop, target.buf, source.buf, target.buf, target.len, number)
            else:
                run(loop, target.buf, target.buf, source.buf, target.len, number)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)


def combine(out, left, right, op):
    """Reduce two arrays into a third: ``out = left op right``, element by element.

    Parameters
    ----------
    out : numpy.ndarray
        C-contiguous and writable; may be `left` or `right`, or lie apart from them in memory.
    left, right : numpy.ndarray
        C-contiguous, of the dtype and size of `out`.
    op : str
        One of `OPERATIONS`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a type without loops for `op`.
    ValueError
        If `op` is unknown, the sizes differ, or `out` overlaps an operand in part.
    BufferError
        If an array is not C-contiguous, or `out` is read-only.
    """
    cdef Py_buffer target, first, second
    cdef int number = number_of(out, "combine", "out")
    cdef reduce_loop loop = loop_of(op, number, "combine")
    need_number(left, number, "combine", "left", "out")
    need_number(right, number, "combine", "right", "out")
    open_buffer(out, &target, PyBUF_WRITABLE, "combine", "out")
    try:
        open_buffer(left, &first, PyBUF_SIMPLE, "combine", "left")
        try:
            open_buffer(right, &second, PyBUF_SIMPLE, "combine", "right")
            try:
                need_same_size(&target, &first, number, "combine", "out", "left")
                need_same_size(&target, &second, number, "combine", "out", "right")
                need_same_or_apart(&target, &first, "combine", "out", "left")
                need_same_or_apart(&target, &second, "combine", "out", "right")
                run(loop, target.buf, first.buf, second.buf, target.len, number)
            finally:
                PyBuffer_Release(&second)
        finally:
            PyBuffer_Release(&first)
    finally:
        PyBuffer_Release(&target)


def divide_by(x, double divisor):
    """Divide an array in place.

    Half types are divided in float32 and rounded once. Division by zero gives infinities and NaN.

    Parameters
    ----------
    x : numpy.ndarray
        C-contiguous and writable, of a floating or complex type.
    divisor : float
        Rounded to the type that is computed in: float32 for halves, float32 and complex64.

    Raises
    ------
    TypeError
        If `x` is no array or of a type that is not divided.
    BufferError
        If `x` is not C-contiguous or read-only.
    """
    cdef Py_buffer view
    cdef int number = number_of(x, "divide_by", "x")
    cdef divide_loop loop = loops.divide[number]
    if loop == NULL:
        choices = [TYPES[i] for i in range(TYPE_COUNT) if loops.divide[i] != NULL]
        raise wrong_dtype(x, "divide_by", "x", choices)
    open_buffer(x, &view, PyBUF_WRITABLE, "divide_by", "x")
    with nogil:
        loop(view.buf, divisor, view.len // type_itemsizes[number])
    PyBuffer_Release(&view)


def widen(out, half):
    """Convert an array of a half type to float32, exactly.

    Parameters
    ----------
    out : numpy.ndarray
        C-contiguous and writable, float32, apart from `half` in memory.
    half : numpy.ndarray
        C-contiguous, float16 or bfloat16, of the size of `out`.

    Raises
    ------
    TypeError
        If an argument is no array or of another type.
    ValueError
        If the sizes differ or the arrays overlap.
    BufferError
        If an array is not C-contiguous, or `out` is read-only.
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
        C-contiguous and writable, float16 or bfloat16, apart from `x` in memory.
    x : numpy.ndarray
        C-contiguous, float32, of the size of `out`.

    Raises
    ------
    TypeError
        If an argument is no array or of another type.
    ValueError
        If the sizes differ or the arrays overlap.
    BufferError
        If an array is not C-contiguous, or `out` is read-only.
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
        C-contiguous and writable; `x` itself, or apart from it in memory.
    x : numpy.ndarray
        C-contiguous, of the dtype and size of `out`.

    Raises
    ------
    TypeError
        If an argument is no array, or of a type not in `TYPES`.
    ValueError
        If the sizes differ or the arrays overlap in part.
    BufferError
        If an array is not C-contiguous, or `out` is read-only.
    """
    cdef Py_buffer target, source
    cdef int number = number_of(out, "copy", "out")
    need_number(x, number, "copy", "x", "out")
    open_buffer(out, &target, PyBUF_WRITABLE, "copy", "out")
    try:
        open_buffer(x, &source, PyBUF_SIMPLE, "copy", "x")
        try:
            need_same_size(&target, &source, number, "copy", "out", "x")
            need_same_or_apart(&target, &source, "copy", "out", "x")
            if target.buf != source.buf:
                with nogil:
                    memcpy(target.buf, source.buf, target.len)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)


def reduce_address(str op, str dtype_name):
    """Return where the active target's loop for an operation on a type lies.

    Parameters
    ----------
    op : str
        One of `OPERATIONS`.
    dtype_name : str
        One of `TYPES`.

    Returns
    -------
    int
        Address of a ``void (*)(void *out, const void *left, const void *right, size_t n)``, which
        may be called without the GIL; 0 where there is none.
    """
    cdef object operation = operation_numbers.get(op)
    cdef object number = type_numbers.get(dtype_name)
    if operation is None or number is None:
        return 0
    return <size_t>loops.reduce[<int>operation][<int>number]


def divide_address(str dtype_name):
    """Return where the active target's loop that divides a type lies.

    Parameters
    ----------
    dtype_name : str
        One of `TYPES`.

    Returns
    -------
    int
        Address of a ``void (*)(void *x, double divisor, size_t n)``; 0 where there is none.
    """
    cdef object number = type_numbers.get(dtype_name)
    return 0 if number is None else <size_t>loops.divide[<int>number]


def widen_address(str half_dtype_name):
    """Return where the active target's loop from a half type to float32 lies.

    Parameters
    ----------
    half_dtype_name : str
        "float16" or "bfloat16".

    Returns
    -------
    int
        Address of a ``void (*)(void *out, const void *x, size_t n)``; 0 where there is none.
    """
    cdef object number = type_numbers.get(half_dtype_name)
    return 0 if number is None else <size_t>loops.widen[<int>number]


def narrow_address(str half_dtype_name):
    """Return where the active target's loop from float32 to a half type lies.

    Parameters
    ----------
    half_dtype_name : str
        "float16" or "bfloat16".

    Returns
    -------
    int
        Address of a ``void (*)(void *out, const void *x, size_t n)``; 0 where there is none.
    """
    cdef object number = type_numbers.get(half_dtype_name)
    return 0 if number is None else <size_t>loops.narrow[<int>number]


cdef inline void run(
    reduce_loop loop, void *out, const void *left, const void *right, Py_ssize_t nbytes, int number
):
    cdef size_t n = <size_t>nbytes // type_itemsizes[number]
    if nbytes <= SHORT_BYTES:
        loop(out, left, right, n)
    else:
        with nogil:
            loop(out, left, right, n)


cdef int convert(
    convert_loop loop, out, int out_number, x, int x_number, str call, str argument
) except -1:
    cdef Py_buffer target, source
    open_buffer(out, &target, PyBUF_WRITABLE, call, "out")
    try:
        open_buffer(x, &source, PyBUF_SIMPLE, call, argument)
        try:
            need_same_count(
                target.len // <Py_ssize_t>type_itemsizes[out_number],
                source.len // <Py_ssize_t>type_itemsizes[x_number], call, "out", argument)
            if overlap(&target, &source):
                raise ValueError(f"{call}: out and {argument} overlap; wanted them apart in memory")
            with nogil:
                loop(target.buf, source.buf, target.len // type_itemsizes[out_number])
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)
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


cdef inline int open_buffer(array, Py_buffer *view, int flags, str call, str argument) except -1:
    if PyObject_GetBuffer(array, view, flags) < 0:
        PyErr_Clear()
        raise wrong_layout(array, call, argument)
    return 0


cdef object wrong_layout(array, str call, str argument):
    if not array.flags.c_contiguous:
        return BufferError(
            f"{call}: {argument} is not C-contiguous (shape {array.shape}, strides "
            f"{array.strides}); wanted a C-contiguous array")
    return BufferError(f"{call}: {argument} is read-only; wanted a writable array")


cdef inline int need_same_size(
    Py_buffer *one, Py_buffer *other, int number, str call, str name, str other_name
) except -1:
    if one.len != other.len:
        need_same_count(
            one.len // <Py_ssize_t>type_itemsizes[number],
            other.len // <Py_ssize_t>type_itemsizes[number], call, name, other_name)
    return 0


cdef int need_same_count(
    Py_ssize_t count, Py_ssize_t other_count, str call, str name, str other_name
) except -1:
    if count != other_count:
        raise ValueError(
            f"{call}: {other_name} has {other_count} elements; wanted as many as in {name}, {count}")
    return 0


cdef inline bint overlap(Py_buffer *one, Py_buffer *other) noexcept:
    cdef char *start = <char *>one.buf
    cdef char *other_start = <char *>other.buf
    return start < other_start + other.len and other_start < start + one.len


cdef inline int need_same_or_apart(
    Py_buffer *out, Py_buffer *x, str call, str name, str other_name
) except -1:
    if out.buf != x.buf and overlap(out, x):
        raise ValueError(
            f"{call}: {name} and {other_name} overlap in part; "
            "wanted them to be the same memory or apart")
    return 0


choose_target(os.environ.get("HPCCOLL_KERNEL") or list(targets()).pop(), "HPCCOLL_KERNEL")

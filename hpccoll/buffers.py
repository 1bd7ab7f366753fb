"""What the user passed becomes a NumPy array on the same memory, or a `DeviceArray`.

Nothing is copied here. There are two ways in: `of_spec` understands mpi4py's buffer forms,
`of_array` what the functions take (arrays of any library, scalars, buffers).
"""

import numbers
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.cuda.device_array import DeviceArray
from hpccoll.ops import kind_of

Array = np.ndarray[Any, np.dtype[Any]]

HOST_MEMORY = (1, 3)
"""DLPack's numbers of host memory, and of such that CUDA has pinned."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What the user passed, as an array on the same memory.

    Attributes
    ----------
    array : numpy.ndarray or DeviceArray
        A view; for a scalar an array of no dimensions.
    new_result : callable
        ``new_result(shape) -> (array, value)``: a fresh array for the result, and a function that
        turns it into what the user gets. A shape of None is that of `array`.
    """

    array: Array
    new_result: Callable[[tuple[int, ...] | None], tuple[Array, Callable[[], Any]]]


def of_array(argument: str, x: object, stream: int | None = None) -> Operand:
    """Take what a function of hpccoll accepts as an array.

    Parameters
    ----------
    argument : str
        Name of the argument, for messages.
    x : array or scalar
        A NumPy array of any layout, NumPy or Python scalar, tensor of torch, or an object with
        ``__dlpack__``, ``__cuda_array_interface__`` or the buffer protocol.
    stream : int, optional
        The handle of the stream that the user named, for an array in GPU memory.

    Raises
    ------
    TypeError
        It is none of these, or its memory is neither the host's nor a CUDA device's.
    ValueError, ImportError
        As from `hpccoll.cuda.foreign_arrays.of_device`.
    """
    if isinstance(x, np.ndarray):
        return Operand(_plain(argument, x), lambda shape: _like_numpy(x, shape))
    if isinstance(x, np.generic):
        scalar = np.asarray(x)
        return Operand(scalar, lambda shape: _scalar_result(scalar, shape, lambda a: a[()]))
    if isinstance(x, (bool, numbers.Number)):
        number = _number(argument, x)
        return Operand(number, lambda shape: _scalar_result(number, shape, _item))
    if isinstance(x, (list, tuple)):
        message = (
            f"{argument} is a {type(x).__name__}; wanted an array. Pass numpy.asarray({argument}, "
            "dtype=...): the type of a list depends on its values and may differ between ranks"
        )
        raise TypeError(message)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        check_tensor(argument, torch, x)
        if x.device.type == "cpu":
            tensor = _of_tensor(torch, x)
            return Operand(tensor, lambda shape: _like_tensor(torch, x, shape))
    if is_on_device(x):
        from hpccoll.cuda import foreign_arrays

        on_device = foreign_arrays.of_device(argument, x, stream)
        return Operand(
            on_device, lambda shape: foreign_arrays.new_like(x, on_device, shape, stream)
        )
    array = _of_exporter(argument, x)
    return Operand(array, lambda shape: _like_exporter(array, x, shape))


def of_spec(spec: object, argument: str = "the buffer") -> Array | None:
    """Take one of mpi4py's buffer forms: a buffer, or ``[buffer, count, displacement, datatype]``.

    Parameters
    ----------
    spec : object
        What the user passed.
    argument : str
        Name of the argument, for messages.

    Returns
    -------
    numpy.ndarray, DeviceArray or None
        An array on the same memory; None where the form is for the MPI library to understand
        (a derived datatype, an address without an object).
    """
    from mpi4py import MPI

    if not isinstance(spec, (list, tuple)):
        return _of_buffer(argument, spec)
    datatype: MPI.Datatype | None = None
    rest = list(spec)
    if not 2 <= len(rest) <= 4:
        return None
    buffer = rest.pop(0)
    if rest and isinstance(rest[-1], str):
        datatype = MPI.Datatype.fromcode(rest.pop())
    elif rest and isinstance(rest[-1], MPI.Datatype):
        datatype = rest.pop()
    if rest and isinstance(rest[0], (list, tuple)):
        rest = [*rest[0], *rest[1:]]
    numbers_only = all(isinstance(number, (int, np.integer, type(None))) for number in rest)
    if len(rest) > 2 or not numbers_only:
        return None
    array = _of_buffer(argument, buffer, typed=datatype is not None)
    if array is None or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    if not array.flags.c_contiguous:
        # Elements pair up by index; a part of them, or another type, would go by memory.
        dtype = array.dtype if datatype is None else _dtype_of(datatype)
        if dtype == array.dtype and rest in ([], [array.size], [array.size, 0]):
            return array
        message = (
            f"{argument} is Fortran-ordered, and count, displacement or type name a part of it; "
            "wanted C order (numpy.ascontiguousarray), or the whole array alone"
        )
        raise BufferError(message)
    if datatype is not None:
        dtype = _dtype_of(datatype)
        if dtype is None:
            return None
        array = array.reshape(-1).view(np.uint8)
        whole = array.nbytes // dtype.itemsize * dtype.itemsize
        if not rest and whole != array.nbytes:
            return None
        array = array[:whole].view(dtype)
    elif rest:
        array = array.reshape(-1)
    count, displacement = (*rest, None, None)[:2]
    start = int(displacement or 0)
    stop = array.size if count is None else start + int(count)
    if rest and 0 <= start <= stop and array.size < stop:
        message = (
            f"{argument} holds {array.size} elements of {array.dtype}, and {stop - start} from "
            f"element {start} on are asked for"
        )
        raise ValueError(message)
    if rest and not 0 <= start <= stop:
        return None
    return array[start:stop] if rest else array


def is_scalar(x: object) -> bool:
    """Whether it is a number of Python's or NumPy's, in which no result can be stored."""
    return isinstance(x, (bool, int, float, complex, np.generic))


def is_on_device(x: object) -> bool:
    """Whether it says that it lies in GPU memory; most of what comes cannot: no import for that."""
    interface = "__cuda_array_interface__"
    has_interface = hasattr(type(x), interface) or interface in getattr(x, "__dict__", ())
    if not has_interface and not hasattr(x, "__dlpack_device__"):
        return False
    from hpccoll.cuda import foreign_arrays

    return foreign_arrays.is_on_device(x)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether hpccoll reduces this type: bool, numbers of any width, times and durations."""
    return kind_of(dtype) in "biufcmM"


def is_plain(x: Array) -> bool:
    """Whether the elements lie in C order without gaps, aligned and in native byte order."""
    return x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative


def overlaps_itself(x: Array) -> bool:
    """Whether two elements may lie at one address, as in a broadcast array."""
    reach = x.itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True)):
        if length > 1:
            if stride < reach:
                return x.size > 0
            reach = stride * (length - 1) + reach
    return False


def same_memory(x: Array, y: Array) -> bool:
    """Whether two arrays are the same elements at the same addresses."""
    if x is y:
        return True
    one, other = x.__array_interface__, y.__array_interface__
    return bool(
        one["data"][0] == other["data"][0]
        and x.shape == y.shape
        and x.strides == y.strides
        and x.dtype == y.dtype
    )


def byte_bounds(x: Array) -> tuple[int, int]:
    """Return the addresses between which the elements of an array lie."""
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)]
    start = x.ctypes.data
    first = start + sum(step for step in reach if step < 0)
    return first, start + sum(step for step in reach if step > 0) + x.itemsize


def check_same_device(names: tuple[str, str], x: Array, out: Array) -> None:
    """Raise where one array lies in host memory and the other one does not, or on two devices."""
    one, other = device_of(x), device_of(out)
    if one != other:
        message = f"{names[0]} lies {_where(one)}, {names[1]} {_where(other)}; " + (
            "they must lie in the same memory"
        )
        raise TypeError(message)


def device_of(x: Array) -> int | None:
    """Return the device that an array lies on; None for host memory."""
    return x.device if isinstance(x, DeviceArray) else None


def scratch_beside(x: Array, count: int) -> Array:
    """Return fresh memory for `count` elements of the type of `x`, in the same place."""
    dtype = x.dtype.newbyteorder("=")
    if not isinstance(x, DeviceArray):
        return np.empty(count, dtype)
    from hpccoll.cuda.driver import get_device
    from hpccoll.cuda.memory import device_bytes

    memory: Array = device_bytes(get_device(x.device), count * dtype.itemsize).view(dtype)
    return memory


def _where(device: int | None) -> str:
    return "in host memory" if device is None else f"on CUDA device {device}"


def _plain(argument: str, x: Array) -> Array:
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        message = f"{argument} is a masked array, whose mask means nothing here; pass x.filled(...)"
        raise TypeError(message)
    return x.view(np.ndarray)


def _item(array: Array) -> Any:
    return array.item()


def _like_numpy(x: Array, shape: tuple[int, ...] | None) -> tuple[Array, Callable[[], Any]]:
    # In C order whatever the order of x, which is how elements pair up.
    result = np.empty_like(x, order="C", shape=shape)
    return _plain("the result", result), lambda: result


def _scalar_result(
    array: Array, shape: tuple[int, ...] | None, convert: Callable[[Array], Any]
) -> tuple[Array, Callable[[], Any]]:
    result = np.empty_like(array, shape=shape)
    return result, lambda: convert(result) if shape is None else result


def _number(argument: str, x: object) -> Array:
    if isinstance(x, (bool, int, float, complex)):
        array = np.asarray(x)
        # An int between 2^63 and 2^64 would be unsigned here, and signed on another rank.
        if array.dtype.kind in "bifc":
            return array
    message = (
        f"{argument} is {x!r} of type {type(x).__name__}; "
        "wanted an array, a NumPy scalar, or a bool, int (64 bits), float or complex"
    )
    raise TypeError(message)


def check_tensor(argument: str, torch: Any, x: Any) -> None:
    """Raise where a tensor of torch is not one of plain elements, on the host or a CUDA device."""
    if x.device.type not in ("cpu", "cuda"):
        message = f"{argument} is a tensor on {x.device}; wanted host memory: {argument}.cpu()"
        raise TypeError(message)
    if x.requires_grad:
        message = (
            f"{argument} is a tensor that requires grad, and gradients do not flow through MPI; "
            f"pass {argument}.detach()"
        )
        raise TypeError(message)
    if x.layout is not torch.strided:
        message = f"{argument} is a tensor of layout {x.layout}; wanted a dense one"
        raise TypeError(message)
    if x.is_conj() or x.is_neg():
        message = (
            f"{argument} is a lazily conjugated or negated view; "
            f"pass {argument}.resolve_conj().resolve_neg()"
        )
        raise TypeError(message)


def _of_tensor(torch: Any, x: Any) -> Array:
    if x.dtype is torch.bfloat16:
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return x.numpy()  # type: ignore[no-any-return]


def _like_tensor(
    torch: Any, x: Any, shape: tuple[int, ...] | None
) -> tuple[Array, Callable[[], Any]]:
    result = torch.empty(x.shape if shape is None else shape, dtype=x.dtype)
    return _of_tensor(torch, result), lambda: result


def _of_exporter(argument: str, x: object) -> Array:
    array = _of_buffer(argument, x)
    if array is None or isinstance(array, DeviceArray):
        message = (
            f"{argument} is of type {type(x).__name__}; wanted an array in host memory "
            "(NumPy, torch, DLPack or the buffer protocol) or on a CUDA device, or a number"
        )
        raise TypeError(message)
    return array


def _like_exporter(
    array: Array, x: object, shape: tuple[int, ...] | None
) -> tuple[Array, Callable[[], Any]]:
    result = np.empty_like(array, order="C", subok=False, shape=shape)
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is None:
        return result, lambda: result
    return result, lambda: namespace().from_dlpack(result)


def _of_buffer(argument: str, x: object, typed: bool = False) -> Array | None:
    """Return an array on the memory of an object, or None where that is not to be had.

    `typed` is whether the caller knows the type of the elements, and bytes will do.
    """
    if isinstance(x, np.ndarray):
        return _plain(argument, x)
    from mpi4py import MPI

    if x is MPI.BOTTOM or x is MPI.IN_PLACE:
        return None  # they export an empty buffer
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        check_tensor(argument, torch, x)
        if x.device.type == "cpu":
            return _of_tensor(torch, x)
    if is_on_device(x):
        from hpccoll.cuda.foreign_arrays import of_device

        return of_device(argument, x)
    try:
        return np.asarray(memoryview(x))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        device, _ = x.__dlpack_device__()
        return _of_dlpack(x, typed) if device in HOST_MEMORY else None
    return None


def _of_dlpack(x: Any, typed: bool) -> Array | None:
    """Return an array on what DLPack exports, with mpi4py's view of whether it may be written.

    Exporters older than version 1 of DLPack cannot tell. NumPy takes their memory for read-only.
    """
    from mpi4py import MPI

    try:
        array: Array | None = None if typed else np.from_dlpack(x)
    except (BufferError, RuntimeError):  # of a type that NumPy does not take, as a long double
        return None
    if array is not None and (array.flags.writeable or not array.flags.c_contiguous):
        return array
    try:
        memory = MPI.buffer.frombuffer(x)
    except BufferError:  # read-only indeed
        memory = MPI.buffer.frombuffer(x, readonly=True)
    bytes_ = np.asarray(memory)
    return bytes_ if array is None else bytes_.view(array.dtype).reshape(array.shape)


def _dtype_of(datatype: Any) -> np.dtype[Any] | None:
    """Return the NumPy type of a predefined MPI datatype, or None."""
    if not datatype.is_predefined or not datatype.typestr:
        return None
    dtype = np.dtype(datatype.typestr)
    return dtype if dtype.kind in "biufc" else None

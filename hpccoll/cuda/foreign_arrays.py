"""Arrays of any library that lie in GPU memory become `DeviceArray`, without a copy.

No library is imported for that: who has such an array has its library. torch tensors are read by
their own attributes, others by ``__cuda_array_interface__``, or by DLPack, through the strided
memory view of cuda.core. An interface before version 3 says nothing of streams: where an object has
DLPack as well, that is read in its place.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from hpccoll.cuda import driver as drivers
from hpccoll.cuda import streams
from hpccoll.cuda.device_array import DeviceArray, device_array
from hpccoll.cuda.dlpack import CUDA, MANAGED

STREAMS_SINCE = 3
"""The version of ``__cuda_array_interface__`` that names a stream."""

TORCH_TYPES = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)

IMMUTABLE = ("jax", "jaxlib")
"""Libraries whose arrays never change; not all of their versions say so in DLPack."""

Result = Callable[[], Any]


def is_on_device(x: object) -> bool:
    """Whether an object says that it lies in the memory of a CUDA device."""
    if isinstance(x, np.ndarray):  # such as Numba's managed ones: the host may touch them
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):  # its interface may raise errors
        return bool(x.device.type == "cuda")
    if hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__dlpack__") and _dlpack_device(x)[0] in (CUDA, MANAGED)


def of_device(argument: str, x: Any, stream: int | None = None) -> DeviceArray:
    """Take an array for which `is_on_device` holds.

    Parameters
    ----------
    argument : str
        Name of the argument, for messages.
    x : array
        Of any library; of a torch tensor it is known that it is a plain one.
    stream : int, optional
        The handle of the stream on which a DLPack exporter's work is to be waited for.

    Raises
    ------
    ImportError
        hpccoll was installed without the parts for CUDA.
    TypeError
        It has a mask, or a type that NumPy has none for.
    ValueError
        It lies nowhere, in freed memory, or on a device that this process does not see.
    """
    start(argument)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_tensor(argument, x)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None and not (_is_silent(interface) and hasattr(x, "__dlpack__")):
        return _of_interface(argument, x, interface)
    return _of_dlpack(argument, x, stream)


def new_like(
    x: Any, array: DeviceArray, shape: tuple[int, ...] | None, stream: int | None = None
) -> tuple[DeviceArray, Result]:
    """Return memory for a result on the device of `x`, and what gives it as an array like `x`.

    Parameters
    ----------
    x : array
        What the user passed.
    array : DeviceArray
        The same, as `of_device` has it.
    shape : tuple of int or None
        Of the result; None for that of `x`.
    stream : int, optional
        The handle of the stream on which the user wants the result, if they named one.
    """
    shape = array.shape if shape is None else shape
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    numba = sys.modules.get("numba.cuda")
    result: Any
    if torch is not None and isinstance(x, torch.Tensor):
        # Memory is used again in the order of the stream that it was allocated on.
        with nullcontext() if stream is None else torch.cuda.stream(_torch_stream(x, stream)):
            result = torch.empty(shape, dtype=x.dtype, device=x.device)
    elif cupy is not None and isinstance(x, cupy.ndarray):
        with cupy.cuda.Device(array.device), _cupy_stream(array.device, stream):
            result = cupy.empty(shape, dtype=x.dtype)
    elif numba is not None and getattr(x, "__cuda_ndarray__", False):
        with numba.gpus[array.device]:
            result = numba.device_array(shape, dtype=x.dtype)
    else:
        return _made_here(x, array, shape, stream)
    return of_device("the result", result), lambda: result


def _torch_stream(x: Any, handle: int) -> Any:
    cuda = sys.modules["torch"].cuda
    if handle == streams.LEGACY:
        return cuda.default_stream(x.device)
    return cuda.ExternalStream(handle, device=x.device)


def _cupy_stream(device: int, handle: int | None) -> Any:
    """Return a context in which a stream is CuPy's current one; None for that which is."""
    if handle is None:
        return nullcontext()
    cuda = sys.modules["cupy"].cuda
    return cuda.Stream.null if handle == streams.LEGACY else cuda.ExternalStream(handle, device)


def start(argument: str) -> "drivers.Driver":
    """Return the driver, for an argument that lies on a device."""
    if not drivers.is_loaded():
        try:
            import cuda.core  # noqa: F401
        except ImportError as error:
            message = (
                f"{argument} lies in GPU memory, for which hpccoll needs cuda.core ({error}); "
                'pip install "hpccoll[cuda12]", or "hpccoll[cuda13]" where the driver is that new'
            )
            raise ImportError(message) from error
    return drivers.get_driver()


def is_immutable(x: object) -> bool:
    """Whether it is of a library whose arrays never change."""
    return type(x).__module__.partition(".")[0] in IMMUTABLE


def _made_here(
    x: Any, array: DeviceArray, shape: tuple[int, ...], stream: int | None
) -> tuple[DeviceArray, Result]:
    """Return memory of our own, and what hands it to the library of `x`, if that takes it."""
    from hpccoll.cuda.cuda_array import CudaArray

    used = streams.current_stream(x, array.device) if stream is None else stream
    made = CudaArray(shape, array.dtype, array.device, stream=used)
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is None or isinstance(x, CudaArray):
        return of_device("the result", made), lambda: made
    return of_device("the result", made), lambda: namespace().from_dlpack(made)


def _of_tensor(argument: str, x: Any) -> DeviceArray:
    name = str(x.dtype).removeprefix("torch.")
    if name not in TORCH_TYPES:
        message = f"{argument} has dtype {x.dtype}; wanted numbers of NumPy, bfloat16 or bool"
        raise TypeError(message)
    dtype = _bfloat16() if name == "bfloat16" else np.dtype(name)
    strides = tuple(int(step) * dtype.itemsize for step in x.stride())
    return _array(
        argument, x, int(x.data_ptr()), tuple(x.shape), dtype, strides,
        readonly=False, hint=x.device.index,
    )  # fmt: skip


def _of_interface(argument: str, x: Any, interface: Any) -> DeviceArray:
    try:
        shape = tuple(int(length) for length in interface["shape"])
        address, readonly = interface["data"]
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(int(step) for step in strides)
        dtype = np.dtype(interface["typestr"])
        if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
            raise ValueError(f"shape {shape}, strides {strides}")
        address = 0 if address is None else int(address)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = (
            f"{argument} has a __cuda_array_interface__ that cannot be read "
            f"({type(error).__name__}: {error})"
        )
        raise TypeError(message) from error
    if interface.get("mask") is not None:
        message = f"{argument} has a mask, which means nothing here; pass an array without one"
        raise TypeError(message)
    own = getattr(x, "dtype", None)
    if dtype.kind == "V" and isinstance(own, np.dtype) and own.itemsize == dtype.itemsize:
        dtype = own  # the interface has no name for bfloat16
    readonly = bool(readonly) or is_immutable(x)
    return _array(argument, x, address, shape, dtype, strides, readonly=readonly, hint=_hint(x))


def _of_dlpack(argument: str, x: Any, stream: int | None) -> DeviceArray:
    from cuda.core.utils import StridedMemoryView

    try:
        view = StridedMemoryView.from_dlpack(x, stream_ptr=stream or streams.LEGACY)
        dtype = view.dtype
    except (BufferError, NotImplementedError, TypeError) as error:
        message = f"{argument} is of type {type(x).__name__}, whose DLPack cannot be read: {error}"
        raise TypeError(message) from error
    if dtype is None:
        message = f"{argument} is of type {type(x).__name__}, whose DLPack names no type of NumPy"
        raise TypeError(message)
    strides = None
    if view.strides is not None:
        strides = tuple(step * dtype.itemsize for step in view.strides)
    return _array(
        argument, streams.Exported(x, view), view.ptr, tuple(view.shape), dtype, strides,
        readonly=view.readonly or is_immutable(x), hint=view.device_id,
    )  # fmt: skip


def _array(
    argument: str,
    owner: object,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...] | None,
    *,
    readonly: bool,
    hint: int | None,
) -> DeviceArray:
    """Return the array, on the device that the driver says its memory is of."""
    driver = drivers.get_driver()
    device: int | None
    if 0 in shape:  # it may lie anywhere
        device = hint or 0
    elif address == 0:
        message = f"{argument} has shape {shape} and lies at address 0; wanted memory of a device"
        raise ValueError(message)
    else:
        device = driver.device_of(address)
    if device is None:
        message = (
            f"{argument} lies at {address:#x}, which is no memory of a device: it was freed, or "
            "never was; wanted an array in GPU memory"
        )
        raise ValueError(message)
    count = driver.device_count()
    if not 0 <= device < count:
        visible = f"device 0 to {count - 1}" if count else "none"
        message = f"{argument} lies on device {device}; this process sees {visible}"
        raise ValueError(message)
    return device_array(
        address, shape, dtype, device, strides=strides, owner=owner, readonly=readonly
    )


def _is_silent(interface: Any) -> bool:
    """Whether an interface says nothing of streams."""
    version = interface.get("version", 0) if isinstance(interface, dict) else STREAMS_SINCE
    return isinstance(version, int) and version < STREAMS_SINCE


def _dlpack_device(x: Any) -> tuple[int, int]:
    """Return DLPack's kind and number of a device; (0, 0) where it is not told."""
    try:
        kind, number = x.__dlpack_device__()
        return int(kind), int(number)
    except Exception:  # of any library: what cannot say so lies on no device for us
        return 0, 0


def _hint(x: Any) -> int | None:
    """Return the device that an object names; it counts where there is no memory to ask."""
    named = getattr(x, "device", None)
    number = getattr(named, "id", named)
    if isinstance(number, int):
        return number
    kind, number = _dlpack_device(x)
    return number if kind in (CUDA, MANAGED) else None


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype

"""`CudaArray`: an array in GPU memory of our own, for those who have no library for that.

And to copy: `asarray` to a device, `asnumpy` back.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpccoll.cuda import copies, dlpack, foreign_arrays, streams
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.memory import device_bytes


class CudaArray:
    """An array in the memory of a CUDA device, in C order.

    It has ``__cuda_array_interface__`` and ``__dlpack__``, so that any library takes it over
    without a copy: ``torch.from_dlpack(x)``, ``cupy.from_dlpack(x)``. The memory is freed when the
    last array on it is garbage collected. There is no arithmetic on it.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : data-type, default float
        Any but object.
    device : int, default 0
        The number of the device.
    stream : int or stream, optional
        The stream that work on the array is on, as of `hpccoll.allreduce`; default the legacy
        default stream.

    Attributes
    ----------
    array : DeviceArray
        The memory.
    """

    def __init__(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: DTypeLike = float,
        device: int = 0,
        *,
        stream: Any = None,
    ) -> None:
        given = streams.given_stream(stream)
        self._stream = streams.LEGACY if given is None else given.handle
        lengths = shape if isinstance(shape, Sequence) else (shape,)
        wanted = tuple(operator.index(length) for length in lengths)
        kind = np.dtype(dtype)
        if kind.hasobject or min(wanted, default=0) < 0:
            message = (
                f"shape is {wanted} and dtype {kind}; wanted lengths from 0 on, and no objects"
            )
            raise ValueError(message)
        foreign_arrays.start("the array")
        nbytes = math.prod(wanted) * kind.itemsize
        memory = device_bytes(get_device(operator.index(device)), nbytes, self._stream)
        self.array: DeviceArray = memory.view(kind).reshape(wanted)

    @classmethod
    def _of(cls, array: DeviceArray, stream: int) -> "CudaArray":
        self = cls.__new__(cls)
        self.array, self._stream = array, stream
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.array.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.array.nbytes

    @property
    def device(self) -> int:
        """The number of the device."""
        return self.array.device

    @property
    def stream(self) -> int:
        """Handle of the stream that work on the array is on."""
        return self._stream

    def __len__(self) -> int:
        """Return the number of rows."""
        if not self.shape:
            message = "len() of an array without dimensions"
            raise TypeError(message)
        return self.shape[0]

    def __getitem__(self, rows: slice) -> "CudaArray":
        """Return rows of it, on the same memory."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            message = f"{rows!r} is no plain slice; a CudaArray gives rows that follow one another"
            raise TypeError(message)
        return self._of(self.array[rows], self._stream)

    def __repr__(self) -> str:
        """Tell what it is."""
        return f"<CudaArray of shape {self.shape}, {self.dtype}, on CUDA device {self.device}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, with the stream."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.array.ctypes.data if self.size else 0, False),
            "strides": None,
            "stream": self._stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number of CUDA, and that of the device."""
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule, as DLPack has it, after the stream of the array for that of the taker.

        Raises
        ------
        BufferError
            DLPack has no such type, or a copy or another device is wanted.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            message = "a CudaArray is given as it is; copy it when you have it"
            raise BufferError(message)
        if stream != -1:  # DLPack's word for: do not wait
            streams.order(self.device, first=self._stream, then=stream or streams.LEGACY)
        return dlpack.export(
            self, self.array.ctypes.data, self.shape, self.dtype, self.device,
            versioned=max_version is not None and max_version >= (1, 0),
        )  # fmt: skip


def empty(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: DTypeLike = float,
    device: int = 0,
    *,
    stream: Any = None,
) -> CudaArray:
    """Return a new `CudaArray`, not initialised; parameters as of that."""
    return CudaArray(shape, dtype, device, stream=stream)


def asarray(x: Any, device: int = 0, *, stream: Any = None) -> CudaArray:
    """Copy an array of NumPy to a device, and return it when it is there.

    Parameters
    ----------
    x : array_like
        In host memory.
    device : int, default 0
        The number of the device.
    stream : int or stream, optional
        As of `CudaArray`; the copy is on it.

    Returns
    -------
    CudaArray
    """
    host = np.asarray(x, order="C")
    made = CudaArray(host.shape, host.dtype, device, stream=stream)
    if host.size:
        copies.copy_up(device, made.array.ctypes.data, host, made.stream)
    return made


def asnumpy(x: Any, *, stream: Any = None) -> NDArray[Any]:
    """Copy an array in GPU memory, of any library and layout, to a new one of NumPy.

    Parameters
    ----------
    x : array
        As of `hpccoll.allreduce`.
    stream : int or stream, optional
        As of `hpccoll.allreduce`: the copy waits for what that stream has been given.

    Returns
    -------
    numpy.ndarray
    """
    if not foreign_arrays.is_on_device(x):
        message = f"x is of type {type(x).__name__}; wanted an array in GPU memory"
        raise TypeError(message)
    given = streams.given_stream(stream)
    handle = None if given is None else given.handle
    array = foreign_arrays.of_device("x", x, handle)
    result = np.empty(array.shape, array.dtype)
    if not array.size:
        return result
    moment = streams.CallerStreams(
        array.device, () if handle is None else (handle,), (x,) if handle is None else ()
    ).now()
    source = array
    if not array.flags.c_contiguous:
        memory = device_bytes(get_device(array.device), array.nbytes)
        source = memory.view(array.dtype).reshape(array.shape)
        copies.copy_array(source, array, moment.stream)
    copies.copy_down(array.device, result, source.ctypes.data, moment.stream)
    return result

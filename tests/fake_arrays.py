"""Arrays of a library that keeps them in the memory of a fake CUDA device.

A `FakeArray` is what CuPy, Numba and the like hand over: an object with
``__cuda_array_interface__``, whose contents the library's current stream has yet to produce.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from fake_cuda import FakeCuda

from hpccoll.cuda.device_array import device_array
from hpccoll.cuda.driver import get_driver


class _Memory:
    """An allocation of a device, which goes back to the library's pool with its last array."""

    def __init__(self, nbytes: int, device: int, stream: int | None) -> None:
        driver = get_driver()
        self.fake: FakeCuda = driver.fake  # type: ignore[attr-defined]
        self.address = driver.device(device).allocate(nbytes)
        finalizer = weakref.finalize(self, self.fake.recycle, self.address, stream or 1, device)
        finalizer.atexit = False


class FakeArray:
    """An array in the memory of a fake device.

    Parameters
    ----------
    shape, dtype
        As for NumPy.
    device : int
        Where it is.
    stream : int or None
        The current stream of the library, on which contents are produced and read: 1 for the
        legacy default stream. None: contents are complete, and no stream is told.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.float32,
        device: int = 0,
        stream: int | None = None,
    ) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        self._memory = _Memory(int(np.prod(shape)) * dtype.itemsize, device, stream)
        self._form = device_array(self._memory.address, shape, dtype, device)
        self.stream = stream
        self.readonly = False

    @property
    def fake(self) -> FakeCuda:
        """The driver of whose memory it is."""
        return self._memory.fake

    @property
    def device(self) -> int:
        """Number of the device."""
        return self._form.device

    @property
    def shape(self) -> tuple[int, ...]:
        """As of NumPy's arrays."""
        return self._form.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of NumPy's arrays."""
        return self._form.dtype

    @property
    def address(self) -> int:
        """Of element 0."""
        return int(self._form.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        contiguous = self._form.flags.c_contiguous
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": [("", self.dtype.str)],
            "data": (self.address if self._form.size else 0, self.readonly),
            "strides": None if contiguous else self._form.strides,
            "stream": self.stream,
        }

    def __getitem__(self, index: Any) -> "FakeArray":
        """Return a view."""
        return self._view(self._form[index])

    def view(self, dtype: Any) -> "FakeArray":
        """Return a view as another type."""
        return self._view(self._form.view(dtype))

    @property
    def T(self) -> "FakeArray":  # noqa: N802
        """The transposed array."""
        return self._view(self._form.T)

    def _view(self, form: Any) -> "FakeArray":
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._form = form
        return view

    def fill(self, values: Any, on: int | None = None) -> "FakeArray":
        """Submit what stores these values, on a stream of the library; return the array.

        By default that is its current stream. Nothing is stored yet when this returns, unless the
        array has no stream.
        """
        contents = np.array(np.broadcast_to(values, self.shape), self.dtype)
        on = self.stream if on is None else on
        memory = self._host()  # which does not keep the array alive

        def produce() -> None:
            memory[...] = contents

        self.fake.enqueue(
            on or 1, "the caller's producer", produce, writes=[self._extent()], device=self.device
        )
        if on is None:
            self.fake.finish(1, self.device)
        return self

    def numpy(self, on: int | None = None) -> np.ndarray:
        """Return a copy of the contents, once the stream has come so far."""
        on = on or self.stream or 1
        # A consumer on that stream, so that what it is not ordered behind is found.
        result, memory = np.empty(self.shape, self.dtype), self._host()

        def consume() -> None:
            result[...] = memory

        self.fake.enqueue(
            on, "the caller's consumer", consume, reads=[self._extent()], device=self.device
        )
        self.fake.finish(on, self.device)
        return result

    def _extent(self) -> tuple[int, int]:
        """Return where the elements lie: the first address, and bytes to the end of the last."""
        if self._form.size == 0:
            return self._memory.address, 0
        reach = [stride * (n - 1) for stride, n in zip(self._form.strides, self.shape, strict=True)]
        low, high = sum(min(0, one) for one in reach), sum(max(0, one) for one in reach)
        return self.address + low, high - low + self.dtype.itemsize

    def _host(self) -> np.ndarray:
        """Return the array as the fake sees it: a device's memory is the host's."""
        interface = {
            "version": 3,
            "shape": self.shape,
            "typestr": f"|V{self.dtype.itemsize}",
            "data": (self.address, False),
            "strides": self._form.strides,
        }
        holder = type("Holder", (), {"__array_interface__": interface})()
        return np.asarray(holder).view(self.dtype)

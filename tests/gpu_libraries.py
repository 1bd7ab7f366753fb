"""Libraries that have arrays in GPU memory, and what a test does with each of them.

On a fake device these are hpccoll's own arrays and `FakeArray`. On real ones, hpccoll's and those
of the libraries that are installed; each is imported when it is first asked for.
"""

import importlib
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from cuda_session import REAL, Gpu
from fake_arrays import FakeArray

from hpccoll.cuda import cuda_array
from hpccoll.cuda.driver import get_device

VIEWS: dict[str, Callable[[Any], Any]] = {
    "every other": lambda x: x[::2],
    "columns": lambda x: x[:, 3:40:3],
    "transposed": lambda x: x.T,
    "one row": lambda x: x[4],
}
"""Of arrays of two dimensions."""


def imported(name: str) -> Any:
    """Return a module; skip the test where it cannot be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} cannot be imported: {error}")


class Own:
    """`hpccoll.cuda.CudaArray`."""

    views: tuple[str, ...] = ()
    types: tuple[str, ...] = ("int32", "float16", "float32", "float64", "complex64")
    is_mutable = True

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.device = gpu, gpu.device
        self._current = gpu.stream

    def array(self, values: Any, stream: Any = None) -> Any:
        """Return an array; on a stream, where arrays of the library have one of their own."""
        return cuda_array.asarray(
            values, self.device, stream=self._current if stream is None else stream
        )

    def numpy(self, x: Any, stream: Any = None) -> Any:
        """Return the contents, as that stream, or the current one, finds them."""
        return cuda_array.asnumpy(x, stream=stream)

    def new_stream(self) -> Any:
        """Return a stream that is not the default one; None where the library has none."""
        if self.gpu.fake is not None:
            return self.gpu.fake.new_stream(self.device)
        return get_device(self.device).new_stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which a stream is the current one, where a library has that."""
        return nullcontext()

    def kind_of_result(self, x: Any) -> type:
        """Return the type that a new result has."""
        return type(x)


class Fake(Own):
    """`FakeArray`, on a fake device."""

    views = tuple(VIEWS)

    def array(self, values, stream=None):
        values = np.asarray(values)
        on = self._current if stream is None else stream
        return FakeArray(values.shape, values.dtype, self.device, on).fill(values)

    def numpy(self, x, stream=None):
        return x.numpy(stream) if isinstance(x, FakeArray) else cuda_array.asnumpy(x, stream=stream)

    def kind_of_result(self, x):
        return cuda_array.CudaArray


class Torch(Own):
    """torch."""

    views = tuple(VIEWS)
    types = (*Own.types, "bool", "bfloat16")

    def __init__(self, gpu):
        super().__init__(gpu)
        self.torch = imported("torch")
        self.place = self.torch.device("cuda", self.device)

    def array(self, values, stream=None):
        if values.dtype.name == "bfloat16":
            halves = self.torch.from_numpy(values.view(np.int16))
            return halves.to(self.place).view(self.torch.bfloat16)
        return self.torch.from_numpy(values).to(self.place)

    def numpy(self, x, stream=None):
        with nullcontext() if stream is None else self.on(stream):
            if x.dtype is self.torch.bfloat16:
                import ml_dtypes

                return x.view(self.torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
            return x.cpu().numpy()

    def new_stream(self):
        return self.torch.cuda.Stream(self.place)

    def on(self, stream):
        return self.torch.cuda.stream(stream)


class CuPy(Own):
    """CuPy."""

    views = tuple(VIEWS)
    types = (*Own.types, "bool", "uint64")

    def __init__(self, gpu):
        super().__init__(gpu)
        self.cupy = imported("cupy")
        self.cupy.cuda.Device(self.device).use()

    def array(self, values, stream=None):
        return self.cupy.asarray(values)

    def numpy(self, x, stream=None):
        with nullcontext() if stream is None else stream:
            return self.cupy.asnumpy(x)

    def new_stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def on(self, stream):
        return stream


class Numba(Own):
    """Numba, whose arrays have a stream of their own."""

    views = ("every other", "columns", "transposed")
    types = (*Own.types, "uint8")

    def __init__(self, gpu):
        super().__init__(gpu)
        self.cuda = imported("numba.cuda")
        self.cuda.select_device(self.device)

    def array(self, values, stream=None):
        return self.cuda.to_device(values, stream=0 if stream is None else stream)

    def numpy(self, x, stream=None):
        if stream is None:
            return x.copy_to_host()
        result = x.copy_to_host(stream=stream)
        stream.synchronize()
        return result

    def new_stream(self):
        return self.cuda.stream()


class Jax(Own):
    """JAX, whose arrays never change."""

    types = ("int32", "float16", "bfloat16", "float32", "complex64")
    is_mutable = False

    def __init__(self, gpu):
        super().__init__(gpu)
        # Ranks share the device: none may take most of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.jax = imported("jax")
        try:
            self.place = self.jax.devices("cuda")[self.device]
        except RuntimeError as error:
            pytest.skip(f"JAX sees no GPU: {error}")

    def array(self, values, stream=None):
        return self.jax.device_put(values, self.place)

    def numpy(self, x, stream=None):
        return np.asarray(x)

    def new_stream(self):
        return None

    def kind_of_result(self, x):
        return type(x)


LIBRARIES: tuple[type[Own], ...] = (Own, Torch, CuPy, Numba, Jax) if REAL else (Own, Fake)

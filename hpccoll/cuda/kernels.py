"""The kernels of one device: compiled and loaded when they are first asked for.

Their sources are in ``kernels/cuda/``; they share with the loops of the CPU what each operation
does to two elements (``kernels/operations.h``), and give the same bytes.
"""

import threading
from collections.abc import Mapping
from typing import Protocol

from hpccoll import _kernels

BLOCK_THREADS = 256
"""Threads of a block: as many as the kernels are compiled for."""

MOST_BLOCKS = 8192
"""Some rounds of what the largest devices run at a time. With more elements, each thread handles
several packets of 16 bytes, and has the loads of several under way."""

PACKET_BYTES = 16

VIEW_ITEMSIZES = (1, 2, 4, 8, 16)

HALF_TYPES = ("float16", "bfloat16")
WIDENED_OPERATIONS = ("sum", "prod")
"""Operations whose partial values of half types are float32."""


class Compiler(Protocol):
    """Makes device code of a source file."""

    def compile(self, source_name: str, defines: Mapping[str, str], arch: str) -> bytes:
        """Return what a driver loads as a module.

        Parameters
        ----------
        source_name : str
            A file in ``kernels/cuda/``.
        defines : mapping of str to str
            Macros, which choose the kernel.
        arch : str
            Of the device: "sm_90".
        """


class LoadingDevice(Protocol):
    """What of a device the kernels need."""

    @property
    def arch(self) -> str:
        """What to compile for: "sm_90"."""

    def load_module(self, code: bytes) -> int:
        """Load device code."""

    def function(self, module: int, name: str) -> int:
        """Return the address of a kernel."""


class Kernels:
    """The kernels of a device, by the names of `hpccoll._kernels`.

    Every method returns a driver's function, to be launched with the struct of
    `hpccoll.cuda.kernel_arguments` that it names, and with a grid from `launch_shape`. ValueError
    says that there is no such kernel; ImportError, that nothing is installed that compiles;
    RuntimeError, that compiling or loading failed.

    Parameters
    ----------
    device : LoadingDevice
        Where they run.
    compiler : Compiler, optional
        What compiles them; by default NVRTC, with a cache on disk.
    """

    def __init__(self, device: LoadingDevice, compiler: Compiler | None = None) -> None:
        self._device = device
        self._compiler = compiler
        self._functions: dict[str, int] = {}
        self._lock = threading.Lock()

    @staticmethod
    def supports(kernel: str, type_name: str) -> bool:
        """Tell whether there is a kernel for an operation on a type; unknown names are none."""
        return _kernels.supports(kernel, type_name)

    def pair(self, kernel: str, type_name: str) -> int:
        """Return the kernel that reduces two arrays (`PairArguments`).

        Parameters
        ----------
        kernel : str
            One of `hpccoll._kernels.OPERATIONS`.
        type_name : str
            One of `hpccoll._kernels.TYPES`.
        """
        self._check(kernel, type_name)
        of_type = _c_name(type_name)
        defines = {"OPERATION": kernel, "TYPE": of_type}
        return self._function("pair.cu", defines, f"pair_{kernel}_{of_type}")

    def many(self, kernel: str, type_name: str, *, partial: bool = False) -> int:
        """Return the kernel that reduces many arrays, and divides (`ManyArguments`).

        Sums and products of half types are computed in float32 and rounded once.

        Parameters
        ----------
        kernel, type_name : str
            As for `pair`.
        partial : bool
            Store partial values: float32 where they are computed in that.
        """
        self._check(kernel, type_name)
        of_type = _c_name(type_name)
        widens = type_name in HALF_TYPES and kernel in WIDENED_OPERATIONS
        computed = "float32" if widens else of_type
        out = computed if partial else of_type
        defines = {"OPERATION": kernel, "TYPE": of_type, "PARTIAL": computed, "OUT": out}
        return self._function("many.cu", defines, f"many_{kernel}_{of_type}_{out}")

    def finish(self, type_name: str, *, narrow: bool = False) -> int:
        """Return the kernel that divides an array (`FinishArguments`).

        Parameters
        ----------
        type_name : str
            Of the result: a floating or complex type.
        narrow : bool
            The source is float32, and the result a half type.
        """
        allowed = HALF_TYPES if narrow else _dividing_types()
        if type_name not in allowed:
            raise ValueError(f"finish: type {type_name!r}; wanted one of {', '.join(allowed)}")
        return self._convert("float32" if narrow else type_name, type_name)

    def widen(self, type_name: str) -> int:
        """Return the kernel from a half type to float32 (`FinishArguments`).

        Parameters
        ----------
        type_name : str
            Of the source: "float16" or "bfloat16".
        """
        if type_name not in HALF_TYPES:
            raise ValueError(f"widen: type {type_name!r}; wanted one of {', '.join(HALF_TYPES)}")
        return self._convert(type_name, "float32")

    def copy_many(self) -> int:
        """Return the kernel that copies bytes to many places (`ManyArguments`, one source)."""
        return self._function("copy_many.cu", {}, "copy_many")

    def view(self, itemsize: int) -> int:
        """Return the kernel between arrays of any strides (`ViewArguments`).

        Parameters
        ----------
        itemsize : int
            Bytes of an element: 1, 2, 4, 8 or 16.
        """
        if itemsize not in VIEW_ITEMSIZES:
            wanted = ", ".join(map(str, VIEW_ITEMSIZES))
            raise ValueError(f"view: elements of {itemsize} bytes; wanted one of {wanted}")
        return self._function("view.cu", {"ITEMSIZE": str(itemsize)}, f"view_{itemsize}")

    def _convert(self, source: str, out: str) -> int:
        return self._function("finish.cu", {"IN": source, "OUT": out}, f"finish_{source}_{out}")

    def _check(self, kernel: str, type_name: str) -> None:
        if not self.supports(kernel, type_name):
            raise ValueError(f"there is no kernel for {kernel!r} of {type_name!r}")

    def _function(self, source_name: str, defines: Mapping[str, str], name: str) -> int:
        function = self._functions.get(name)
        if function is not None:
            return function
        with self._lock:
            if name not in self._functions:
                if self._compiler is None:
                    from hpccoll.cuda.compilation import NvrtcCompiler

                    self._compiler = NvrtcCompiler()
                code = self._compiler.compile(source_name, defines, self._device.arch)
                module = self._device.load_module(code)
                self._functions[name] = self._device.function(module, name)
            return self._functions[name]


def launch_shape(n: int, itemsize: int) -> tuple[int, int]:
    """Return how many threads run a kernel.

    Parameters
    ----------
    n : int
        Elements; of `Kernels.copy_many`, bytes.
    itemsize : int
        Bytes of an element of the arrays with the smallest elements. For `Kernels.view`, whose
        threads take elements one by one, `PACKET_BYTES`.

    Returns
    -------
    grid, block : int
        Blocks, at least one, and threads of each. Any other grid gives the same result.
    """
    packets = -(-n * itemsize // PACKET_BYTES)
    return max(1, min(MOST_BLOCKS, -(-packets // BLOCK_THREADS))), BLOCK_THREADS


def _c_name(type_name: str) -> str:
    """Return what ``kernels/operations.h`` calls a type: `bool` may be a macro in C."""
    return "boolean" if type_name == "bool" else type_name


def _dividing_types() -> tuple[str, ...]:
    return tuple(name for name in _kernels.TYPES if _kernels.divide_address(name))

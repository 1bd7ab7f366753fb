"""The GPU kernels on the CPU: their very sources, compiled by gcc as C.

`HostCompiler` stands for NVRTC: what it returns as code names a shared object, in which every
kernel runs the threads of its grid one after another. `run` is what a driver does to launch one,
`ranges` says which memory a launch touches.
"""

import ctypes
import functools
import hashlib
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.cuda import compilation
from hpccoll.cuda.kernel_arguments import (
    FinishArguments,
    ManyArguments,
    PairArguments,
    ViewArguments,
)

# A kernel is a function of its arguments and of the numbers of its thread. Threads of the host may
# run kernels side by side, so each has numbers of its own.
#
# A GPU faults where an address is not aligned to what is read or written there, the CPU does not:
# the compiler adds a look at every address, and calls this handler.
PRELUDE = """\
unsigned misaligned;

void __ubsan_handle_type_mismatch_v1(void *place, void *address)
{
    __atomic_add_fetch(&misaligned, 1, __ATOMIC_RELAXED);
}

#define IN_MEMORY __attribute__((may_alias))

static _Thread_local struct { unsigned x; } blockIdx, threadIdx, gridDim, blockDim;

#define KERNEL(name, arguments_type) HOST_KERNEL(name, arguments_type)
#define HOST_KERNEL(name, arguments_type) \\
    static void name##_thread(const struct arguments_type arguments); \\
    void name(const struct arguments_type *arguments, unsigned grid, unsigned block) \\
    { \\
        gridDim.x = grid; \\
        blockDim.x = block; \\
        for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) \\
            for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) \\
                name##_thread(*arguments); \\
    } \\
    static void name##_thread(const struct arguments_type arguments)

"""

COMPILE = ("gcc", "-std=c11", "-O0", "-ffp-contract=off", "-fsanitize=alignment", "-fPIC", "-w")
LINK = ("gcc", "-shared", "-Wl,-Bsymbolic")  # without the sanitizer's library: the handler is ours

ITEMSIZES = {
    **{"boolean": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float16": 2, "bfloat16": 2},
    **{"float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
}
"""By the names that the kernels' own names have."""

ARGUMENTS = {
    "pair": PairArguments,
    "finish": FinishArguments,
    "many": ManyArguments,
    "copy_many": ManyArguments,
    "view": ViewArguments,
}
"""The struct that the kernels of a family take."""

Ranges = list[tuple[int, int]]

OTHERS: dict[str, Callable[[Any], tuple[Ranges, Ranges]]] = {}
"""By family, what says which memory kernels that are not in kernels/cuda touch; see `add`."""


def add(family: str, arguments: type[ctypes.Structure], ranges: Callable[[Any], Any]) -> None:
    """Make kernels known that a test has of its own.

    Parameters
    ----------
    family : str
        The first word of their names.
    arguments : type
        The struct that they take.
    ranges : callable
        Returns, for such a struct, what is read and what is written, as `ranges` does.
    """
    ARGUMENTS[family], OTHERS[family] = arguments, ranges


class HostCompiler:
    """A `hpccoll.cuda.kernels.Compiler` for the CPU. What was compiled once stays on disk.

    Parameters
    ----------
    directory : Path, optional
        Where the shared objects are kept; by default a folder of the user's for temporary files.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or Path(tempfile.gettempdir(), f"hpccoll-{os.getuid()}")

    def compile(self, source_name: str, defines: Mapping[str, str], arch: str = "host") -> bytes:
        """Return the path of a shared object with that kernel, ended by a zero byte."""
        return self.compile_text(compilation.program_text(source_name, defines))

    def compile_text(self, text: str, arch: str = "host", include: Path | None = None) -> bytes:
        """Return the path of a shared object made of a program, and a zero byte.

        `include` is a folder of headers, beside that of the kernels' sources.
        """
        folders = [compilation.source_directory(), *([include] if include else [])]
        program = PRELUDE + text
        digest = hashlib.sha256(f"{COMPILE}{program}".encode())
        for folder in folders:
            digest.update(_digest(folder))
        path = self.directory / f"{digest.hexdigest()[:40]}.so"
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.directory) as place:
                compiled, linked = Path(place, "compiled.o"), Path(place, "linked.so")
                includes = [f"-I{folder}" for folder in folders]
                _run([*COMPILE, *includes, "-x", "c", "-c", "-", "-o", str(compiled)], program)
                _run([*LINK, str(compiled), "-o", str(linked)])
                linked.replace(path)  # at once: other processes may look
        return os.fsencode(path) + b"\0"


def run(code: bytes, name: str, arguments: bytes, grid: int, block: int) -> None:
    """Run a kernel, all of it, before this returns.

    Parameters
    ----------
    code : bytes
        As from `HostCompiler.compile`; what comes after a zero byte is not looked at.
    name : str
        Of the kernel. AttributeError if the code has none of that name; AssertionError if it used
        an address that a GPU faults on.
    arguments : bytes
        The struct that it takes.
    grid, block : int
        Blocks, and threads of each.
    """
    library = _library(code.partition(b"\0")[0])
    kernel = library[name]
    kernel.argtypes = (ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
    kernel.restype = None
    kernel(bytes(arguments), grid, block)
    assert ctypes.c_uint.in_dll(library, "misaligned").value == 0, f"{name}: misaligned address"


def argument_bytes(name: str) -> int:
    """Return how many bytes the struct has that a kernel takes.

    Parameters
    ----------
    name : str
        Of the kernel.
    """
    family, _ = _parts(name)
    return ctypes.sizeof(ARGUMENTS[family])


def ranges(name: str, arguments: bytes) -> tuple[Ranges, Ranges]:
    """Say which memory a kernel touches.

    Parameters
    ----------
    name : str
        Of the kernel.
    arguments : bytes
        The struct that it takes.

    Returns
    -------
    reads, writes : list of (address, nbytes)
        Exactly what is read, and what is written.
    """
    family, words = _parts(name)
    x = ARGUMENTS[family].from_buffer_copy(arguments)
    if family in OTHERS:
        return OTHERS[family](x)
    if family == "pair":
        nbytes = x.n * ITEMSIZES[words[1]]
        return _runs([x.left, x.right], nbytes), _runs([x.out], nbytes)
    if family == "finish":
        read, written = (x.n * ITEMSIZES[word] for word in words)
        return _runs([x.source], read), _runs([x.out], written)
    if family == "view":
        itemsize = int(words[0])
        reads = _places(x, x.source, x.source_strides, itemsize)
        return reads, _places(x, x.out, x.out_strides, itemsize)
    read, written = (1, 1) if family == "copy_many" else (ITEMSIZES[word] for word in words[1:])
    sources, targets = x.sources[: x.source_count], x.targets[: x.target_count]
    return _runs(sources, x.n * read), _runs(targets, x.n * written)


def _parts(name: str) -> tuple[str, list[str]]:
    """Return the family of a kernel, and the other words of its name."""
    family, *words = re.split(r"_(?!many)", name)  # copy_many is one word
    return family, words


def _runs(addresses: Iterable[int], nbytes: int) -> Ranges:
    return [(address, nbytes) for address in addresses] if nbytes else []


def _places(view: ViewArguments, address: int, strides: Iterable[int], itemsize: int) -> Ranges:
    """Return the places of the elements; neighbours as one."""
    shape, strides = view.shape[: view.dimensions], strides[: view.dimensions]
    if math.prod(shape) == 0:
        return []
    places = np.zeros((), np.int64)
    for length, stride in zip(shape, strides, strict=True):
        places = places[..., np.newaxis] + np.arange(length) * stride
    places = np.unique(places)
    starts = np.flatnonzero(np.append(True, np.diff(places) > itemsize))
    stops = np.append(starts[1:], len(places)) - 1
    return [
        (address + int(places[start]), int(places[stop] - places[start]) + itemsize)
        for start, stop in zip(starts, stops, strict=True)
    ]


def _run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def _library(path: bytes) -> ctypes.CDLL:
    return ctypes.CDLL(os.fsdecode(path))


@functools.cache
def _digest(folder: Path) -> bytes:
    return compilation.sources_digest(folder)

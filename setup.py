"""The extension modules and how they are compiled; everything else is in pyproject.toml."""

import os
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

DEBUG = os.environ.get("HPCCOLL_BUILD_DEBUG") == "1"
JOBS = int(os.environ.get("HPCCOLL_BUILD_JOBS", "0"))  # modules that Cython has in hand; 0: one
SANITIZE = os.environ.get("HPCCOLL_SANITIZE", "")  # "address,undefined" in tests/sanitize/run.sh

# No -march=native and no -ffast-math: one build runs on every CPU of its architecture and sums
# in the order that was asked for. The CPU-specific loops carry their own target attribute.
COMPILE_ARGS = ["-std=c11", "-ffp-contract=off", *(["-O1", "-g"] if DEBUG or SANITIZE else ["-O3"])]
LINK_ARGS = [f"-fsanitize={SANITIZE}"] if SANITIZE else []
if SANITIZE:
    # What the interpreter was built with comes before these. A fortified memcpy is not looked at,
    # and where integers wrap no overflow is.
    COMPILE_ARGS += [*LINK_ARGS, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    COMPILE_ARGS += ["-fno-wrapv", "-U_FORTIFY_SOURCE", "-fno-lto"]

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "cdivision": True,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
}


# What GPU kernels are compiled from, where they run. A checkout has it in kernels/ itself.
KERNEL_SOURCES = ["portable.h", "half.h", "operations.h", "cuda/*"]


class BuildWithKernelSources(build_py):
    """Puts the sources of the GPU kernels into the package hpccoll.cuda, as they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for pattern in KERNEL_SOURCES:
            for source in sorted(Path("kernels").glob(pattern)):
                inside = Path("hpccoll/cuda/source", source.relative_to("kernels"))
                copy = Path(self.build_lib, inside)
                self.mkpath(str(copy.parent))
                self.copy_file(str(source), str(copy))


def extension(name: str, *headers: str) -> Extension:
    return Extension(
        f"hpccoll.{name}",
        sources=[f"kernels/{name}.pyx"],
        depends=[f"kernels/{header}" for header in headers],
        include_dirs=["kernels", np.get_include()],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"),
            ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),  # of NumPy 1.26, the oldest allowed
        ],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
    )


setup(
    cmdclass={"build_py": BuildWithKernelSources},
    ext_modules=cythonize(
        [
            extension(
                "_kernels",
                "reduce_loops.h",
                "operations.h",
                "half.h",
                "portable.h",
                "loop_shapes.h",
                "target_loops.h",
            ),
            extension("_plans"),
            extension("_comm"),
            extension("_requests"),
            extension("_executor", "waiting.h", "looking.h"),
            extension(
                "_device",
                "waiting.h",
                "looking.h",
                "device_work.h",
                "portable.h",
                "cuda/arguments.h",
            ),
            extension("_arena", "arena.h", "array_handler.h", "regions.h"),
            extension(
                "_node",
                "node_levels.h",
                "node_collective.h",
                "node_reduce.h",
                "node_allreduce.h",
                "node_move.h",
                "node_call.h",
                "node_slots.h",
                "tree.h",
                "waiting.h",
            ),
        ],
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
    ),
)

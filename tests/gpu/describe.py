"""Print what there is: devices, and the versions of what is used. Fails where one is missing."""

import ctypes
import platform
from importlib import metadata

from hpccoll.cuda.compilation import NvrtcCompiler
from hpccoll.cuda.driver import get_driver
from hpccoll.errors import CudaError

PACKAGES = (
    *("numpy", "mpi4py", "mpich", "cuda-core", "cuda-bindings", "ml-dtypes", "pytest"),
    *("torch", "cupy-cuda13x", "cupy-cuda12x", "numba", "numba-cuda", "jax"),
)


def versions() -> list[str]:
    """Return the names and versions of the packages that are there."""
    every = reversed([*metadata.distributions()])  # the first of a name is the one that is imported
    installed = {one.name.lower().replace("_", "-"): one.version for one in every}
    return [f"{name} {installed[name]}" for name in PACKAGES if name in installed]


def main() -> None:
    """Print it."""
    driver = get_driver()
    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    major, minor = version.value // 1000, version.value % 1000 // 10
    count = driver.device_count()
    print(f"CUDA driver of CUDA {major}.{minor}, {count} device{'s' * (count != 1)}")
    for number in range(count):
        device = driver.device(number)
        print(f"  {number}: {device.name}, {device.arch}, {device.multiprocessors} multiprocessors")
    NvrtcCompiler()  # says what is missing for it
    print(f"Python {platform.python_version()}, {', '.join(versions())}")
    if not count:
        raise SystemExit("there is no device")


if __name__ == "__main__":
    try:
        main()
    except (ImportError, CudaError) as error:
        raise SystemExit(str(error)) from None

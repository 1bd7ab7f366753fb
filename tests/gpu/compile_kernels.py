"""Compile kernels for the first device, on all cores, so that tests find them in the cache.

Those of the tests of kernels come first, then each by itself, as collectives ask for them. What is
not compiled when the time is over, the tests compile.
"""

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context

from kernel_requests import conversions, movements, pairs, requested, trees

from hpccoll import _kernels
from hpccoll.cuda.compilation import NvrtcCompiler
from hpccoll.cuda.driver import get_device


def programs() -> list[str]:
    """Return what is to be compiled; what takes longest first."""
    families = [(family, name) for family in (trees, pairs) for name in _kernels.TYPES]
    every = [requested(*family) for family in (*families, (conversions,), (movements,))]
    joined = ["".join(text for text, _ in kernels) for kernels in every]
    return [*joined, *dict.fromkeys(text for kernels in every for text, _ in kernels)]


def compile_one(text: str, arch: str) -> None:
    """Compile a program in a process of its own."""
    NvrtcCompiler().compile_text(text, arch)


def main() -> None:
    """Compile as much as there is time for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    seconds = parser.parse_args().seconds
    start, arch = time.monotonic(), get_device(0).arch
    # No child is forked: this process has used CUDA.
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    futures = [pool.submit(compile_one, text, arch) for text in programs()]
    done, left = wait(futures, timeout=seconds)
    pool.shutdown(wait=True, cancel_futures=True)
    for future in done:
        future.result()
    print(
        f"{len(done)} programs compiled in {time.monotonic() - start:.0f} s, {len(left)} left out"
    )


if __name__ == "__main__":
    main()

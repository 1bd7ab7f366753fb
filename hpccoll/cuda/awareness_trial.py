"""The child process of `hpccoll.cuda.awareness`: a rank sends device memory to itself, and looks.

A program of its own because an MPI library that cannot do that ends it. Exit status 0: it came out
right; `NO_DEVICE`: there is nothing to try it with; anything else, and a signal: it cannot.
"""

import resource
import sys

import numpy as np

from hpccoll.cuda.awareness import NO_DEVICE
from hpccoll.cuda.cuda_array import asarray, asnumpy, empty
from hpccoll.cuda.driver import get_driver

SIZES = (8, 1 << 10, 1 << 20)
"""Bytes: MPI libraries send short, longer and long messages in different ways."""


def main() -> int:
    """Try it, and return the exit status."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        count = get_driver().device_count()
    except (ImportError, RuntimeError, OSError):
        count = 0
    if not count:
        return NO_DEVICE
    from mpi4py import MPI

    for nbytes in SIZES:
        pattern = np.arange(nbytes, dtype=np.int64).astype(np.uint8)
        source, target = asarray(pattern), empty(nbytes, np.uint8)
        asnumpy(source)  # waits until it is there
        MPI.COMM_SELF.Sendrecv(
            [MPI.buffer.fromaddress(source.array.ctypes.data, nbytes), MPI.BYTE],
            0,
            recvbuf=[MPI.buffer.fromaddress(target.array.ctypes.data, nbytes), MPI.BYTE],
            source=0,
        )
        if not np.array_equal(asnumpy(target), pattern):
            print(f"{nbytes} bytes came out wrong", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

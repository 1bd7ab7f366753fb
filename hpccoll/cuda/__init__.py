"""Arrays in GPU memory: where they are, what kernels do with them, and which way they travel.

For users there are `CudaArray`, an array of hpccoll's own, which `empty` and `asarray` make and
`asnumpy` reads. From the bottom up:

driver          the CUDA driver, by the functions that are called: the one thing that tests replace
device          a device: its context, memory, streams, events
device_array    an array in device memory, as shape, strides, type and address
foreign_arrays  arrays of any library that lie in GPU memory become one
streams         which stream the caller's work is on, and how a call is put in order with it
kernels         the loops, compiled for the device at first use (compilation)
plans           plans of messages, which devices send, receive and reduce
peers, mapping  what ranks of a node have mapped of each other's memory
mapped, nodes   the paths of ranks that do: in one node, and in several
on_host         the path on which the host reduces
nccl            NCCL, for whoever asks for it
site            where the device calls of a communicator run, and which of these paths each takes
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.cuda.cuda_array import CudaArray, asarray, asnumpy, empty

__all__ = ["CudaArray", "asarray", "asnumpy", "empty"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module 'hpccoll.cuda' has no attribute {name!r}"
        raise AttributeError(message)
    from hpccoll.cuda import cuda_array

    return getattr(cuda_array, name)

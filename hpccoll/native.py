"""Calls that the MPI library runs, on arrays in GPU memory: where it may, and in order."""

from collections.abc import Sequence
from typing import Any

from hpccoll import buffers
from hpccoll.jobs import streams_of


def leave_to_mpi(arguments: Sequence[Any], *, persistent: bool = False) -> None:
    """Raise where the MPI library is to run a call on GPU memory, and might crash on it.

    Where it may, the host waits for the streams of the arrays, of which MPI knows nothing.

    Parameters
    ----------
    arguments : sequence
        Of the call, as mpi4py has them.
    persistent : bool
        Whether it will be started later, and often.

    Raises
    ------
    TypeError
        The library is not known to take device pointers.
    """
    buffers_ = [spec[0] if isinstance(spec, (list, tuple)) and spec else spec for spec in arguments]
    on_device = [buffer for buffer in buffers_ if buffers.is_on_device(buffer)]
    if not on_device:
        return
    from hpccoll.cuda.awareness import cuda_aware
    from hpccoll.cuda.foreign_arrays import of_device
    from hpccoll.cuda.streams import wait_for

    answer = cuda_aware().answer
    if answer != "yes" or persistent:
        why = (
            "has to be told of its stream at each start"
            if answer == "yes"
            else (f"cannot be given to this MPI library (cuda_aware: {answer})")
        )
        message = (
            "the operation, datatype or form of the buffers is one that only the MPI library has, "
            f"and a {type(on_device[0]).__name__} in GPU memory {why}; copy it to the host"
        )
        raise TypeError(message)
    for buffer in on_device:
        array = of_device("the buffer", buffer)
        streams = streams_of(array)
        assert streams is not None
        wait_for(array.device, streams.now().stream)

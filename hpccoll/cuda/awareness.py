"""Whether the MPI library of this process takes pointers to device memory, and how that is known.

A library that does not, and is given one, ends the process by a segmentation fault, or sends what
happens to lie there. So it is asked first, by its own function for that; and what it says is tried
in a child process, which may crash without harm.
"""

import ctypes
import functools
import os
import signal
import subprocess
import sys
from typing import NamedTuple

DRIVER_LIBRARY = "libcuda.so.1"

CHILD = "hpccoll.cuda.awareness_trial"
"""The module that the child runs."""

CHILD_SECONDS = 60.0
"""How long the child may take: to start MPI and CUDA where nothing is in cache."""

NO_DEVICE = 3
"""The child's exit status where there is no device for it to try."""

LAUNCHERS = (
    *("PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_"),
    "SLURM_",
)
"""What the variables begin with by which launchers tell a process its rank; the child is alone."""


class Awareness(NamedTuple):
    """Whether the MPI library takes pointers to device memory.

    Attributes
    ----------
    answer : str
        "yes", "no" or "unknown".
    how : str
        How that is known.
    """

    answer: str
    how: str


@functools.cache
def cuda_aware() -> Awareness:
    """Find out whether the MPI library takes pointers to device memory; once per process.

    MPI must have been started. CUDA is not started in this process. A local call, which may take
    seconds the first time.
    """
    claim, how = query()
    if claim == "no":
        return Awareness("no", how)
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return Awareness(claim, f"{how}; there is no CUDA driver here to try it with")
    answer, tried = exchange()
    return Awareness(claim if answer == "untried" else answer, f"{how}; {tried}")


def query() -> Awareness:
    """Ask the MPI library, by the functions that it has for that."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)  # finds what that is linked to, too
    if hasattr(library, "MPIX_Query_cuda_support"):
        return _said("MPIX_Query_cuda_support", bool(library.MPIX_Query_cuda_support()))
    if hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int(0)
        library.MPIX_GPU_query_support(0, ctypes.byref(supported))  # 0: CUDA
        return _said("MPIX_GPU_query_support", bool(supported.value))
    kinds = MPI.COMM_SELF.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return Awareness("yes", f"its mpi_memory_alloc_kinds are {kinds}")
    name = MPI.get_vendor()[0]
    return Awareness("unknown", f"{name} has no function that says so")


def _said(function: str, supported: bool) -> Awareness:
    answer = "yes" if supported else "no"
    return Awareness(answer, f"{function} of the MPI library says {answer}")


def exchange() -> Awareness:
    """Try it in a child process: a rank alone sends device memory to itself.

    Returns
    -------
    Awareness
        The answer is "untried" where there is no device.
    """
    command = [sys.executable, "-m", CHILD]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)
    }
    try:
        # Started without a fork of this process, in which MPI has threads and mapped memory.
        child = subprocess.run(
            command,
            env=environment,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        how = f"an exchange in a child process was not over after {CHILD_SECONDS:g} s"
        return Awareness("unknown", how)
    except OSError as error:
        return Awareness("unknown", f"a child process could not be started: {error}")
    if child.returncode == 0:
        return Awareness("yes", "an exchange of device memory in a child process came out right")
    if child.returncode == NO_DEVICE:
        return Awareness("untried", "there is no device here to try it with")
    if child.returncode < 0:
        name = _signal_name(-child.returncode)
        return Awareness("no", f"an exchange of device memory in a child process ended by {name}")
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return Awareness("no", f"an exchange of device memory in a child process failed: {last}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of most that are for real time
        return f"signal {number}"

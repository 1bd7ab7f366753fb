"""The part of `hpccoll.Comm` that every call goes through (kernels/_comm.pyx)."""

from typing import Any, final

from mpi4py import MPI

from hpccoll._plans import Plan, PlanCache
from hpccoll.calls import Call

@final
class Recent:
    """What a communicator object has for its next call, and of its last one."""

    plans: PlanCache | None
    last: Plan | Call | None

def Allreduce(  # noqa: N802
    self: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = ...
) -> None: ...

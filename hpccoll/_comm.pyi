"""The part of `hpccoll.Comm` that every call goes through (kernels/_comm.pyx)."""

from collections.abc import Sequence
from typing import Any, final

from mpi4py import MPI

from hpccoll._plans import Plan, PlanCache
from hpccoll.calls import Call

NOTHING: Any

@final
class Recent:
    """What a communicator object has for its next call, and of its last one."""

    rank: int
    limit: int
    plans: dict[tuple[str, int], PlanCache]
    all_reduce: PlanCache | None
    last: Plan | Call | None

    def __init__(self, rank: int) -> None: ...

def Allreduce(  # noqa: N802
    self: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = ...
) -> None: ...
def Reduce(  # noqa: N802
    self: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = ..., root: int = 0
) -> None: ...
def Reduce_scatter_block(  # noqa: N802
    self: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = ...
) -> None: ...
def Reduce_scatter(  # noqa: N802
    self: MPI.Intracomm,
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Sequence[int] | None = None,
    op: MPI.Op | str = ...,
) -> None: ...
def Allgather(self: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> None: ...  # noqa: N802
def Allgatherv(self: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> None: ...  # noqa: N802
def Bcast(self: MPI.Intracomm, buf: Any, root: int = 0) -> None: ...  # noqa: N802
def Barrier(self: MPI.Intracomm) -> None: ...  # noqa: N802

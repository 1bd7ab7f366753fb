"""MPI collectives for Python that can be seen, chosen, proved and measured.

Importing this package starts neither MPI nor a GPU: what needs MPI is loaded when it is first used,
so that `simulate` and `algorithms` also work where there is no MPI at all.
"""

from typing import TYPE_CHECKING, Any

# The function goes by the name of the package that it lists: bound here, after that was imported.
from hpccoll.algorithms import Algorithm, algorithms
from hpccoll.errors import CollectiveTimeoutError, MismatchError
from hpccoll.simulator import simulate
from hpccoll.traffic import Simulation

if TYPE_CHECKING:
    from hpccoll.bucketer import Bucketer
    from hpccoll.calls import Call
    from hpccoll.collectives import allgather, allreduce, barrier, broadcast, reduce, reduce_scatter
    from hpccoll.comm import Comm
    from hpccoll.fused import allreduce_many
    from hpccoll.information import info
    from hpccoll.nonblocking import (
        Handle,
        iallgather,
        iallreduce,
        ibarrier,
        ibroadcast,
        ireduce,
        ireduce_scatter,
    )
    from hpccoll.shared import empty, full, is_shared, shared_arrays, zeros

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Bucketer",
    "Call",
    "CollectiveTimeoutError",
    "Comm",
    "Handle",
    "MismatchError",
    "Simulation",
    "algorithms",
    "allgather",
    "allreduce",
    "allreduce_many",
    "barrier",
    "broadcast",
    "empty",
    "full",
    "iallgather",
    "iallreduce",
    "ibarrier",
    "ibroadcast",
    "info",
    "ireduce",
    "ireduce_scatter",
    "is_shared",
    "reduce",
    "reduce_scatter",
    "shared_arrays",
    "simulate",
    "zeros",
]

_HOMES = {
    "Bucketer": "hpccoll.bucketer",
    "Call": "hpccoll.calls",
    "Comm": "hpccoll.comm",
    "Handle": "hpccoll.nonblocking",
    "allgather": "hpccoll.collectives",
    "allreduce": "hpccoll.collectives",
    "allreduce_many": "hpccoll.fused",
    "barrier": "hpccoll.collectives",
    "broadcast": "hpccoll.collectives",
    "empty": "hpccoll.shared",
    "full": "hpccoll.shared",
    "iallgather": "hpccoll.nonblocking",
    "iallreduce": "hpccoll.nonblocking",
    "ibarrier": "hpccoll.nonblocking",
    "ibroadcast": "hpccoll.nonblocking",
    "info": "hpccoll.information",
    "ireduce": "hpccoll.nonblocking",
    "ireduce_scatter": "hpccoll.nonblocking",
    "is_shared": "hpccoll.shared",
    "reduce": "hpccoll.collectives",
    "reduce_scatter": "hpccoll.collectives",
    "shared_arrays": "hpccoll.shared",
    "zeros": "hpccoll.shared",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module 'hpccoll' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

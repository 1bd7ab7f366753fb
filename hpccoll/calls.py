"""`Call`: what one call did."""

from typing import NamedTuple

from hpccoll._executor import MessagePlan
from hpccoll._node import NodePlan
from hpccoll._plans import Plan
from hpccoll.engine import PlanInfo


class Call(NamedTuple):
    """What the last call on a communicator did, on this rank.

    Attributes
    ----------
    collective : str
        "allreduce".
    path : str
        "node" where all went through memory that the ranks of one node share, "point-to-point"
        where messages were sent, "hierarchical" where both, memory inside nodes and messages
        between them, or "native" where the MPI library ran the call.
    algorithm : str
        What ran. On the node path, how it moved the data: one of "in_line", "gathered",
        "slotted", "read_from_peers" and "shared" (docs/architecture.md has them); "native" on that
        path.
    op, dtype : str
        The operation ("other" for one without a name here) and the caller's type.
    count, nbytes : int
        Elements and bytes of the vector; -1, and `dtype` "unknown", where the MPI library ran the
        call on a buffer that hpccoll does not understand.
    size : int
        Number of ranks.
    steps : int
        Steps of this rank's schedule; on the hierarchical path of those between nodes, on the node
        path 0.
    messages_sent, messages_received : int
        MPI messages, after cutting into segments; counted while they ran.
    bytes_sent, bytes_received, bytes_reduced : int
        By messages: counted while they ran, and as `hpccoll.simulate` predicts them. What goes
        through the memory of a node is not counted.
    scratch_bytes : int
        Memory for received segments and for wider partial values; without the copies of small
        vectors, of arrays that had to be packed, and memory that the node shares.
    segment_bytes : int
        Upper limit of a message, or of what is copied at once on the node path.
    kernel : str
        The loops that reduced: a CPU target, "numpy", or "native".
    in_place : bool
        Whether input and output were the same memory.
    """

    collective: str
    path: str
    algorithm: str
    op: str
    dtype: str
    count: int  # type: ignore[assignment]
    nbytes: int
    size: int
    steps: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_reduced: int = 0
    scratch_bytes: int = 0
    segment_bytes: int = 0
    kernel: str = "native"
    in_place: bool = False


def call_of(plan: Plan) -> Call:
    """Return what the last run of a plan did."""
    info: PlanInfo = plan.info
    task = info.task
    reduction = task.reduction
    if isinstance(plan, NodePlan):
        path, algorithm, segment_bytes = "node", plan.design, plan.segment_bytes
    else:
        through_nodes = isinstance(plan, MessagePlan) and plan.hierarchical
        path = "hierarchical" if through_nodes else "point-to-point"
        algorithm = task.algorithm.name if task.algorithm else ""
        segment_bytes = task.segment_count * reduction.partial_dtype.itemsize
    return Call(
        collective="allreduce",
        path=path,
        algorithm=algorithm,
        op=task.operation,
        dtype=reduction.dtype.name,
        count=task.count,
        nbytes=task.nbytes,
        size=info.size,
        steps=info.steps,
        messages_sent=plan.messages_sent,
        messages_received=plan.messages_received,
        bytes_sent=plan.bytes_sent,
        bytes_received=plan.bytes_received,
        bytes_reduced=plan.bytes_reduced,
        scratch_bytes=info.scratch_bytes,
        segment_bytes=segment_bytes,
        kernel=reduction.kernel,
        in_place=plan.in_place,
    )

"""`Call`: what one call did; `Caller`: the call that a user made, while it runs."""

from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll import buffers
from hpccoll._executor import MessagePlan
from hpccoll._node import NodePlan
from hpccoll._plans import Plan
from hpccoll.channel import OPERATION_OBJECTS
from hpccoll.plan_info import PlanInfo


class Call(NamedTuple):
    """What the last call on a communicator did, on this rank.

    Attributes
    ----------
    collective : str
        "allreduce", "reduce_scatter", "allgather", "reduce", "broadcast" or "barrier".
    path : str
        "node" where all went through memory that the ranks of one node share, "point-to-point"
        where messages were sent, "hierarchical" where both, memory inside nodes and messages
        between them, or "native" where the MPI library ran the call. Of arrays in GPU memory also
        "host" where the host combined them, "mapped" where ranks of a node reached each other's,
        and "nccl".
    algorithm : str
        What ran. On the node path, how it moved the data: one of "in_line", "gathered",
        "slotted", "read_from_peers" and "shared" (docs/architecture.md has them); on the mapped
        path "one_shot" or "direct"; "native" and "nccl" on the paths of these names.
    op, dtype : str
        The operation ("other" for one without a name here, "none" where elements only move) and
        the caller's type.
    count, nbytes : int
        Elements and bytes of the whole vector, of which this rank may have a chunk; -1, and `dtype`
        "unknown", where the MPI library ran the call on a buffer that hpccoll does not understand.
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
        The loops that reduced: a CPU target, "numpy", "none" where nothing was, or "native".
    in_place : bool
        Whether input and output were the same memory.
    memory : str
        Where the vectors were: "host", or a device ("cuda:0") and how what is on it travelled:
        "direct" where messages had device pointers, "staged" where all went through pinned host
        memory, "mapped" where ranks reached each other's memory ("mapped, staged" where they did so
        inside nodes, and messages went between them), "nccl" where NCCL had it.
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
    memory: str = "host"


def call_of(plan: "Plan | Call") -> Call:
    """Return what the last run of a plan did; a call in its place is returned as it is."""
    if isinstance(plan, Call):
        return plan
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
        collective=task.pattern.collective,
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
        memory=task.memory,
    )


def native_call(name: str, arguments: tuple[Any, ...], size: int) -> Call:
    """Return what is known of a call that the MPI library ran, by mpi4py's name of it."""
    collective = NATIVE_NAMES[name]
    op = next((part for part in arguments if isinstance(part, MPI.Op)), None)
    predefined = [known for object_, known in OPERATION_OBJECTS if object_ is op]
    # The whole vector is in the larger one, where the other one is for a chunk.
    arrays = [array for part in arguments[:2] if (array := _understood(part)) is not None]
    array = max(arrays, key=lambda array: array.size, default=None)
    return Call(
        collective=collective,
        path="native",
        algorithm="native",
        op="none" if op is None else predefined[0] if predefined else "other",
        dtype="unknown" if array is None else str(array.dtype),
        count=-1 if array is None else array.size,
        nbytes=-1 if array is None else array.nbytes,
        size=size,
    )


def _understood(part: object) -> buffers.Array | None:
    try:
        return buffers.of_spec(part)
    except (TypeError, ValueError, BufferError):
        return None


NATIVE_NAMES = {
    "Allreduce": "allreduce",
    "Reduce": "reduce",
    "Reduce_scatter_block": "reduce_scatter",
    "Reduce_scatter": "reduce_scatter",
    "Allgather": "allgather",
    "Allgatherv": "allgather",
    "Bcast": "broadcast",
    "Barrier": "barrier",
}
"""By mpi4py's name of a collective, ours."""


OURS = (TypeError, ValueError, BufferError, TimeoutError, RuntimeError, ImportError)
"""What hpccoll raises."""


class Caller:
    """Adds the call and the rank to the text of an error, and notes what ran.

    Parameters
    ----------
    name : str
        The call that the user made.
    comm : mpi4py.MPI.Comm
        Its communicator.
    """

    def __init__(self, name: str, comm: object) -> None:
        self.name = name
        self.comm = comm
        self.ran: Plan | Call | None = None

    def __enter__(self) -> "Caller":
        """Begin the call."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Note what ran, or complete the text of the error."""
        if error is None:
            if self.ran is not None and hasattr(self.comm, "note_call"):
                self.comm.note_call(self.ran)
        elif isinstance(error, OURS) and not isinstance(error, MPI.Exception) and error.args:
            text = str(error.args[0])
            door, _, rest = text.partition(": ")
            if door.lower() == self.name.lower():  # of a plan that the other door made
                text = f"{self.name}: {rest}"
                _retell(error, text)
            if not text.startswith(self.name):
                where = ""
                if isinstance(self.comm, MPI.Comm) and self.comm != MPI.COMM_NULL:
                    where = f" (rank {self.comm.rank} of {self.comm.size})"
                _retell(error, f"{self.name}: {text}{where}")


def _retell(error: BaseException, text: str) -> None:
    """Give an error another text; what else it has stays."""
    error.args = (text, *error.args[1:])
    if isinstance(error, ImportError):
        error.msg = text

"""`Task`: one collective, as far as a plan depends on it; equal on all ranks."""

import zlib
from dataclasses import dataclass

from hpccoll import ops
from hpccoll import transport as transports
from hpccoll.algorithms import Algorithm
from hpccoll.algorithms.collective import COLLECTIVES
from hpccoll.pattern import ALLREDUCE, NO_OPERATION, Pattern
from hpccoll.reduction import Reduction
from hpccoll.topology import Topology
from hpccoll.transport import KIND_BITS

SEGMENT_BYTES = 512 << 10
"""Default segment: a part of a second-level cache of today, and so large that the fixed cost of a
message does not count (bench/segments.py measures it). The same for any count: what another rank
sends always fits in scratch memory."""

STAGE_BYTES = 4096
"""Vectors up to this size are copied to and from memory of the plan's own, so that one plan serves
all arrays; the copy costs less than finding or making a plan for each address."""

LONGEST_COUNTS = 80
"""Characters of uneven counts in the text of a call."""

COLLECTIVE_NAMES = tuple(COLLECTIVES)
OPERATION_NAMES = (NO_OPERATION, *ops.OPERATIONS)
TYPE_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble", "float128", "float96"),
    *("complex64", "complex128", "clongdouble", "complex256", "complex192"),
)
OPERATIONS, TYPES = 16, 32
"""More than there are names; `Task.kind` counts by them."""


@dataclass(frozen=True, slots=True)
class Task:
    """One collective, as far as a plan depends on it. Equal on all ranks, addresses apart.

    Attributes
    ----------
    call : str
        For messages: the call that the user made.
    algorithm : Algorithm or None
        Whose schedule runs; None for the node path.
    operation : str
        Name of the operation; `NO_OPERATION` where elements only move.
    reduction : Reduction
        Its loops on the caller's type.
    count : int
        Elements of the whole vector.
    segment_bytes : int or None
        Upper limit of a message; None for the default.
    topology : Topology or None
        Which ranks share a node; None for all.
    pattern : Pattern
        Which collective, and of which rank which elements.
    is_comparison : bool
        It is no call of the user's, but compares what ranks call.
    memory : str
        Whose the vector is: "host", or a device's and how messages reach it.
    """

    call: str
    algorithm: Algorithm | None
    operation: str
    reduction: Reduction
    count: int
    segment_bytes: int | None
    topology: Topology | None = None
    pattern: Pattern = ALLREDUCE
    is_comparison: bool = False
    memory: str = "host"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector."""
        return self.count * self.reduction.dtype.itemsize

    @property
    def text(self) -> str:
        """What it is, for messages: "sum of 5 elements of float32"."""
        collective, root = self.pattern.collective, self.pattern.root
        what = self.operation if collective == "allreduce" else collective
        if self.operation != NO_OPERATION and collective != "allreduce":
            what = f"{collective} by {self.operation}"
        if collective in ("reduce", "broadcast"):
            what = f"{what} {'to' if collective == 'reduce' else 'from'} rank {root}"
        return f"{what} of {self.count} elements of {self.reduction.dtype}"

    def full_text(self, algorithm: str) -> str:
        """Return all that must be equal on all ranks, where that name of an algorithm was given."""
        pattern = self.pattern
        operation = "" if self.operation == NO_OPERATION else f", op {self.operation}"
        root = f", root {pattern.root}" if COLLECTIVES[pattern.collective].rooted else ""
        counts = "" if pattern.counts is None else f", counts {list(pattern.counts)}"
        if len(counts) > LONGEST_COUNTS:
            counts = f"{counts[:LONGEST_COUNTS]}... ({zlib.crc32(counts.encode()):x})"
        return (
            f"{pattern.collective} of {self.count} elements of {self.reduction.dtype}{operation}"
            f"{root}{counts}, algorithm {algorithm}, segment_bytes {self.segment_bytes}"
        )

    def kind(self, *, partial: bool = False) -> int:
        """Return a number of `KIND_BITS` that no other collective, operation or type has."""
        collective = COLLECTIVE_NAMES.index(self.pattern.collective)
        operation = OPERATION_NAMES.index(self.operation)
        name = self.reduction.dtype.name
        if name in TYPE_NAMES:
            dtype = TYPE_NAMES.index(name)
        else:  # of those that can only be moved
            dtype = len(TYPE_NAMES) + zlib.crc32(name.encode()) % (TYPES - len(TYPE_NAMES))
        return ((collective * OPERATIONS + operation) * TYPES + dtype) * 2 + partial

    @property
    def salt(self) -> int:
        """What else must be equal on all ranks: root and uneven counts, as a number."""
        text = f"{self.pattern.root} {self.pattern.counts} {self.is_comparison}"
        return zlib.crc32(text.encode())

    @property
    def node_kind(self) -> int:
        """What ranks of a node compare beside the number of bytes: a number of 20 bits."""
        return self.salt % (1 << (20 - KIND_BITS)) << KIND_BITS | self.kind()

    @property
    def is_copied(self) -> bool:
        """Whether the plan copies the vector to memory of its own."""
        return self.nbytes <= STAGE_BYTES

    @property
    def segment_count(self) -> int:
        """Return the most elements of one message."""
        wanted = SEGMENT_BYTES if self.segment_bytes is None else self.segment_bytes
        limit = min(wanted, transports.MESSAGE_LIMIT)
        return max(1, limit // self.reduction.partial_dtype.itemsize)

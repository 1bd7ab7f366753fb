"""A program: data, equal on all ranks. Its text is Python that makes it again.

Every step means something whatever stands before it: one that names a communicator or a call that
is not there uses the first communicator, or does nothing. So steps can be left out one by one.
"""

from dataclasses import dataclass, fields
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Environment:
    """What holds for all programs of an epoch: settings, and communicators that last.

    Attributes
    ----------
    nodes, node, wait, algorithm : str
        ``HPCCOLL_NODES``, ``HPCCOLL_NODE``, ``HPCCOLL_WAIT`` and ``HPCCOLL_ALGORITHM``; empty: not
        set.
    kernel : str
        Which loops run; empty: the best ones.
    parts : tuple of tuple of int
        Colors by rank of communicators 1, 2, ..., which are parts of communicator 0, and are made
        when they are first used.
    """

    nodes: str = ""
    node: str = ""
    wait: str = ""
    algorithm: str = ""
    kernel: str = ""
    parts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Split:
    """Make communicator `number` out of `comm`: rank r there has ``colors[r]``, -1 for none.

    Ranks are turned round by `turn`.
    """

    number: int
    comm: int = 0
    colors: tuple[int, ...] = (0,)
    turn: int = 0


@dataclass(frozen=True)
class Free:
    """Free a communicator that a `Split` made; calls on it may be under way."""

    comm: int


@dataclass(frozen=True)
class Call:
    """One collective.

    Attributes
    ----------
    collective : str
        "allreduce", "reduce", "reduce_scatter", "allgather", "broadcast" or "barrier".
    number : int
        By which other steps name the call, where it is begun or prepared.
    comm : int
        The communicator.
    door : str
        "function" or "method".
    form : str
        "blocking", "begun" (`Wait` ends it), or "prepared" (`Start` starts it, by methods only).
    dtype, op : str
        Type and operation.
    rows : tuple of int
        Length of the first dimension. Where each rank has a part of it: rank r has
        ``rows[r % len(rows)]``. Empty for an array of no dimensions.
    rest : tuple of int
        The other dimensions.
    root : int
        The root, modulo the number of ranks.
    where : str
        "new" (by functions: the result is a new array), "apart", "in place", or "overlap".
    shift : int
        Elements from the input to the output, where they overlap.
    source, target : str
        Layouts; ``tests/layouts.py`` has them. By functions also "scalar" and "python scalar".
    turn : int
        Rank r has the layouts that come `turn` times r later in the list.
    shared : str
        Which ranks have their arrays in memory that the node shares: "none", "all" or "some".
    readonly : bool
        Whether the input is read-only.
    form_of_buffer : str
        By methods: which of mpi4py's forms.
    counts : bool
        Whether the parts of the ranks are told to the call, where they need not be.
    vector : bool
        By methods: whether it is ``Reduce_scatter`` or ``Allgatherv``, whose parts may differ.
    displaced : bool
        Of ``Allgatherv``: whether parts stand in reverse order, with gaps.
    mpi_op : bool
        Whether the operation is mpi4py's object, if there is one.
    rounded : bool
        Whether numbers are such that sums are rounded: then the bits are compared across ranks.
    algorithm, segment_bytes
        As hpccoll has them.
    times : int
        How often it is called with the same arrays.
    seed : int
        Of the data.
    """

    collective: str
    number: int = 0
    comm: int = 0
    door: str = "function"
    form: str = "blocking"
    dtype: str = "int32"
    op: str = "sum"
    rows: tuple[int, ...] = (2,)
    rest: Shape = ()
    root: int = 0
    where: str = "apart"
    shift: int = 0
    source: str = "C order"
    target: str = "C order"
    turn: int = 0
    shared: str = "none"
    readonly: bool = False
    form_of_buffer: str = "array"
    counts: bool = True
    vector: bool = False
    displaced: bool = False
    mpi_op: bool = False
    rounded: bool = False
    algorithm: str = "auto"
    segment_bytes: int | None = None
    times: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Wait:
    """Wait for calls by number; rank r begins `turn` times r later in the list.

    `how` is "each" (``wait`` or ``Wait``), "test" (test until they are complete), "look" (test
    once, and leave them), or "all" (``MPI.Request.Waitall`` for those that are MPI's).
    """

    numbers: tuple[int, ...]
    how: str = "each"
    turn: int = 0


@dataclass(frozen=True)
class Start:
    """Start a prepared call, unless it is under way."""

    number: int


@dataclass(frozen=True)
class Forget:
    """Free a prepared call, which is waited for before."""

    number: int


@dataclass(frozen=True)
class Many:
    """All-reduce several arrays, by `hpccoll.allreduce_many` or, in steps, by a `Bucketer`.

    Attributes
    ----------
    items : tuple of (str, tuple of int, str)
        Type, shape and layout of each.
    bucketer : bool
        Whether it is a `Bucketer`, which works in place; rank r declares its arrays ready in an
        order of its own.
    where : str
        "new", "apart" or "in place".
    """

    items: tuple[tuple[str, Shape, str], ...]
    comm: int = 0
    bucketer: bool = False
    op: str = "sum"
    where: str = "new"
    shared: str = "none"
    bucket_bytes: int = 25_000_000
    algorithm: str = "auto"
    segment_bytes: int | None = None
    times: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Refused:
    """A call with an argument that must be refused, on all ranks, before anything is sent."""

    what: str
    comm: int = 0


@dataclass(frozen=True)
class Ring:
    """Messages and a collective of the MPI library's own, on the user's communicator."""

    comm: int = 0
    count: int = 1


@dataclass(frozen=True)
class End:
    """The end of a program, where several run one after the other: all is completed and freed."""


Step = Split | Free | Call | Wait | Start | Forget | Many | Refused | Ring | End


@dataclass(frozen=True)
class Program:
    """What all ranks do."""

    size: int
    environment: Environment
    steps: tuple[Step, ...]

    def text(self) -> str:
        """Return a Python script that runs the program."""
        steps = "".join(f"        {short(step)},\n" for step in self.steps)
        return (
            f"# PYTHONPATH=tests mpiexec -n {self.size} python THIS\n"
            "from fuzz.ranks import replay\n"
            "from fuzz.steps import *\n\n"
            f"replay(Program({self.size},\n    {short(self.environment)},\n"
            f"    (\n{steps}    ),\n))\n"
        )


def short(value: Any) -> str:
    """Return the text of a step, without what is as by default."""
    given = [
        f"{field.name}={found!r}"
        for field in fields(value)
        if (found := getattr(value, field.name)) != field.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"

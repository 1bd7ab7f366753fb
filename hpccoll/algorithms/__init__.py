"""The registry: every algorithm, what it is for, and what it costs.

One entry per algorithm drives argument checks, error texts, the prover, the simulator, the
benchmark and the README's table. Entries hold formulas, and the prover checks the schedules
against them.

In formulas p is the number of ranks, n the vector (elements in `Algorithm.sent` and the like,
bytes in cost formulas), alpha the seconds per message, beta the seconds per byte sent, gamma the
seconds per byte reduced; `LEGEND` explains the others.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpccoll.algorithms import circulant, naive_root, rabenseifner, recursive_doubling, ring
from hpccoll.schedule import Fold, Schedule

AUTO = "auto"
"""The name that leaves the choice to hpccoll; it is in no registry."""

LEGEND = (
    "p ranks, a vector of n bytes; m = floor(log2 p), p' = 2^m, L = ceil(log2 p), "
    "F = 1 where p is no power of two, else 0"
)
"""The letters in formulas."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the registry.

    Attributes
    ----------
    name : str
        What users call it.
    schedule : callable
        ``schedule(rank, size, count) -> Schedule``, pure.
    purpose : str
        What it is for, in one line.
    restrictions : str
        ``"none"``, or what it refuses.
    ordered : bool
        Whether operands keep rank order, so that operations that do not commute come out right.
    one_tree : bool
        Whether all elements are worked out by the same expression, so that an element's bits do
        not depend on where in the vector it lies.
    cost : str
        Predicted time.
    steps_formula, sent_formula, scratch_formula : str
        Steps of the rank that has most; bytes that a rank sends; scratch of an unsegmented run at
        the rank that needs most.
    steps : callable
        ``steps(size)``: steps of the rank that has most, where no chunk is empty.
    sent, reduced : callable
        ``sent(size, count)`` and ``reduced(size, count)``: elements sent, and elements reduced, by
        all ranks together. Exact for any count.
    scratch : callable
        ``scratch(size, count)``: elements of scratch in an unsegmented run, at the rank that needs
        most.
    source : str
        Where it was published.
    """

    name: str
    schedule: Callable[[int, int, int], Schedule]
    purpose: str
    restrictions: str
    ordered: bool
    one_tree: bool
    cost: str
    steps_formula: str
    sent_formula: str
    scratch_formula: str
    steps: Callable[[int], int]
    sent: Callable[[int, int], int]
    reduced: Callable[[int, int], int]
    scratch: Callable[[int, int], int]
    source: str


COMMUTATIVE_ONLY = "commutative operations only"


def _optimal_sent(size: int, count: int) -> int:
    """Each element travels p - 1 times to be reduced and p - 1 times to be copied."""
    return 2 * (size - 1) * count


def _optimal_reduced(size: int, count: int) -> int:
    """Each element is reduced p - 1 times: no sum is worked out twice."""
    return (size - 1) * count


def _chunk_sum(size: int, count: int, chunks: int) -> int:
    """Elements in the first `chunks` of `size` chunks; no other `chunks` in a row hold more."""
    base, longer = divmod(count, size)
    return chunks * base + min(chunks, longer)


def _folded_steps(size: int, phases: int) -> int:
    fold = Fold(size)
    return phases * fold.levels + (2 if fold.extras else 0)


def _doubling_sent(size: int, count: int) -> int:
    fold = Fold(size)
    return (fold.power * fold.levels + 2 * fold.extras) * count


def _doubling_reduced(size: int, count: int) -> int:
    fold = Fold(size)
    return (fold.power * fold.levels + fold.extras) * count


def _halving_scratch(size: int, count: int) -> int:
    if size == 1:
        return 0
    return count if Fold(size).extras else count - count // 2


def _for_any_count(
    schedule: Callable[[int, int, int], Schedule],
) -> Callable[[int, int, int], Schedule]:
    """Let a schedule for fewer elements than ranks be a part of that for one element per rank.

    So which message goes where does not depend on the count, and where ranks pass different counts,
    each message meets one that it can be compared with.
    """

    @functools.wraps(schedule)
    def for_any_count(rank: int, size: int, count: int) -> Schedule:
        if count >= size:
            return schedule(rank, size, count)
        return schedule(rank, size, size).first(count)

    return for_any_count


_ENTRIES = (
    Algorithm(
        name="naive_root",
        schedule=_for_any_count(naive_root.schedule),
        purpose="comparison: what the others avoid",
        restrictions="none",
        ordered=True,
        one_tree=True,
        cost="2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma",
        steps_formula="2(p-1)",
        sent_formula="(p-1) n at the root, n elsewhere",
        scratch_formula="n",
        steps=lambda size: 2 * (size - 1),
        sent=_optimal_sent,
        reduced=_optimal_reduced,
        scratch=lambda size, count: count if size > 1 else 0,
        source="Pjesivac-Grbovic et al. 2007, doi:10.1007/s10586-007-0012-0",
    ),
    Algorithm(
        name="ring",
        schedule=_for_any_count(ring.schedule),
        purpose="large vectors: neighbours only, least scratch",
        restrictions=COMMUTATIVE_ONLY,
        ordered=False,
        one_tree=False,
        cost="2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma",
        steps_formula="2(p-1)",
        sent_formula="2(p-1)/p n",
        scratch_formula="n/p",
        steps=lambda size: 2 * (size - 1),
        sent=_optimal_sent,
        reduced=_optimal_reduced,
        scratch=lambda size, count: _chunk_sum(size, count, 1) if size > 1 else 0,
        source="Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002",
    ),
    Algorithm(
        name="recursive_doubling",
        schedule=_for_any_count(recursive_doubling.schedule),
        purpose="small vectors: fewest steps",
        restrictions="none",
        ordered=True,
        one_tree=True,
        cost="(m + 2F) alpha + (m + 2F) n beta + (m + F) n gamma",
        steps_formula="m + 2F",
        sent_formula="m n, and F n at a proxy",
        scratch_formula="n",
        steps=lambda size: _folded_steps(size, 1),
        sent=_doubling_sent,
        reduced=_doubling_reduced,
        scratch=lambda size, count: count if size > 1 else 0,
        source="Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521",
    ),
    Algorithm(
        name="rabenseifner",
        schedule=_for_any_count(rabenseifner.schedule),
        purpose="large vectors in rank order; best where p is a power of two",
        restrictions="none",
        ordered=True,
        one_tree=True,
        cost="(2m + 2F) alpha + (2(p'-1)/p' + 2F) n beta + ((p'-1)/p' + F) n gamma",
        steps_formula="2m + 2F",
        sent_formula="2(p'-1)/p' n, and F n at a proxy",
        scratch_formula="n/2, or n if F",
        steps=lambda size: _folded_steps(size, 2),
        sent=_optimal_sent,
        reduced=_optimal_reduced,
        scratch=_halving_scratch,
        source="Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1",
    ),
    Algorithm(
        name="circulant",
        schedule=_for_any_count(circulant.schedule),
        purpose="large vectors on any number of ranks: few steps and least bytes",
        restrictions=COMMUTATIVE_ONLY,
        ordered=False,
        one_tree=False,
        cost="2L alpha + 2(p-1)/p n beta + (p-1)/p n gamma",
        steps_formula="2L",
        sent_formula="2(p-1)/p n",
        scratch_formula="up to n/2",
        steps=lambda size: 2 * (size - 1).bit_length(),
        sent=_optimal_sent,
        reduced=_optimal_reduced,
        scratch=lambda size, count: _chunk_sum(size, count, size // 2),
        source="Traeff 2024, arXiv:2410.14234",
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""All algorithms by name, in teaching order."""


def algorithms(collective: str = "allreduce") -> tuple[Algorithm, ...]:
    """Return the algorithms of a collective, in teaching order.

    Examples
    --------
    >>> [algorithm.name for algorithm in algorithms()]
    ['naive_root', 'ring', 'recursive_doubling', 'rabenseifner', 'circulant']
    """
    if collective != "allreduce":
        raise ValueError(f"no algorithms for collective {collective!r}; choose from allreduce")
    return tuple(ALGORITHMS.values())


def find(name: str, *, auto: bool = True) -> Algorithm:
    """Return the algorithm of that name.

    Parameters
    ----------
    name : str
        A name of the registry. ``"auto"`` is none: the caller chooses before it asks.
    auto : bool
        Whether the caller also takes ``"auto"``, so that it belongs among the choices.

    Raises
    ------
    ValueError
        If there is none. The text names what came and all choices.
    """
    names = list(ALGORITHMS)
    choices = ", ".join([AUTO, *names] if auto and name != AUTO else names)
    algorithm = ALGORITHMS.get(name) if isinstance(name, str) else None
    if algorithm is None:
        raise ValueError(f"unknown algorithm {name!r}; choose from {choices}")
    return algorithm


COLUMNS = ("name", "what it is for", "steps", "bytes sent per rank", "scratch", "operand order")
"""What `table_rows` tells of each algorithm."""


def table_rows() -> list[tuple[str, ...]]:
    """Return a row of `COLUMNS` per algorithm."""
    return [
        (
            entry.name,
            entry.purpose,
            entry.steps_formula,
            entry.sent_formula,
            entry.scratch_formula,
            "rank order" if entry.ordered else "reordered",
        )
        for entry in _ENTRIES
    ]


def table() -> str:
    """Return the algorithms as a Markdown table, with the legend of its formulas below."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [(f"`{name}`", *rest) for name, *rest in table_rows()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", LEGEND + ".", ""])

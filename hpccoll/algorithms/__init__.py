"""The registry: every algorithm, what it is for, and what it costs.

One entry per algorithm drives argument checks, error texts, the prover, the simulator, the
benchmark and the README's table. Entries hold formulas, and the prover checks the schedules
against them.

In formulas p is the number of ranks, n the vector (elements in `Algorithm.sent` and the like,
bytes in cost formulas), alpha the seconds per message, beta the seconds per byte sent, gamma the
seconds per byte reduced; `legend` explains the others.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hpccoll.algorithms.collective import COLLECTIVES, Collective, Share
from hpccoll.algorithms.entry import COMMUTATIVE_ONLY, Algorithm
from hpccoll.algorithms.family import FAMILY
from hpccoll.algorithms.flat import FLAT
from hpccoll.algorithms.hierarchical import HIERARCHICAL, with_network
from hpccoll.algorithms.nodes import NODES

__all__ = [
    "ALGORITHMS",
    "AUTO",
    "COLLECTIVES",
    "COLUMNS",
    "COMMUTATIVE_ONLY",
    "LEGEND",
    "REGISTRY",
    "Algorithm",
    "Collective",
    "Share",
    "algorithms",
    "find",
    "legend",
    "table",
    "table_rows",
]

AUTO = "auto"
"""The name that leaves the choice to hpccoll; it is in no registry."""

LEGEND = (
    "p ranks, a vector of n bytes; m = floor(log2 p), p' = 2^m, L = ceil(log2 p), "
    "F = 1 where p is no power of two, else 0; in the last two rows N nodes of g ranks, "
    "h = floor(log2 g), g' = 2^h, E = 1 where g is no power of two, else 0, K = ceil(log2 N)"
)
"""The letters in the formulas of all-reduce."""

_LEGEND_OF_OTHERS = (
    "p ranks, a vector of n bytes; L = ceil(log2 p); in the last row N nodes of g ranks, "
    "G = ceil(log2 g), K = ceil(log2 N)"
)

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({**FLAT, **HIERARCHICAL})
"""All algorithms for all-reduce by name, in teaching order."""

REGISTRY: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {"allreduce": ALGORITHMS}
    | {name: MappingProxyType({**flat, **NODES[name]}) for name, flat in FAMILY.items()}
)
"""All algorithms by collective and name, in teaching order."""


def legend(collective: str = "allreduce") -> str:
    """Return the letters in the formulas of a collective's algorithms."""
    return LEGEND if collective == "allreduce" else _LEGEND_OF_OTHERS


def algorithms(collective: str = "allreduce") -> tuple[Algorithm, ...]:
    """Return the algorithms of a collective, in teaching order.

    Raises
    ------
    ValueError
        If there is no such collective. The text names all.

    Examples
    --------
    >>> [algorithm.name for algorithm in algorithms()]
    ['naive_root', 'ring', 'recursive_doubling', 'rabenseifner', 'circulant', 'two_level',
     'multi_leader']
    """
    return tuple(_of(collective).values())


def _of(collective: str) -> Mapping[str, Algorithm]:
    known = REGISTRY.get(collective) if isinstance(collective, str) else None
    if known is None:
        raise ValueError(
            f"no algorithms for collective {collective!r}; choose from {', '.join(REGISTRY)}"
        )
    return known


def find(name: str, collective: str = "allreduce", *, auto: bool = True) -> Algorithm:
    """Return the algorithm of that name.

    Parameters
    ----------
    name : str
        A name of the registry, or that of a hierarchical algorithm, a colon, and that of the flat
        one to run between nodes: ``"multi_leader:ring"``. ``"auto"`` is none: the caller chooses
        before it asks.
    collective : str
        What it is to do.
    auto : bool
        Whether the caller also takes ``"auto"``, so that it belongs among the choices.

    Raises
    ------
    ValueError
        If there is none. The text names what came and all choices.
    """
    known = _of(collective)
    first, colon, network = name.partition(":") if isinstance(name, str) else ("", "", "")
    algorithm = known.get(first)
    if algorithm is None:
        with_auto = auto and name != AUTO
        raise _unknown("algorithm", name, [AUTO, *known] if with_auto else known)
    if not colon:
        return algorithm
    if not algorithm.hierarchical:
        others = [entry.name for entry in known.values() if entry.hierarchical]
        raise ValueError(
            f"algorithm {name!r}: {first} is flat and runs nothing between nodes; "
            f"those that do are {', '.join(others)}"
        )
    flat = {entry.name: entry for entry in known.values() if not entry.hierarchical}
    if network not in flat:
        raise _unknown(f"algorithm {name!r}: network algorithm", network, flat)
    return with_network(algorithm, flat[network])


def _unknown(what: str, name: object, choices: Iterable[str]) -> ValueError:
    return ValueError(f"unknown {what} {name!r}; choose from {', '.join(choices)}")


COLUMNS = ("name", "what it is for", "steps", "bytes sent per rank", "scratch", "operand order")
"""What `table_rows` tells of each algorithm."""


def table_rows(collective: str = "allreduce") -> list[tuple[str, ...]]:
    """Return a row of `COLUMNS` per algorithm of a collective."""
    entries = algorithms(collective)
    reduces = COLLECTIVES[collective].reduces
    return [
        (
            entry.name,
            entry.purpose,
            entry.steps_formula,
            entry.sent_formula,
            entry.scratch_formula,
            ("rank order" if entry.ordered else "reordered") if reduces else "-",
        )
        for entry in entries
    ]


def table(collective: str = "allreduce") -> str:
    """Return the algorithms of a collective as a Markdown table, with the legend below."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [(f"`{name}`", *rest) for name, *rest in table_rows(collective)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", legend(collective) + ".", ""])

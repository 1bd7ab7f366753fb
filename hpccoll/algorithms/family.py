"""The flat algorithms of the other collectives, with their formulas."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hpccoll.algorithms import (
    binomial,
    circulant,
    dissemination,
    naive_root,
    reduce_scatter_gather,
    ring,
    scatter_allgather,
)
from hpccoll.algorithms.collective import COLLECTIVES
from hpccoll.algorithms.entry import COMMUTATIVE_ONLY, Algorithm, for_any_count
from hpccoll.chunks import cut
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology

Counts = tuple[int, ...] | None


def levels(size: int) -> int:
    """Return ceil(log2 p): how often a number of ranks must double to reach `size`."""
    return (size - 1).bit_length()


def once(size: int, count: int, **_: object) -> int:
    """Each element travels p - 1 times, or is reduced p - 1 times."""
    return (size - 1) * count


def nothing(size: int, count: int, **_: object) -> int:
    """Nothing is sent, or reduced, or put into scratch."""
    return 0


def whole(size: int, count: int, **_: object) -> int:
    """One vector, where there is more than one rank."""
    return count if size > 1 else 0


def tree_sent(elements: list[int]) -> int:
    """Elements that a binomial gather or scatter sends, if place v has ``elements[v]``.

    What belongs to place v takes one hop for each bit that is set in v.
    """
    return sum(place.bit_count() * count for place, count in enumerate(elements))


def sent_through_tree(size: int, count: int, root: int = 0, least: int = 0) -> int:
    """Each element travels p - 1 times in a phase of circulant, and then through the tree.

    Chunks are those of a vector of at least `least` elements, of which there are `count`.
    """
    sizes = [max(0, min(chunk.stop, count) - chunk.start) for chunk in cut(max(count, least), size)]
    return once(size, count) + tree_sent([sizes[rank] for rank in binomial.from_root(size, root)])


def sent_by_scatter_allgather(size: int, count: int, root: int = 0, least: int = 0) -> int:
    """Return the same, without what the root has already: all chunks but its own."""
    own = cut(max(count, least), size)[root]
    return sent_through_tree(size, count, root, least) - (
        count - max(0, min(own.stop, count) - own.start)
    )


def _longest_run(size: int, count: int, run: int, counts: Counts) -> int:
    """Elements in the `run` chunks in a row, around the end too, that have most."""
    sizes = [chunk.count for chunk in cut(count, size, counts)]
    most = total = sum(sizes[:run])
    for place in range(size):
        total += sizes[(place + run) % size] - sizes[place]
        most = max(most, total)
    return most


def _ring_scratch(size: int, count: int, counts: Counts = None) -> int:
    return _longest_run(size, count, 1, counts) if size > 1 else 0


def _circulant_scratch(size: int, count: int, counts: Counts = None, **_: object) -> int:
    return _longest_run(size, count, size // 2, counts)


def _place(
    schedule: Callable[..., Schedule],
    sent: Callable[..., int],
    scratch: Callable[..., int],
    algorithm: Algorithm,
    topology: Topology | None,
    root: int,
    counts: Counts,
) -> Algorithm:
    """Return a flat algorithm with the schedule and the formulas for a root or for chunk sizes."""
    given: dict[str, object] = {"root": root} if COLLECTIVES[algorithm.collective].rooted else {}
    if counts is not None:
        given["counts"] = counts
    bound = functools.partial(schedule, **given)
    return replace(
        algorithm,
        root=root,
        counts=counts,
        # Chunks of given sizes are what they are, however few elements there may be.
        schedule=bound if counts is not None else for_any_count(bound),
        sent=functools.partial(sent, **given),
        scratch=functools.partial(scratch, **given),
    )


def _entry(
    collective: str,
    name: str,
    schedule: Callable[..., Schedule],
    *,
    purpose: str,
    cost: str,
    steps_formula: str,
    sent_formula: str,
    scratch_formula: str,
    steps: Callable[[int], int],
    source: str,
    ordered: bool = True,
    one_tree: bool = True,
    sent: Callable[..., int] = once,
    reduced: Callable[..., int] = once,
    scratch: Callable[..., int] = nothing,
) -> Algorithm:
    """Return an entry. `schedule` and the formulas also take ``root=``, or ``counts=``."""
    kind = COLLECTIVES[collective]
    placed = functools.partial(_place, schedule, sent, scratch)
    return Algorithm(
        name=name,
        collective=collective,
        schedule=for_any_count(schedule),
        purpose=purpose,
        restrictions="none" if ordered else COMMUTATIVE_ONLY,
        ordered=ordered,
        one_tree=one_tree,
        cost=cost,
        steps_formula=steps_formula,
        sent_formula=sent_formula,
        scratch_formula=scratch_formula,
        steps=steps,
        sent=sent,
        reduced=reduced if kind.reduces else nothing,
        scratch=scratch,
        source=source,
        place=placed if kind.rooted or kind.split else None,
    )


_RING = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
_CIRCULANT = "Traeff 2024, arXiv:2410.14234"
_ROOT = "Pjesivac-Grbovic et al. 2007, doi:10.1007/s10586-007-0012-0"
_MPICH = "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521"

_ENTRIES = (
    _entry(
        "reduce_scatter",
        "ring",
        ring.reduce_scatter,
        purpose="large vectors: neighbours only, least scratch",
        ordered=False,
        one_tree=False,
        cost="(p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma",
        steps_formula="p-1",
        sent_formula="(p-1)/p n",
        scratch_formula="n/p",
        steps=lambda size: size - 1,
        scratch=_ring_scratch,
        source=_RING,
    ),
    _entry(
        "reduce_scatter",
        "circulant",
        circulant.reduce_scatter,
        purpose="any vector: fewest steps and least bytes",
        ordered=False,
        one_tree=False,
        cost="L alpha + (p-1)/p n beta + (p-1)/p n gamma",
        steps_formula="L",
        sent_formula="(p-1)/p n",
        scratch_formula="up to n/2",
        steps=levels,
        scratch=_circulant_scratch,
        source=_CIRCULANT,
    ),
    _entry(
        "allgather",
        "ring",
        ring.allgather,
        purpose="large vectors: neighbours only",
        cost="(p-1) alpha + (p-1)/p n beta",
        steps_formula="p-1",
        sent_formula="(p-1)/p n",
        scratch_formula="none",
        steps=lambda size: size - 1,
        source=_RING,
    ),
    _entry(
        "allgather",
        "circulant",
        circulant.allgather,
        purpose="any vector: fewest steps and least bytes",
        cost="L alpha + (p-1)/p n beta",
        steps_formula="L",
        sent_formula="(p-1)/p n",
        scratch_formula="none",
        steps=levels,
        source=_CIRCULANT,
    ),
    _entry(
        "reduce",
        "naive_root",
        naive_root.reduce,
        purpose="comparison: what the others avoid",
        cost="(p-1) alpha + (p-1) n beta + (p-1) n gamma",
        steps_formula="p-1",
        sent_formula="n, and nothing at the root",
        scratch_formula="n",
        steps=lambda size: size - 1,
        scratch=whole,
        source=_ROOT,
    ),
    _entry(
        "reduce",
        "binomial",
        binomial.reduce,
        purpose="small vectors, and rank order: fewest steps",
        cost="L alpha + L n beta + L n gamma",
        steps_formula="L",
        sent_formula="n, and nothing at the root",
        scratch_formula="n",
        steps=levels,
        scratch=whole,
        source=_MPICH,
    ),
    _entry(
        "reduce",
        "reduce_scatter_gather",
        reduce_scatter_gather.reduce,
        purpose="large vectors: all ranks share the work",
        ordered=False,
        one_tree=False,
        cost="2L alpha + 2(p-1)/p n beta + (p-1)/p n gamma",
        steps_formula="2L",
        sent_formula="(p-1)/p n, and up to n/2 to gather",
        scratch_formula="up to n/2",
        steps=lambda size: 2 * levels(size),
        sent=sent_through_tree,
        scratch=_circulant_scratch,
        source="Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1",
    ),
    _entry(
        "broadcast",
        "naive_root",
        naive_root.broadcast,
        purpose="comparison: what the others avoid",
        cost="(p-1) alpha + (p-1) n beta",
        steps_formula="p-1",
        sent_formula="(p-1) n at the root",
        scratch_formula="none",
        steps=lambda size: size - 1,
        source=_ROOT,
    ),
    _entry(
        "broadcast",
        "binomial",
        binomial.broadcast,
        purpose="small vectors: fewest steps",
        cost="L alpha + L n beta",
        steps_formula="L",
        sent_formula="up to L n",
        scratch_formula="none",
        steps=levels,
        source=_MPICH,
    ),
    _entry(
        "broadcast",
        "scatter_allgather",
        scatter_allgather.broadcast,
        purpose="large vectors: all ranks pass on what the root sends once",
        cost="2L alpha + 2(p-1)/p n beta",
        steps_formula="2L",
        sent_formula="up to 2(p-1)/p n",
        scratch_formula="none",
        steps=lambda size: 2 * levels(size),
        sent=sent_by_scatter_allgather,
        source=_MPICH,
    ),
    _entry(
        "barrier",
        "dissemination",
        dissemination.barrier,
        purpose="fewest steps",
        cost="L alpha",
        steps_formula="L",
        sent_formula="none",
        scratch_formula="none",
        steps=levels,
        source="Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320",
    ),
)

FAMILY: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        collective: MappingProxyType(
            {entry.name: entry for entry in _ENTRIES if entry.collective == collective}
        )
        for collective in dict.fromkeys(entry.collective for entry in _ENTRIES)
    }
)
"""The flat algorithms by collective and name, in teaching order."""

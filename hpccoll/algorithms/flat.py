"""The flat algorithms, for which all ranks are alike, with their formulas."""

from collections.abc import Mapping
from types import MappingProxyType

from hpccoll.algorithms import circulant, naive_root, rabenseifner, recursive_doubling, ring
from hpccoll.algorithms.entry import COMMUTATIVE_ONLY, Algorithm, for_any_count
from hpccoll.schedule import Fold


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
    whole = max(count, size)  # what is halved where there are fewer elements than ranks
    return count if Fold(size).extras else min(count, whole - whole // 2)


_ENTRIES = (
    Algorithm(
        name="naive_root",
        schedule=for_any_count(naive_root.schedule),
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
        schedule=for_any_count(ring.schedule),
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
        schedule=for_any_count(recursive_doubling.schedule),
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
        schedule=for_any_count(rabenseifner.schedule),
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
        schedule=for_any_count(circulant.schedule),
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

FLAT: Mapping[str, Algorithm] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""The flat algorithms by name, in teaching order."""


def by_count(size: int, count: int) -> str:
    """Return the name of the flat algorithm for vectors that are not small.

    "recursive_doubling" where there are fewer elements than ranks, so that most chunks would be
    empty; else "rabenseifner" for a power of two of ranks and "circulant" for any other: both
    send no more than 2 (p - 1) / p of the vector.
    """
    if count < size:
        return "recursive_doubling"
    return "rabenseifner" if size & (size - 1) == 0 else "circulant"

"""Every collective and algorithm on threads: exact results, counted traffic, untouched memory."""

import itertools

import numpy as np
import pytest
from ends import Ends
from local_ranks import run

import hpccoll
from hpccoll.algorithms import algorithms, find
from hpccoll.pattern import Pattern

SIZES = range(1, 9)
KINDS = ("float32 sum", "float16 mean", "int64 sum")
FAMILY = [
    (collective, algorithm.name)
    for collective in ("reduce_scatter", "allgather", "reduce", "broadcast")
    for algorithm in algorithms(collective)
]

ROOTED = ("reduce", "broadcast")
EXCHANGES = ("allreduce", "reduce_scatter", "allgather")


def patterns(collective, size, count):
    """List the patterns to try: roots, or chunks of all kinds."""
    if collective in ROOTED:
        return [Pattern(collective, root) for root in sorted({0, size // 2, size - 1})]
    cuts = [count * rank**2 // size**2 for rank in range(size + 1)]
    rising = tuple(stop - start for start, stop in itertools.pairwise(cuts))
    uneven = [rising, rising[::-1], (count, *[0] * (size - 1)), (*[0] * (size - 1), count)]
    return [Pattern(collective), *(Pattern(collective, counts=counts) for counts in uneven)]


def cases(collective, size):
    """List (pattern, kind, in_place, count, segment_bytes); each of them with each other in turn.

    Not all products: the next one of each list with every case, so that all pairs come up.
    """
    kinds = itertools.cycle(KINDS)
    places = itertools.cycle([False, True, True, False, False])
    counts = [(0, None), (1, None), (size - 1, None), (size, 1), (2 * size + 1, None)]
    counts += [(1000, 256), (3001, 1024)]
    for count, segment_bytes in counts:
        for pattern in patterns(collective, size, count):
            yield pattern, next(kinds), next(places), count, segment_bytes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "name"), FAMILY)
def test_results_and_traffic(collective, name, size):
    todo = list(cases(collective, size))

    def job(rank):
        counted = []
        for case in todo:
            pattern, kind, in_place, count, segment_bytes = case
            ends = Ends(pattern, kind, rank.rank, size, count, in_place=in_place)
            arrays = (end if end is None else end.array for end in (ends.x, ends.out))
            bound = rank.collective(pattern, name, ends.op, count, *arrays, segment_bytes)
            for seed in range(2):  # the same plan, with other data
                ends.fill(seed)
                bound.run()
                try:
                    ends.check(seed)
                except AssertionError as error:
                    raise AssertionError(case) from error
            plan = bound.plan
            assert plan.messages_sent >= (plan.bytes_sent > 0)
            if segment_bytes:
                limit = max(segment_bytes, 8)
                assert plan.messages_sent * limit >= plan.bytes_sent
            counted.append((plan.bytes_sent, plan.bytes_received, plan.bytes_reduced))
        return counted

    counted = run(size, job)
    for number, case in enumerate(todo):
        pattern, kind, _, count, _ = case
        itemsize = np.dtype(kind.split()[0]).itemsize
        entry = find(name, collective).on(root=pattern.root, counts=pattern.counts)
        predicted = hpccoll.simulate(
            entry,
            size=size,
            count=count,
            itemsize=itemsize,
            partial_itemsize=max(itemsize, 4) if pattern.reduces else itemsize,
        )
        for rank in predicted.ranks:
            wanted = (rank.bytes_sent, rank.bytes_received, rank.bytes_reduced)
            assert counted[rank.rank][number] == wanted, (case, rank.rank)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(("collective", "name"), FAMILY)
def test_steps_are_those_simulated_and_messages_as_few(collective, name, size):
    count = 100

    def job(rank):
        pattern = Pattern(collective)
        ends = Ends(pattern, KINDS[0], rank.rank, size, count, in_place=False)
        arrays = (end if end is None else end.array for end in (ends.x, ends.out))
        bound = rank.collective(pattern, name, "sum", count, *arrays)
        ends.fill(0)
        bound.run()
        plan = bound.plan
        return plan.messages_sent, plan.messages_received, plan.info.steps

    predicted = hpccoll.simulate(find(name, collective), size=size, count=count, itemsize=4)
    did = run(size, job)
    assert [steps for _, _, steps in did] == [rank.steps for rank in predicted.ranks]
    assert sum(sent for sent, _, _ in did) == sum(received for _, received, _ in did)
    for (sent, received, _), rank in zip(did, predicted.ranks, strict=True):
        # What reaches around the end of the vector is two messages.
        assert rank.messages_sent <= sent <= 2 * rank.messages_sent
        assert rank.messages_received <= received <= 2 * rank.messages_received


@pytest.mark.parametrize("name", [entry.name for entry in algorithms("barrier")])
@pytest.mark.parametrize("size", SIZES)
def test_a_barrier_sends_word_and_no_bytes(size, name):
    arrived = [False] * size

    def job(rank):
        nothing = np.empty(0, np.uint8)
        bound = rank.collective(Pattern("barrier"), name, "", 0, None, nothing)
        for _ in range(3):
            arrived[rank.rank] = True
            bound.run()
            assert all(arrived)
            bound.run()
            arrived[rank.rank] = False
            bound.run()
            assert not any(arrived)
            bound.run()
        return bound.plan.messages_sent, bound.plan.messages_received, bound.plan.bytes_sent

    did = run(size, job)
    ranks = hpccoll.simulate(name, size=size, collective="barrier").ranks
    assert did == [(rank.messages_sent, rank.messages_received, 0) for rank in ranks]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("name", ["ring", "circulant"])  # inside nodes, two_level's trees differ
def test_the_bits_are_those_of_the_all_reduce_of_that_name(name, size):
    """Both have the same expression for each element, so rounding is the same."""
    count = 7 * size + 3

    def job(rank):
        x = np.random.default_rng(rank.rank).standard_normal(count).astype("float32")
        whole = np.empty_like(x)
        rank.allreduce(name, "sum", x, whole)
        pattern = Pattern("reduce_scatter")
        start, stop = pattern.wants(rank.rank, size, count)
        out = np.empty(stop - start, "float32")
        rank.collective(pattern, name, "sum", count, x, out).run()
        assert out.tobytes() == whole[start:stop].tobytes()

    run(size, job)


# Ranks that disagree.


def tell(size, calls):
    """Let rank r make ``calls(r)``; return the text of what each raised, None for nothing.

    Who only sends learns of it in its next call. After that, calls are right on all ranks.
    """

    def job(rank):
        pattern, name, count = calls(rank.rank)
        ends = Ends(pattern, KINDS[0], rank.rank, size, count, in_place=False)
        ends.fill(0)
        arrays = (end if end is None else end.array for end in (ends.x, ends.out))
        x, out = np.full(100, rank.rank + 1, "float32"), np.empty(100, "float32")
        raised = None
        try:
            rank.collective(pattern, name, "sum", count, *arrays).run()
        except ValueError as error:
            raised = str(error)
        if ends.x is not None:
            ends.x.check()
        if ends.out is not None:
            ends.out.check()
        if raised is None:
            with pytest.raises(ValueError, match="expected"):
                rank.allreduce("recursive_doubling", "sum", x, out)
        for value in (2, 3):
            x[:] = value + rank.rank
            rank.allreduce("recursive_doubling", "sum", x, out)
            assert (out == size * value + size * (size - 1) // 2).all()
        return raised

    texts = run(size, job)
    assert any(texts)
    for rank, text in enumerate(texts):
        if text is not None:
            assert text.startswith(f"{calls(rank)[0].collective}: expected ")
            assert f"(rank {rank} of {size}, " in text
            assert "different counts" in text
    return texts


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(("collective", "name"), FAMILY)
def test_no_rank_hangs_where_one_has_another_count(collective, name, size):
    for usual, other in ((100, 50), (100, 1), (100, 0), (2000, 3000)):
        for odd in (0, size - 1):
            counts = [other if rank == odd else usual for rank in range(size)]
            tell(size, lambda rank, counts=counts: (Pattern(collective), name, counts[rank]))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(("collective", "name"), [pair for pair in FAMILY if pair[0] not in ROOTED])
def test_no_rank_hangs_where_one_has_chunks_of_other_sizes(collective, name, size):
    equal = (100,) * size
    for other in ((99, *equal[1:-1], 101), (0, *equal[1:-1], 200)):
        for odd in (0, size - 1):
            tell(
                size,
                lambda rank, odd=odd, other=other: (
                    Pattern(collective, counts=other if rank == odd else equal),
                    name,
                    100 * size,
                ),
            )


@pytest.mark.parametrize("size", [2, 3])
def test_no_rank_hangs_where_one_makes_another_call(size):
    # Of those in which all ranks send and receive; others wait for each other, or for nobody.
    circulant = [(Pattern(name), "circulant", 100) for name in EXCHANGES]
    for usual, other in itertools.permutations(circulant, 2):
        for odd in (0, size - 1):
            calls = [other if rank == odd else usual for rank in range(size)]
            tell(size, calls.__getitem__)

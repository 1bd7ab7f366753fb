"""Chunks and segments cover what they cut, in order, once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpccoll.chunks import Range, RangeSet, around, chunks, chunks_of, cut, joined, segments

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Machines that run tests may be slow; that is no failure."""

ranges = st.builds(lambda a, b: Range(min(a, b), max(a, b)), st.integers(0, 30), st.integers(0, 30))


def elements(parts):
    return [element for part in parts for element in range(part.start, part.stop)]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 100])
def test_chunks_cover_the_vector_evenly(count, parts):
    cut = chunks(count, parts)
    assert len(cut) == parts
    assert elements(cut) == list(range(count))
    counts = [chunk.count for chunk in cut]
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


def test_chunks_are_consecutive_even_where_they_are_empty():
    assert chunks(2, 4) == ((0, 1), (1, 2), (2, 2), (2, 2))


@calm
@given(st.integers(0, 10**12), st.integers(1, 200))
def test_any_chunks_are_consecutive_and_as_even_as_can_be(count, parts):
    made = cut(count, parts)
    assert len(made) == parts
    assert (made[0].start, made[-1].stop) == (0, count)
    assert all(one.stop == following.start for one, following in pairwise(made))
    sizes = [part.count for part in made]
    assert sorted(sizes, reverse=True) == sizes
    assert sizes[0] - sizes[-1] <= 1


@calm
@given(st.integers(0, 300), st.integers(1, 40))
def test_chunks_are_those_of_numpy(count, parts):
    split = np.array_split(np.arange(count), parts)
    assert [elements([chunk]) for chunk in chunks(count, parts)] == [
        part.tolist() for part in split
    ]


@calm
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple))
def test_chunks_of_any_sizes_follow_one_another(counts):
    made = chunks_of(counts)
    assert made == cut(sum(counts), len(counts), counts)
    assert tuple(chunk.count for chunk in made) == counts
    assert elements(made) == list(range(sum(counts)))


@calm
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12).map(tuple), st.data())
def test_chunks_around_a_circle(counts, data):
    made, size = chunks_of(counts), len(counts)
    start = data.draw(st.integers(-2 * size, 2 * size))
    length = data.draw(st.integers(1, size))
    wanted = elements(made[place % size] for place in range(start, start + length))
    found = around(made, start, start + length)
    assert elements(found) == wanted
    assert len(found) <= 2


@calm
@given(st.lists(ranges))
def test_joined_ranges_are_the_same_elements_in_as_few_ranges_as_can_be(parts):
    made = joined(parts)
    assert elements(made) == elements(parts)
    assert all(part.count for part in made)
    assert all(one.stop != following.start for one, following in pairwise(made))


@calm
@given(ranges, st.integers(1, 40))
def test_segments_cover_a_range_in_order(chunk, limit):
    cut = list(segments(chunk, limit))
    assert elements(cut) == elements([chunk])
    assert all(0 < part.count <= limit for part in cut)
    assert all(part.count == limit for part in cut[:-1])


@calm
@given(ranges, ranges)
def test_ranges_overlap_where_they_share_an_element(one, other):
    shared = set(elements([one])) & set(elements([other]))
    if one.count and other.count:
        assert one.overlaps(other) == other.overlaps(one) == bool(shared)


@calm
@given(st.lists(st.tuples(st.booleans(), ranges)), ranges)
def test_a_range_set_is_a_set_of_elements(changes, window):
    held, expected = RangeSet(), set()
    for add, part in changes:
        if add:
            held.add(part)
            expected |= set(elements([part]))
        else:
            held.remove(part)
            expected -= set(elements([part]))
    assert elements(held) == sorted(expected)
    assert elements(held.inside(window)) == sorted(expected & set(elements([window])))
    assert elements(held.outside(window)) == sorted(set(elements([window])) - expected)

"""Chunks and segments cover what they cut, in order, once."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpccoll.chunks import Range, RangeSet, chunks, segments

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

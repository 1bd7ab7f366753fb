"""How `hpccoll.allreduce_many` and `hpccoll.Bucketer` deal arrays out to buckets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.buckets import ALONE_BYTES, deal

TYPES = [np.dtype(name) for name in ("f4", "f8", "i2", "bool")]


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from(TYPES)), max_size=40),
    st.integers(1, 1_000_000),
)
def test_buckets(kinds, bucket_bytes):
    dealt = deal(kinds, bucket_bytes)
    assert dealt == deal(list(kinds), bucket_bytes)
    assert sorted(m for bucket in dealt for m in bucket.members) == list(range(len(kinds)))
    assert [bucket.members[-1] for bucket in dealt] == sorted(b.members[-1] for b in dealt)
    closed = {}
    for bucket in dealt:
        sizes = [kinds[member][0] for member in bucket.members]
        assert {kinds[member][1] for member in bucket.members} == {bucket.dtype}
        assert list(bucket.members) == sorted(bucket.members)
        assert list(bucket.starts) == [sum(sizes[:k]) for k in range(len(sizes))]
        assert bucket.count == sum(sizes)
        nbytes = bucket.count * bucket.dtype.itemsize
        if len(bucket.members) > 1:
            assert nbytes <= bucket_bytes
            assert all(size * bucket.dtype.itemsize < ALONE_BYTES for size in sizes)
        # No bucket is closed before it has to be.
        packed = sizes[0] * bucket.dtype.itemsize < min(ALONE_BYTES, bucket_bytes)
        if packed:
            if bucket.dtype in closed:
                first = sizes[0] * bucket.dtype.itemsize
                assert closed[bucket.dtype] + first > bucket_bytes
            closed[bucket.dtype] = nbytes


def test_many_small_arrays_are_dealt_out_within_the_limit_of_a_test():
    # Work that grew with the square of their number would take hours.
    assert len(deal([(10, np.dtype("f4"))] * 500_000, 25_000_000)) == 1

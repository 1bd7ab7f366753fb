"""Calls on input that is late, on devices, where nothing but the result shows a mistake."""

import pytest
from cuda_session import devices, our_communicator, which_way  # noqa: F401 - fixtures
from stream_stress import MODES, Stress

pytestmark = pytest.mark.mpi(min_size=2)

COUNTS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)

TURNS = 100

LONG_COUNT, LONG_TURNS = 100_000_000, 20
"""Vectors that cross between host and device: so large, that a few calls take seconds."""


@pytest.mark.limit(120)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", COUNTS)
def test_no_call_is_early_or_late(gpu, ours, way, count, mode):
    turns = LONG_TURNS if way != "mapped" and count == LONG_COUNT else TURNS
    wrong = Stress(gpu, ours, count).run(turns, mode)
    assert not any(wrong), f"wrong elements, by turn: {wrong}"
    call = ours.last_call
    if mode != "non-blocking":  # those run on a duplicate
        assert call.path == {"mapped": "mapped", "staged, host": "host"}.get(way, "point-to-point")

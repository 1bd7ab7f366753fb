"""The prover accepts every algorithm, on random ranks, nodes, roots and parts."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import COLLECTIVES, REGISTRY, find
from hpccoll.prover import prove
from hpccoll.topology import Topology

MOST_RANKS = 33

NAMES = [
    (collective, name)
    for collective, entries in REGISTRY.items()
    for entry in entries.values()
    for name in (
        entry.name,
        *(f"{entry.name}:{e.name}" for e in entries.values() if not e.hierarchical),
    )
    if entry.hierarchical or name == entry.name
]


@st.composite
def topologies(draw, size):
    """Draw nodes: few or many, of consecutive ranks or not."""
    nodes = draw(st.integers(1, size))
    if draw(st.booleans()):
        each = -(-size // nodes)
        return Topology.of_labels(rank // each for rank in range(size))
    return Topology.of_labels(draw(st.lists(st.integers(0, nodes), min_size=size, max_size=size)))


@pytest.mark.parametrize(("collective", "name"), NAMES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_call_is_right(collective, name, data):
    kind = COLLECTIVES[collective]
    size = data.draw(st.integers(1, MOST_RANKS), "size")
    topology = data.draw(topologies(size), "topology")
    root = data.draw(st.integers(0, size - 1), "root") if kind.rooted else 0
    counts = None
    if kind.split and data.draw(st.booleans()):
        each = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1000))
        counts = tuple(data.draw(st.lists(each, min_size=size, max_size=size), "counts"))
    near = st.integers(0, 2 * size + 2)
    count = data.draw(st.one_of(near, st.integers(0, 10**6)), "count")
    count = count if counts is None else sum(counts)
    proof = prove(find(name, collective), size, count, topology, root=root, counts=counts)
    assert (proof.collective, proof.size, proof.count) == (collective, size, count)

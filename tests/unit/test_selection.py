"""Which algorithm runs: arguments, the environment, and "auto"; and settings that are refused."""

import numpy as np
import pytest

from hpccoll import selection
from hpccoll.algorithms import ALGORITHMS, REGISTRY
from hpccoll.selection import (
    NODE_SEGMENT_BYTES,
    SMALL_BYTES,
    Settings,
    choose,
    from_environment,
    node_limits,
    requested,
    select,
)
from hpccoll.topology import Topology

NAMES = list(ALGORITHMS)
LARGE = SMALL_BYTES + 4


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 100, 128])
def test_small_vectors_take_the_fewest_steps(size):
    for nbytes in (0, 4, 1024, SMALL_BYTES):
        assert select(size=size, nbytes=nbytes, count=nbytes // 4) == "recursive_doubling"


@pytest.mark.parametrize("size", [2, 4, 8, 16, 128])
def test_large_vectors_on_a_power_of_two_take_rabenseifner(size):
    assert select(size=size, nbytes=LARGE, count=LARGE // 4) == "rabenseifner"


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9, 100, 127])
def test_large_vectors_on_other_sizes_take_circulant(size):
    assert select(size=size, nbytes=LARGE, count=LARGE // 4) == "circulant"


def test_few_wide_elements_take_the_fewest_steps():
    # 100 elements of 16 bytes on 1000 ranks: most chunks would be empty.
    wide = {"size": 1000, "nbytes": LARGE}
    assert select(**wide, count=999) == "recursive_doubling"
    assert select(**wide, count=1000) == "circulant"


def where(size, nbytes, nodes=None, through_memory=False):
    topology = Topology.one_node(size) if nodes is None else Topology(nodes)
    return {
        "topology": topology,
        "nbytes": nbytes,
        "count": nbytes // 8,
        "through_memory": through_memory,
    }


@pytest.mark.parametrize("size", [1, 2, 3, 8, 31])
def test_auto_takes_only_what_there_is(size):
    for nbytes in (0, 8, SMALL_BYTES, LARGE, 1 << 30):
        chosen = choose(Settings(), "", **where(size, nbytes))
        assert chosen is ALGORITHMS[select(size=size, nbytes=nbytes, count=nbytes // 8)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20])
def test_a_named_algorithm_runs_whatever_the_vector(name, nbytes):
    other = next(other for other in NAMES if other != name)
    for through_memory in (False, True):
        for nodes in (None, (0, 0, 1, 1)):
            here = where(4, nbytes, nodes, through_memory)
            assert choose(Settings(name), "", **here) is ALGORITHMS[name]
            assert choose(Settings(), name, **here) is ALGORITHMS[name]
            assert choose(Settings(name), other, **here) is ALGORITHMS[name]


@pytest.mark.parametrize("nbytes", [0, 8, SMALL_BYTES, LARGE, 1 << 30])
def test_auto_takes_the_memory_of_nodes_where_there_is_some(nbytes):
    assert choose(Settings(), "", **where(4, nbytes, through_memory=True)) is None
    two_nodes = choose(Settings(), "", **where(4, nbytes, (0, 0, 1, 1), through_memory=True))
    assert two_nodes.name == (
        "two_level:recursive_doubling" if nbytes <= SMALL_BYTES else "two_level"
    )
    by_messages = choose(Settings(), "", **where(4, nbytes, (0, 0, 1, 1)))
    assert not by_messages.hierarchical


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("size", [2, 3, 8, 100])
def test_limits_of_designs_are_in_order(size, crowded):
    near, far = (node_limits(size, crowded, crossing) for crossing in (0, 1000))
    for limits in (near, far):
        assert 0 < limits.gather_bytes <= limits.slot_bytes
        assert 0 < limits.segment_bytes <= NODE_SEGMENT_BYTES
        assert limits.segment_bytes % 64 == 0
    assert far.slot_bytes < near.slot_bytes


def test_the_environment_stands_in_for_auto():
    assert requested(Settings(), "") == "auto"
    assert requested(Settings(), "auto") == "auto"
    assert requested(Settings(), "ring") == "ring"
    assert requested(Settings("circulant"), "ring") == "circulant"
    assert requested(Settings("circulant"), "auto") == "circulant"


@pytest.mark.parametrize("environment", ["", "two_level:binomial"])
def test_what_runs_between_nodes_may_be_of_another_collective_than_all_reduce(environment):
    settings = Settings("auto" if environment else "two_level:binomial")
    settings.check()
    found = {each: requested(settings, environment, each) for each in REGISTRY}
    named = [each for each, name in found.items() if name != "auto"]
    assert named == ["reduce", "broadcast"]  # those that have `binomial`
    assert {found[each] for each in named} == {"two_level:binomial"}
    with pytest.raises(ValueError, match="network algorithm 'tree'; choose from naive_root, ring"):
        Settings("two_level:tree").check()


def test_an_unknown_name_in_the_environment_is_refused():
    with pytest.raises(
        ValueError, match="HPCCOLL_ALGORITHM: unknown algorithm 'rings'; choose"
    ) as e:
        choose(Settings(), "rings", **where(4, 8))
    assert all(name in str(e.value) for name in [*NAMES, "auto"])


def test_an_argument_goes_before_an_unknown_name_in_the_environment():
    assert choose(Settings("ring"), "rings", **where(4, 8)) is ALGORITHMS["ring"]


@pytest.mark.parametrize(
    ("value", "read"),
    [("ring", "ring"), (" ring\n", "ring"), ("", ""), ("  ", ""), ("auto", "auto")],
)
def test_the_environment_is_read_when_asked_for(monkeypatch, value, read):
    monkeypatch.setenv(selection.VARIABLE, value)
    assert from_environment() == read
    monkeypatch.delenv(selection.VARIABLE)
    assert from_environment() == ""


@pytest.mark.parametrize("name", ["", "rings", "Ring", "ring ", "native", "RING"])
def test_an_unknown_algorithm_is_refused_and_the_known_ones_are_listed(name):
    with pytest.raises(ValueError, match=f"unknown algorithm {name!r}; choose") as e:
        Settings(name).check()
    assert all(known in str(e.value) for known in [*NAMES, "auto"])


@pytest.mark.parametrize("name", [None, 3, b"ring", ["ring"], ALGORITHMS["ring"]])
def test_an_algorithm_that_is_no_name_is_refused(name):
    with pytest.raises(TypeError, match=f"of type {type(name).__name__}; wanted one of auto") as e:
        Settings(name).check()
    assert all(known in str(e.value) for known in NAMES)


@pytest.mark.parametrize("segment_bytes", [None, 1, 3, 4096, 1 << 40])
@pytest.mark.parametrize("name", ["auto", *NAMES])
def test_settings_that_can_be_used(name, segment_bytes):
    Settings(name, segment_bytes).check()


@pytest.mark.parametrize("segment_bytes", [0, -1, -(1 << 40)])
def test_a_segment_without_room_is_refused(segment_bytes):
    with pytest.raises(
        ValueError, match=f"segment_bytes is {segment_bytes}; wanted a positive int"
    ):
        Settings("ring", segment_bytes).check()


@pytest.mark.parametrize("segment_bytes", [4096.0, "4K", True, False, [4096], np.float64(4096)])
def test_a_segment_size_that_is_no_integer_is_refused(segment_bytes):
    with pytest.raises(TypeError, match=r"segment_bytes is .* of type .*; wanted a positive int"):
        Settings("ring", segment_bytes).check()


def test_settings_are_equal_by_value():
    # They are the key of a channel's plans.
    assert Settings("ring", 4096) == Settings("ring", 4096)
    assert len({Settings("ring", 1), Settings("ring", 1), Settings("ring"), Settings()}) == 3

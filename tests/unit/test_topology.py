"""Which ranks share a node: what texts say, and what a topology tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.placement import _labels
from hpccoll.topology import Topology, parse

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(LABELS)
def test_a_topology_keeps_who_is_together(labels):
    topology = Topology.of_labels(labels)
    assert topology.size == len(labels)
    assert topology.node_count == len(set(labels))
    for rank, label in enumerate(labels):
        together = tuple(peer for peer, other in enumerate(labels) if other == label)
        assert topology.peers(rank) == topology.members(topology.nodes[rank]) == together
        assert together[topology.local(rank)] == rank
    sizes = [labels.count(label) for label in set(labels)]
    assert (topology.smallest, topology.largest) == (min(sizes), max(sizes))
    assert topology.is_one_node == (len(sizes) == 1)
    firsts = [topology.members(node)[0] for node in range(topology.node_count)]
    assert firsts == sorted(firsts)


@given(LABELS)
def test_numbers_do_not_depend_on_labels(labels):
    topology = Topology.of_labels(labels)
    assert Topology.of_labels(f"host {label}" for label in labels) == topology
    assert Topology.of_labels(topology.nodes) == topology == Topology(topology.nodes)
    assert hash(Topology(topology.nodes)) == hash(topology)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_counts_fill_one_node_after_the_other(counts):
    topology = Topology.of_labels(parse(",".join(map(str, counts)), sum(counts)))
    assert [len(topology.members(node)) for node in range(topology.node_count)] == counts
    assert topology.in_rank_order


@given(LABELS, st.sampled_from([",", " , ", ",\t"]))
def test_a_node_number_for_each_rank(labels, comma):
    read = parse(comma.join(map(str, labels)), len(labels))
    if 0 not in labels and sum(labels) == len(labels):  # counts go first; these are all 1
        assert read == tuple(range(len(labels)))
    else:
        assert read == tuple(labels)
    assert Topology.of_labels(read).size == len(labels)


@given(st.text(alphabet="0123456789,- x٣", max_size=12), st.integers(1, 12))
def test_any_text_is_read_or_refused_with_a_sentence(text, size):
    said = ""
    try:
        read = parse(text, size)
    except ValueError as error:
        said = str(error)
    if said:
        assert f"HPCCOLL_NODES is {text!r}; wanted, for {size} rank" in said
    else:
        assert len(read) == size
        assert all(number >= 0 for number in read)
        assert set(text) <= set("0123456789, ")


@pytest.mark.parametrize(
    ("text", "size", "nodes"),
    [
        ("4,4", 8, (0, 0, 0, 0, 1, 1, 1, 1)),
        (" 3 , 1 ", 4, (0, 0, 0, 1)),
        ("0,1,0,1", 4, (0, 1, 0, 1)),
        ("5,5,2", 3, (5, 5, 2)),
        ("1,1", 2, (0, 1)),  # both readings fit: counts
        ("2,1,1", 4, (0, 0, 1, 2)),
        ("2,0", 2, (2, 0)),  # no node has 0 ranks, so these are node numbers
        ("1", 1, (0,)),
        ("0", 1, (0,)),
    ],
)
def test_both_ways_to_write_it(text, size, nodes):
    assert parse(text, size) == nodes


@pytest.mark.parametrize(
    "text", ["", "4,3", "4,,4", "4;4", "-4,12", "4,0,4", "4.0,4", "x", "9" * 99]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"^environment variable HPCCOLL_NODES is ") as error:
        parse(text, 8)
    wanted = (
        "wanted, for 8 ranks, how many ranks each node has, 8 together (such as '4,4'), "
        "or a node number for each rank (such as '0,1,0,1,0,1,0,1')"
    )
    assert str(error.value).endswith(wanted)
    with pytest.raises(ValueError, match=r"^nodes is "):
        parse(text, 8, "nodes")


@pytest.mark.parametrize("nodes", [(), (1,), (0, 2), (0, -1), (0, 1, 3)])
def test_nodes_are_numbered_as_ranks_meet_them(nodes):
    with pytest.raises(ValueError, match=r"numbered as ranks meet them|at least one rank"):
        Topology(nodes)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("a", "1 node of 1 rank"),
        ("aaa", "1 node of 3 ranks"),
        ("ab", "2 nodes of 1 rank"),
        ("aaaabbbb", "2 nodes of 4 ranks"),
        ("abab", "2 nodes of 2 ranks"),
        ("aaab", "2 nodes of 3 and 1 ranks"),
        ("abbbbcc", "3 nodes of 1, 4 and 2 ranks"),
        ("aabcde", "5 nodes of 1 to 2 ranks"),
    ],
)
def test_the_text(labels, text):
    assert Topology.of_labels(labels).text() == text


def test_ranks_of_a_node_may_be_apart():
    assert Topology.one_node(4).in_rank_order
    assert Topology.of_labels("aabb").in_rank_order
    assert not Topology.of_labels("abab").in_rank_order


def test_machines_count_where_mpi_puts_every_rank_alone_and_they_repeat():
    x, y = ("host", "boot x"), ("host", "boot y")
    assert Topology.of_labels(_labels((0, 1, 2), (x, y, x))).nodes == (0, 1, 0)
    # MPI knows better: containers on one machine that share no memory; or there is nothing to see.
    assert Topology.of_labels(_labels((0, 0, 2), (x, x, x))).nodes == (0, 0, 1)
    assert Topology.of_labels(_labels((0, 1), (x, y))).nodes == (0, 1)
    assert Topology.of_labels(_labels((0,), (x,))).nodes == (0,)

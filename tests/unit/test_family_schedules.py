"""The algorithms of the other collectives: proved, counted, and drawn."""

import random
import re
from dataclasses import replace

import pytest
from clusters import full_nodes, in_turns, nodes_of
from formulas import evaluate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import FACTS, arrows_of, follow, module_doc, picture

from hpccoll.algorithms import ALGORITHMS, COLLECTIVES, REGISTRY, algorithms, find, legend, table
from hpccoll.chunks import Range, around, chunks, chunks_of, joined
from hpccoll.prover import ProofError, prove
from hpccoll.schedule import Action, ScheduleBuilder
from hpccoll.simulator import simulate
from hpccoll.topology import Topology

OTHERS = [name for name in COLLECTIVES if name != "allreduce"]
ENTRIES = [entry for name in OTHERS for entry in algorithms(name)]
SPLIT = [entry for entry in ENTRIES if COLLECTIVES[entry.collective].split]
ROOTED = [entry for entry in ENTRIES if COLLECTIVES[entry.collective].rooted]
MODULES = {
    "reduce": "two_level_rooted",
    "broadcast": "two_level_rooted",
    "reduce_scatter": "two_level_split",
    "allgather": "two_level_split",
    "barrier": "two_level_split",
}
"""Where a collective's two_level is."""


def each(entries):
    return pytest.mark.parametrize(
        "entry", entries, ids=lambda entry: f"{entry.collective}-{entry.name}"
    )


def module_of(entry):
    return MODULES[entry.collective] if entry.hierarchical else entry.name


def roots_of(entry, size):
    if not COLLECTIVES[entry.collective].rooted:
        return [0]
    return range(size) if size <= 9 else (0, size // 2, size - 1)


def uneven(size):
    """Return sizes of chunks that differ: a few of none, growing, one of all, and none at all."""
    pick = random.Random(size)
    return [
        tuple(pick.choice((0, 1, 5)) for _ in range(size)),
        tuple(range(1, size + 1)),
        (0,) * (size - 1) + (7,),
        (0,) * size,
    ]


# The proofs.


@pytest.mark.parametrize("size", range(1, 34))
@each(ENTRIES)
def test_every_algorithm_is_right_for_any_root_and_count(entry, size):
    counts = (0, 1, size - 1, size, 2 * size + 1, 3 * size + size // 2)
    for number, root in enumerate(roots_of(entry, size)):
        few = size > 16 or (size > 5 and number)
        for count in counts[number % 2 :: 2] if few else counts:
            proof = prove(entry, size, count, root=root)
            assert (proof.collective, proof.root) == (entry.collective, root)


@pytest.mark.parametrize("size", range(1, 34))
@each(SPLIT)
def test_chunks_may_differ_in_size(entry, size):
    for counts in uneven(size):
        proof = prove(entry, size, sum(counts), counts=counts)
        assert proof.most_ranges <= (1 if entry.name == "ring" else 2)


TOPOLOGIES = [
    *(nodes_of(*nodes) for nodes in [(4, 4), (3, 1), (1, 4, 2), (2, 6, 9, 1), (5,), (3,) * 5]),
    *(full_nodes(7, 1), full_nodes(33, 8), in_turns(8, 2), in_turns(13, 5)),
    *map(Topology.of_labels, ["abba", "abacbbcda", "aababbb"]),
]
HIERARCHICAL = [
    (collective, name)
    for collective in OTHERS
    for name in [
        "two_level",
        *(f"two_level:{flat.name}" for flat in algorithms(collective) if not flat.hierarchical),
    ]
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.text())
@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_two_levels_on_nodes_of_all_kinds(collective, name, topology):
    size, entry = topology.size, find(name, collective)
    for root in roots_of(entry, size):
        for count in (0, 1, size // 2, size - 1, size, 3 * size + size // 2):
            prove(entry, size, count, topology, root=root)
    if COLLECTIVES[collective].split:
        for counts in uneven(size):
            prove(entry, size, sum(counts), topology, counts=counts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(ENTRIES), st.data())
def test_random_calls(entry, data):
    size = data.draw(st.integers(1, 20))
    topology = Topology.of_labels(
        data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    )
    kind = COLLECTIVES[entry.collective]
    root = data.draw(st.integers(0, size - 1)) if kind.rooted else 0
    counts = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    if kind.split and data.draw(st.booleans()):
        prove(entry, size, sum(counts), topology, counts=tuple(counts))
    else:
        prove(entry, size, sum(counts), topology, root=root)


@each(ENTRIES)
def test_few_elements_are_a_part_of_the_schedule_for_one_per_rank(entry):
    for root in roots_of(entry, 5):
        placed = entry.on(in_turns(5, 2), root=root)
        for rank in range(5):
            whole = placed.schedule(rank, 5, 5)
            for count in range(5):
                assert placed.schedule(rank, 5, count) == whole.first(count)


@each(ENTRIES)
def test_what_an_entry_promises_is_not_too_little(entry):
    size = 6
    placed = entry.on(in_turns(size, 3))
    if not placed.one_tree:
        assert prove(placed, size, 37).trees > 1
    if not placed.ordered:
        with pytest.raises(ProofError, match="leaves rank order"):
            prove(replace(placed, ordered=True), size, 37)


# Bits.


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8, 13])
def test_binomial_has_one_expression_for_all_roots(size):
    told = {
        prove("binomial", size, 3, collective="reduce", root=root).expression(0)
        for root in range(size)
    }
    assert len(told) == 1


def test_naive_root_keeps_rank_order_and_starts_at_the_root():
    proof = prove("naive_root", 5, 3, collective="reduce", root=2)
    assert proof.expression(1) == "((x0 + (x1 + x2)) + x3) + x4"
    ordered = prove("naive_root", 3, 3, collective="reduce").expression(1)
    assert ordered == prove("naive_root", 3, 3).expression(1)


def test_rank_order_is_kept_between_nodes_of_consecutive_ranks():
    topology = nodes_of(3, 2, 1)
    for network in ("binomial", "naive_root"):
        entry = find(f"two_level:{network}", "reduce")
        for root in range(6):
            assert entry.on(topology, root=root).ordered  # and `prove` checks it
            prove(entry, 6, 9, topology, root=root)
        assert not entry.on(in_turns(6, 2)).ordered
    assert not find("two_level", "reduce").on(topology).ordered
    assert find("two_level", "reduce_scatter").on(nodes_of(6)).ordered


def test_what_is_only_copied_is_what_was_brought():
    proof = prove("ring", 3, 6, collective="allgather")
    assert [proof.expression(element) for element in range(6)] == [
        "x0",
        "x0",
        "x1",
        "x1",
        "x2",
        "x2",
    ]
    assert prove("binomial", 3, 2, collective="broadcast", root=2).expression(1) == "x2"
    # What counts is the expression at the rank that must have it.
    scattered = prove("ring", 3, 3, collective="reduce_scatter")
    assert scattered.expression(2) == "(x0 + x1) + x2"


# Mutants: each breaks one thing.


def changed(name, collective, change, **placed):
    """Return an entry whose schedules are `change`d: from the steps and the rank to steps."""
    entry = find(name, collective).on(**placed)

    def schedule(rank, size, count):
        plan = entry.schedule(rank, size, count)
        return replace(plan, steps=tuple(change(list(plan.steps), rank)))

    return replace(entry, schedule=schedule)


def rejects(entry, size, count, text):
    with pytest.raises(ProofError, match=text) as caught:
        prove(entry, size, count)
    root = f", root {entry.root}" if COLLECTIVES[entry.collective].rooted else ""
    head = f"{entry.collective} {entry.name}, size {size}, count {count}{root}: "
    assert str(caught.value).startswith(head)


@each(ENTRIES)
def test_a_step_that_all_ranks_drop(entry):
    for part in (slice(1, None), slice(None, -1)):
        mutant = changed(entry.name, entry.collective, lambda steps, rank, part=part: steps[part])
        rejects(mutant, 8, 16, "deadlock|expects|leaves rank order|without the contr|never had any")


@each(ENTRIES)
def test_a_rank_that_does_nothing(entry):
    mutant = changed(entry.name, entry.collective, lambda steps, rank: steps if rank else [])
    rejects(mutant, 4, 8, "deadlock: .*and rank 0 has finished$")


@each(ROOTED)
def test_another_root(entry):
    other = entry.on(root=1)
    mutant = replace(entry, schedule=other.schedule, sent=other.sent)
    rejects(mutant, 4, 8, "rank 0 ends with .* without the contrib|hands out .*, and never had any")


@each(SPLIT)
def test_chunks_of_other_sizes(entry):
    other, counts = entry.on(counts=(5, 1, 1, 1)), (1, 1, 1, 5)
    mutant = replace(entry, schedule=other.schedule, counts=counts, scratch=other.scratch)
    text = "ends with .* without the contrib|hands out .* without the|hands out .*never had any"
    rejects(mutant, 4, 8, text)


def test_elements_that_a_rank_does_not_have():
    def others_first(steps, rank):
        """Ring, but the first two chunks are sent in the other order."""
        chunk = [(Range(number, number + 1),) for number in range(4)]
        first, second, last = steps
        return [
            first._replace(send=chunk[rank - 1], receive=chunk[rank - 2]),
            second._replace(send=chunk[rank], receive=chunk[rank - 1]),
            last,
        ]

    text = r"rank \d at step 0 hands out element \d, and never had any$"
    rejects(changed("ring", "allgather", others_first), 4, 4, text)

    def without_3(steps, rank):
        return [] if rank == 3 else steps[:2]

    text = "rank 3 ends with elements 0 to 7, and never had any$"
    rejects(changed("naive_root", "broadcast", without_3), 4, 8, text)


def test_something_to_combine_where_nothing_is():
    def reducing(steps, rank):
        return [step._replace(action=Action.REDUCE_LEFT) for step in steps]

    for collective, name in (
        ("allgather", "ring"),
        ("broadcast", "binomial"),
        ("barrier", "dissemination"),
    ):
        text = rf"rank 0 at step 0 reduces, and {collective} combines nothing$"
        rejects(changed(name, collective, reducing), 4, 4, text)


def test_an_unfinished_chunk():
    mutant = changed("ring", "reduce_scatter", lambda steps, rank: steps[:-1])
    rejects(
        mutant, 4, 8, "rank 0 ends with elements 0 to 1 without the contribution of rank 0|rank"
    )


def test_a_tree_that_counts_from_the_root_leaves_rank_order():
    entry = find("binomial", "reduce").on(root=2)

    def rotated(rank, size, count):
        plan = ScheduleBuilder(rank, size, count)
        names = [(2 + place) % size for place in range(size)]
        for step in find("binomial", "reduce").schedule(names.index(rank), size, count).steps:
            plan.add(step, Range(0, count), names)
        return plan.finish()

    rejects(replace(entry, schedule=rotated), 4, 8, r"leaves rank order in elements 0 to 7: ")
    prove(replace(entry, schedule=rotated, ordered=False), 4, 8)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ({"steps": lambda size: 5}, "3 steps, where the registry says 5"),
        ({"sent": lambda size, count: 1}, "24 elements sent, where the registry says 1"),
        ({"reduced": lambda size, count: 1}, "24 elements reduced, where the registry says 1"),
        ({"scratch": lambda size, count: 1}, "2 elements of scratch, where the registry says 1"),
        ({"one_tree": True}, r"element 0 is worked out as .*, and elements 2 to 3 as "),
    ],
)
def test_a_registry_that_says_something_else(formula, text):
    rejects(replace(find("ring", "reduce_scatter"), **formula), 4, 8, text)


# What does not fit.


def test_roots_counts_and_topologies_that_do_not_fit_are_refused():
    for call in (
        lambda **given: prove(given.pop("name"), 4, 8, **given),
        lambda **given: simulate(given.pop("name"), size=4, count=8, **given),
    ):
        with pytest.raises(ValueError, match="root must be 0 to 3; got 4"):
            call(name="binomial", collective="reduce", root=4)
        with pytest.raises(ValueError, match="allgather has no root; got root=1"):
            call(name="ring", collective="allgather", root=1)
        with pytest.raises(ValueError, match="allreduce has no chunks of given sizes"):
            call(name="ring", counts=(2, 2, 2, 2))
        with pytest.raises(ValueError, match="a number for each of 4 ranks; got 2"):
            call(name="ring", collective="allgather", counts=(4, 4))
        with pytest.raises(ValueError, match=r"add up to the 8 elements .* they add up to 7"):
            call(name="ring", collective="allgather", counts=(4, 3, 0, 0))
        with pytest.raises(ValueError, match="unknown algorithm 'auto'; choose from dissemination"):
            call(name="auto", collective="barrier")
        with pytest.raises(
            ValueError, match="no algorithms for collective 'scan'; choose from allr"
        ):
            call(name="ring", collective="scan")
    with pytest.raises(ValueError, match="a number in counts must be at least 0; got -1"):
        prove("ring", 2, 8, collective="allgather", counts=(9, -1))
    with pytest.raises(ValueError, match="root must be 0 to 3; got -1"):
        prove("binomial", 4, 8, collective="reduce", root=-1)
    with pytest.raises(ValueError, match="that of 3 ranks, and there are 4"):
        prove("two_level", 4, 8, nodes_of(2, 1), collective="reduce")


# The registry.


def test_every_collective_has_its_algorithms():
    assert list(REGISTRY) == list(COLLECTIVES)
    assert REGISTRY["allreduce"] is ALGORITHMS
    assert {name: [entry.name for entry in algorithms(name)] for name in OTHERS} == {
        "reduce_scatter": ["ring", "circulant", "two_level"],
        "allgather": ["ring", "circulant", "two_level"],
        "reduce": ["naive_root", "binomial", "reduce_scatter_gather", "two_level"],
        "broadcast": ["naive_root", "binomial", "scatter_allgather", "two_level"],
        "barrier": ["dissemination", "two_level"],
    }
    for name, entries in REGISTRY.items():
        assert all(find(key, name) is entry for key, entry in entries.items())
        assert all(entry.collective == name for entry in entries.values())
    assert [name for name, kind in COLLECTIVES.items() if kind.rooted] == ["reduce", "broadcast"]


def test_an_unknown_name_is_refused_with_the_choices_of_that_collective():
    choices = "naive_root, binomial, reduce_scatter_gather, two_level"
    with pytest.raises(ValueError, match=f"algorithm 'ring'; choose from auto, {choices}$"):
        find("ring", "reduce")
    with pytest.raises(ValueError, match=f"algorithm 'ring'; choose from {choices}$"):
        find("ring", "reduce", auto=False)
    with pytest.raises(ValueError, match=r"network algorithm 'ring'; choose from dissemination$"):
        find("two_level:ring", "barrier")
    with pytest.raises(ValueError, match=r"binomial is flat .* those that do are two_level$"):
        find("binomial:binomial", "reduce")
    with pytest.raises(
        ValueError, match="collective 'scan'; choose from allreduce, reduce_scatter,"
    ):
        find("ring", "scan")


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_the_same_name_is_the_same_entry(collective, name):
    entry = find(name, collective)
    assert entry == find(name, collective)
    assert hash(entry) == hash(find(name, collective))  # plans and programs are found by it


@each(ENTRIES)
def test_an_entry_is_placed_only_where_that_changes_it(entry):
    kind = COLLECTIVES[entry.collective]
    assert entry.on() is entry
    assert (entry.on(nodes_of(2, 2)) is entry) is not entry.hierarchical
    given = {"root": 2} if kind.rooted else {"counts": (1, 2, 3)} if kind.split else {}
    placed = entry.on(**given)
    assert placed.on(**given) is placed
    assert (placed is entry) is not given
    assert (placed.root, placed.counts) == (given.get("root", 0), given.get("counts"))
    # Placed again, it is what it was.
    assert placed.on().schedule(1, 3, 6) == entry.schedule(1, 3, 6)
    on_nodes = entry.on(nodes_of(2, 1), **given)
    assert on_nodes.on(**given) is on_nodes


@each(ENTRIES)
def test_the_facts_of_modules_and_entries_agree(entry):
    doc = module_doc(module_of(entry))
    assert re.findall(r"^\w[^.:\n]*$", doc, re.MULTILINE) == FACTS
    assert entry.cost in " ".join(doc.split())
    assert re.search(r"(doi:|arXiv:)\S+$", entry.source).group() in doc
    reorders = "commutative operations only"
    assert entry.restrictions == ("none" if entry.ordered else reorders)
    for size in (1, 2, 3, 5, 8, 12):
        assert evaluate(entry.steps_formula, size) == entry.steps(size)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@each(ENTRIES)
def test_a_cost_formula_is_the_time_that_is_simulated(entry, nodes):
    for each_node in (1, 2, 4):
        size = nodes * each_node
        count = 64 * size
        for word in ("alpha", "beta", "gamma"):
            second = {"alpha": 0, "beta": 0, "gamma": 0} | {
                word: 1 if word == "alpha" else 1 / count
            }
            told = simulate(
                entry,
                size=size,
                count=count,
                itemsize=1,
                nodes=full_nodes(size, each_node).nodes,
                **second,
                alpha_within=second["alpha"],
                beta_within=second["beta"],
            )
            terms = {
                name: formula
                for formula, name in re.findall(r"(\S.*?) (alpha|beta|gamma)(?: \+ )?", entry.cost)
            }
            expected = evaluate(terms[word], size, nodes) if word in terms else 0
            assert told.time == pytest.approx(expected), word


@pytest.mark.parametrize("name", OTHERS)
def test_the_table_has_a_row_for_every_algorithm(name):
    lines = table(name).splitlines()
    assert [line.split("`")[1] for line in lines[2:-2]] == list(REGISTRY[name])
    assert lines[-1] == legend(name) + "."
    order = {line.split(" | ")[-1].rstrip(" |") for line in lines[2:-2]}
    assert order <= ({"rank order", "reordered"} if COLLECTIVES[name].reduces else {"-"})


def test_the_bus_bandwidth_factor_is_what_a_rank_must_send():
    for size in (1, 2, 5, 8):
        one = (size - 1) / size
        told = {name: kind.busbw_factor(size) for name, kind in COLLECTIVES.items()}
        assert told == {
            "allreduce": 2 * one,
            "reduce_scatter": one,
            "allgather": one,
            "reduce": 1,
            "broadcast": 1,
            "barrier": 0,
        }
        for name in ("ring", "circulant"):
            for collective in ("reduce_scatter", "allgather"):
                units = simulate(name, size=size, count=8 * size, collective=collective).units
                assert units == pytest.approx((one,) * size)


# The simulator.


@each(ENTRIES)
def test_the_simulator_counts_what_the_prover_sees(entry):
    kind, bytes_each = COLLECTIVES[entry.collective], 0 if entry.collective == "barrier" else 8
    topology = Topology.of_labels("abacbbcda")
    given = [{"root": root} for root in (0, 5)] if kind.rooted else [{}]
    given += [{"counts": (3, 0, 1, 4, 1, 5, 0, 2, 1)}] if kind.split else []
    for where in given:
        proof = prove(entry, 9, 17, topology, **where)
        told = simulate(entry, size=9, count=17, itemsize=8, nodes=topology.nodes, **where)
        assert (told.collective, told.root) == (entry.collective, where.get("root", 0))
        assert told.nbytes == 17 * bytes_each
        assert told.steps == proof.steps
        assert told.total_bytes == bytes_each * proof.sent
        assert sum(rank.bytes_reduced for rank in told.ranks) == 8 * proof.reduced
        assert sum(rank.messages_sent for rank in told.ranks) == proof.messages


def test_a_barrier_needs_no_vector():
    told = simulate("dissemination", size=5, collective="barrier", alpha=1)
    assert (told.nbytes, told.total_bytes, told.time) == (0, 0, 3)
    assert str(told).startswith("barrier, dissemination: 5 ranks, 0 bytes, 3 steps")


def test_counts_tell_how_long_the_vector_is():
    told = simulate("ring", size=3, counts=[1, 0, 4], collective="allgather", itemsize=2)
    assert (told.nbytes, told.total_bytes) == (10, 20)
    with pytest.raises(TypeError, match="a number in counts must be an integer; got 'a'"):
        simulate("ring", size=3, counts="a", collective="allgather")


def test_the_text_says_who_the_root_is():
    for collective, head in (
        ("reduce", "reduce to rank 2"),
        ("broadcast", "broadcast from rank 2"),
    ):
        told = simulate("binomial", size=4, count=8, collective=collective, root=2)
        assert str(told).startswith(f"{head}, binomial: 4 ranks, 32 bytes, 2 steps, ")


# Pictures.


def plans(name, collective, count=5, **placed):
    entry = find(name, collective).on(**placed)
    return [list(entry.schedule(rank, 5, count).steps) for rank in range(5)]


def test_binomial_is_what_its_picture_shows():
    steps = plans("binomial", "reduce", root=1)
    *_, last = lines = picture("binomial").splitlines()
    for line in lines:
        for one, other in follow(arrows_of(line), steps):
            assert one.action.reduces
            assert other.action.reduces
    assert steps == [[]] * 5
    told = prove("binomial", 5, 1, collective="reduce", root=1).expression(0)
    assert last.endswith(f"1: {told}")
    # Broadcast: the same lines, backwards and turned around.
    steps = plans("binomial", "broadcast", root=1)
    for line in reversed(lines):
        arrows = [
            (left, {"-->": "<--", "<--": "-->"}[arrow], right)
            for left, arrow, right in arrows_of(line)
        ]
        assert all(one.action is Action.COPY for one, _ in follow(arrows, steps))
    assert steps == [[]] * 5


@pytest.mark.parametrize(
    ("name", "collective"),
    [("reduce_scatter_gather", "reduce"), ("scatter_allgather", "broadcast")],
)
def test_the_trees_of_chunks_are_what_their_pictures_show(name, collective):
    rows = re.findall(r"^ +(\d) +(\d) +(\d(?: \d)*)$", picture(name), re.MULTILINE)
    steps = plans(name, collective, root=1)
    other = find("circulant", "reduce_scatter" if collective == "reduce" else "allgather")
    for rank in range(5):  # without the phase of circulant
        phase = list(other.schedule(rank, 5, 5).steps)
        if collective == "broadcast":  # in which nobody sends to the root
            phase = [without(1, rank, step) for step in phase]
        part = slice(0, len(phase)) if collective == "reduce" else slice(-len(phase), None)
        assert steps[rank][part] == phase
        del steps[rank][part]
    for source, target, shown in rows:
        sent, received = steps[int(source)].pop(0), steps[int(target)].pop(0)
        assert (sent.send_to, received.receive_from) == (int(target), int(source))
        assert elements(sent.send) == [int(chunk) for chunk in shown.split()]
    assert steps == [[]] * 5


def without(root, rank, step):
    """Return a step without what is sent to the root."""
    if rank == root:
        return step._replace(receive_from=None, receive=())
    return step._replace(send_to=None, send=()) if step.send_to == root else step


def elements(ranges):
    return [element for part in ranges for element in range(part.start, part.stop)]


def test_dissemination_is_what_its_picture_shows():
    rows = re.findall(
        r"^ +(\d) +r\+(\d) +(r\S*(?: r\S*)*)$", picture("dissemination"), re.MULTILINE
    )
    for rank, plan in enumerate(plans("dissemination", "barrier")):
        for (_, distance, relative), step in zip(rows, plan, strict=True):
            assert step.send_to == (rank + int(distance)) % 5
            tokens = [(rank + int(text[1:] or 0)) % 5 for text in relative.split()]
            assert elements(step.send) == tokens


def test_the_two_levels_are_what_their_pictures_show():
    topology = Topology((0, 0, 0, 1, 1))
    steps = plans("two_level:binomial", "reduce", topology=topology, root=1)
    *_, last = lines = picture("two_level_rooted").splitlines()
    for line in lines:
        assert all(one.action.reduces for one, _ in follow(arrows_of(line), steps))
    assert steps == [[]] * 5
    proof = prove("two_level:binomial", 5, 1, topology, collective="reduce", root=1)
    assert last.endswith(f"1: {proof.expression(0)}")

    steps = plans("two_level", "allgather", topology=topology)
    for line in picture("two_level_split").splitlines():
        arrows = arrows_of(line)
        shown = re.split(r" {2,}", line.strip())[1 + len(arrows) :]
        moved = []
        for (_, arrow, _), (one, other) in zip(arrows, follow(arrows, steps), strict=True):
            moved += [one.receive] if arrow != "-->" else []
            moved += [other.receive] if arrow != "<--" else []
        assert [" ".join(map(str, elements(ranges))) for ranges in moved] == shown
    assert steps == [[]] * 5


# What schedules are cut by.


def test_chunks_around_the_end_are_two_ranges():
    chunk = chunks_of((2, 0, 3, 1))
    assert [part.count for part in chunk] == [2, 0, 3, 1]
    assert around(chunk, 1, 3) == [Range(2, 5)]
    assert around(chunk, 3, 6) == [Range(5, 6), Range(0, 2)]
    assert around(chunk, -1, 0) == [Range(5, 6)]
    assert elements(around(chunks(7, 3), 2, 5)) == [5, 6, 0, 1, 2, 3, 4]
    assert joined([Range(0, 2), Range(2, 2), Range(2, 5), Range(7, 8)]) == [
        Range(0, 5),
        Range(7, 8),
    ]


def test_messages_of_interleaved_nodes_have_as_few_ranges_as_they_can():
    proof = prove("two_level", 8, 8, in_turns(8, 2), collective="allgather")
    assert proof.most_ranges == 4  # a node's own chunks
    proof = prove("two_level", 8, 8, nodes_of(4, 4), collective="allgather")
    assert proof.most_ranges == 1

"""Schedules as data: pictures, formulas, and what the registry says about them."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from formulas import evaluate
from pictures import FACTS, arrows_of, follow, module_doc, picture

from hpccoll.algorithms import ALGORITHMS, algorithms, find, table
from hpccoll.algorithms.flat import FLAT
from hpccoll.algorithms.hierarchical import HIERARCHICAL
from hpccoll.chunks import Range
from hpccoll.schedule import Action, Fold, ScheduleBuilder
from hpccoll.topology import Topology

NAMES = tuple(ALGORITHMS)
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 33)


def schedules(name, size, count, topology=None):
    algorithm = find(name).on(topology)
    return [algorithm.schedule(rank, size, count) for rank in range(size)]


# What every schedule has in common.


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_do_is_no_step(name):
    assert schedules(name, 1, 100)[0].steps == ()
    assert all(schedule.steps == () for schedule in schedules(name, 5, 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_schedules_are_data_and_say_whose_they_are(name, size):
    for rank, schedule in enumerate(schedules(name, size, 3 * size + 1)):
        assert (schedule.rank, schedule.size, schedule.count) == (rank, size, 3 * size + 1)
        assert schedule == ALGORITHMS[name].schedule(rank, size, 3 * size + 1)


def most_ranges(name, size):
    if name == "multi_leader":  # every second slice
        return max(1, Fold(size).power // 2)
    return 2 if name == "circulant" else 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 4, 33, 100])
def test_messages_hold_elements_in_few_ranges(name, size, count):
    for schedule in schedules(name, size, count):
        for step in schedule.steps:
            for peer, parts in ((step.send_to, step.send), (step.receive_from, step.receive)):
                assert (peer is None) == (parts == ())
                assert all(0 <= part.start < part.stop <= count for part in parts)
                assert len(parts) <= most_ranges(name, size)
                assert all(before.stop != after.start for before, after in pairwise(parts))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_partial_values_travel_before_finished_ones(name, size):
    for schedule in schedules(name, size, 100):
        kinds = [step.action.reduces for step in schedule.steps]
        assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_the_steps_formula_is_what_the_rank_with_most_steps_takes(name, size):
    most = max(len(schedule.steps) for schedule in schedules(name, size, size))
    assert most == ALGORITHMS[name].steps(size)
    assert most == evaluate(ALGORITHMS[name].steps_formula, size)


# Each algorithm's picture in its module, against its schedule.


@pytest.mark.parametrize("name", NAMES)
def test_every_module_opens_with_the_same_facts_in_the_same_order(name):
    facts = re.findall(r"^\w[^.:\n]*$", module_doc(name), re.MULTILINE)
    assert facts == FACTS
    entry = ALGORITHMS[name]
    assert entry.cost in " ".join(module_doc(name).split())
    assert re.search(r"(doi:|arXiv:)\S+$", entry.source).group() in module_doc(name)


def test_naive_root_is_what_its_picture_shows():
    steps = [list(schedule.steps) for schedule in schedules("naive_root", 5, 1)]
    rows = [arrows_of(line) for line in picture("naive_root").splitlines()[1:]]
    collect, hand_out = zip(*rows, strict=True)
    assert all(one.action is Action.REDUCE_RIGHT for one, _ in follow(collect, steps))
    assert all(one.action is Action.COPY for one, _ in follow(hand_out, steps))
    assert steps == [[]] * 5


def test_ring_is_what_its_picture_shows():
    rows = re.findall(r"^ +(\d)((?: +\d){5})", picture("ring"), re.MULTILINE)
    plan = schedules("ring", 5, 5)
    assert [int(step) for step, _ in rows] == list(range(8))
    for number, (_, row) in enumerate(rows):
        for rank, chunk in enumerate(map(int, row.split())):
            step = plan[rank].steps[number]
            assert (step.send_to, step.send) == ((rank + 1) % 5, (Range(chunk, chunk + 1),))
            assert step.receive_from == (rank - 1) % 5
            assert step.action is (Action.REDUCE_LEFT if number < 4 else Action.COPY)


def test_recursive_doubling_is_what_its_picture_shows():
    steps = [list(schedule.steps) for schedule in schedules("recursive_doubling", 5, 1)]
    for line in picture("recursive_doubling").splitlines():
        for one, other in follow(arrows_of(line), steps):
            unfold = line.startswith("unfold")
            assert one.action is (Action.COPY if unfold else Action.REDUCE_RIGHT)
            if "<->" in line:
                assert other.action is Action.REDUCE_LEFT
    assert steps == [[]] * 5


@pytest.mark.parametrize("name", ["rabenseifner", "multi_leader", "two_level"])
def test_halves_of_halves_are_shared_as_the_picture_shows(name):
    letters = "ab" if name == "two_level" else "abcd"
    topology = Topology((0, 0, 0, 1, 1))
    steps = [list(plan.steps) for plan in schedules(name, 5, 8, topology)]
    parts = {}
    for line in picture(name).splitlines():
        pairs = arrows_of(line)
        moved = {}
        for (left, _, right), (one, other) in zip(pairs, follow(pairs, steps), strict=True):
            moved[left], moved[right] = one, other
        for ranks, shown in re.findall(r"((?:\d, )*\d)(?: keep|:) ([a-d]+)", line):
            for rank in ranks.split(", "):
                step = moved[rank]
                held = step.receive if step.action.reduces else (*step.receive, *step.send)
                elements = {e for part in held for e in range(part.start, part.stop)}
                parts[rank] = "".join(sorted({letters[e * len(letters) // 8] for e in elements}))
                assert parts[rank] == shown
    assert parts == dict.fromkeys("0234", letters)
    assert steps == [[]] * 5


def test_circulant_is_what_its_picture_shows():
    rows = re.findall(r"^ +(\d) +r([+-]\d) +(r\S*(?: r\S*)*)", picture("circulant"), re.MULTILINE)
    assert [int(step) for step, _, _ in rows] == list(range(6))
    for rank, plan in enumerate(schedules("circulant", 5, 5)):
        for (_, distance, relative), step in zip(rows, plan.steps, strict=True):
            assert step.send_to == (rank + int(distance)) % 5
            assert step.receive_from == (rank - int(distance)) % 5
            chunks = [(rank + int(text[1:] or 0)) % 5 for text in relative.split()]
            assert [e for part in step.send for e in range(part.start, part.stop)] == chunks
            assert step.action.reduces == (int(distance) > 0)


# What schedules are made with.


def test_the_builder_drops_what_is_empty():
    plan = ScheduleBuilder(0, 2, 4)
    plan.send(1, [Range(2, 2)], Action.COPY)
    plan.exchange(1, [Range(0, 0), Range(1, 2)], 1, [Range(3, 3)], Action.COPY)
    (step,) = plan.finish().steps
    assert (step.send_to, step.send) == (1, (Range(1, 2),))
    assert (step.receive_from, step.receive) == (None, ())


@pytest.mark.parametrize("size", range(1, 34))
def test_folding_leaves_a_power_of_two_of_ranks_in_order(size):
    fold = Fold(size)
    extras = [rank for rank in range(size) if fold.is_extra(rank)]
    assert [rank for rank in range(size) if fold.is_proxy(rank)] == [e - 1 for e in extras]
    remaining = [rank for rank in range(size) if rank not in extras]
    assert len(remaining) == fold.power == 2**fold.levels <= size < 2 * fold.power
    for new, rank in enumerate(remaining):
        assert (fold.number(rank), fold.rank(new)) == (new, rank)
        partners = [remaining[new ^ 2**level] for level in range(fold.levels)]
        assert list(fold.partners(rank)) == partners


# The registry.


def test_the_registry_is_in_teaching_order():
    assert [entry.name for entry in algorithms()] == [
        "naive_root",
        "ring",
        "recursive_doubling",
        "rabenseifner",
        "circulant",
        "two_level",
        "multi_leader",
    ]
    assert all(find(name) is ALGORITHMS[name] for name in NAMES)
    with pytest.raises(ValueError, match=r"collective 'scan'; choose from allreduce"):
        algorithms("scan")


def test_an_unknown_name_is_refused_with_all_choices():
    flat = "naive_root, ring, recursive_doubling, rabenseifner, circulant"
    choices = f"{flat}, two_level, multi_leader"
    with pytest.raises(ValueError, match=f"unknown algorithm 'rings'; choose from auto, {choices}"):
        find("rings")
    with pytest.raises(ValueError, match=f"unknown algorithm 'rings'; choose from {choices}"):
        find("rings", auto=False)
    with pytest.raises(ValueError, match=r"unknown algorithm \['ring'\]"):
        find(["ring"])
    with pytest.raises(
        ValueError, match=f"'two_level:': network algorithm ''; choose from {flat}$"
    ):
        find("two_level:")
    with pytest.raises(ValueError, match="'multi_leader:two_level': network algorithm 'two_level'"):
        find("multi_leader:two_level")
    with pytest.raises(ValueError, match=r"ring is flat .* do are two_level, multi_leader$"):
        find("ring:ring")


@pytest.mark.parametrize("network", FLAT)
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_a_hierarchical_algorithm_takes_a_flat_one_for_its_network(name, network):
    entry = find(f"{name}:{network}")
    assert (entry.name, entry.network) == (f"{name}:{network}", network)
    assert entry == find(entry.name)
    assert hash(entry) == hash(find(entry.name))  # plans and programs are found by it
    assert entry.one_tree == FLAT[network].one_tree
    assert entry.hierarchical


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_that_reorder_operands_say_so(name):
    reorders = "commutative operations only"
    assert ALGORITHMS[name].restrictions == ("none" if ALGORITHMS[name].ordered else reorders)


def test_the_readme_has_the_table():
    readme = Path(__file__).parents[2] / "README.md"
    assert table() in readme.read_text(encoding="utf-8")


def test_the_table_has_a_row_for_every_algorithm():
    lines = table().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert [row.split("`")[1] for row in rows[2:]] == list(NAMES)
    assert lines[-1].startswith("p ranks, a vector of n bytes; m = ")

"""What the simulator counts and predicts, and that docs/algorithms.md says the same."""

import functools
import importlib
import math
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from formulas import coefficients

from hpccoll.algorithms import ALGORITHMS, COLLECTIVES, Share, table
from hpccoll.algorithms.flat import FLAT
from hpccoll.algorithms.hierarchical import HIERARCHICAL
from hpccoll.prover import prove
from hpccoll.schedule import Fold
from hpccoll.simulator import (
    ALPHA,
    ALPHA_WITHIN,
    BETA,
    BETA_WITHIN,
    GAMMA,
    separate_hub_units,
    simulate,
)
from hpccoll.topology import Topology

NAMES = tuple(ALGORITHMS)
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 33)
DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"


# Worked figures of the field.


def test_a_ring_sends_less_than_two_vectors_per_rank():
    assert simulate("ring", size=4, count=400).units == (1.5,) * 4
    assert simulate("ring", size=100, count=400).units == (1.98,) * 100
    for size in SIZES:
        units = simulate("ring", size=size, count=size * 10).units
        assert units == pytest.approx((2 * (size - 1) / size,) * size)
        assert max(units) < 2


def test_a_hub_handles_vectors_in_proportion_to_its_workers():
    assert separate_hub_units(100) == 200
    assert separate_hub_units(16) == 32
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        separate_hub_units(0)


@pytest.mark.parametrize("size", SIZES)
def test_a_root_handles_its_own_vector_without_sending_it(size):
    simulation = simulate("naive_root", size=size, nbytes=4000)
    assert simulation.units_handled[0] == 2 * (size - 1)
    assert simulation.units[1:] == (1.0,) * (size - 1)
    assert simulation.busiest.rank == 0


# What is counted.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_counts_what_the_prover_sees(name, size):
    for count in (0, 1, size, 5 * size + 3):
        proof = prove(name, size, count)
        simulation = simulate(name, size=size, count=count, itemsize=8)
        ranks = simulation.ranks
        assert [rank.rank for rank in ranks] == list(range(size))
        assert simulation.nbytes == 8 * count
        assert simulation.steps == proof.steps
        assert simulation.total_bytes == 8 * proof.sent
        assert sum(rank.bytes_received for rank in ranks) == 8 * proof.sent
        assert sum(rank.bytes_reduced for rank in ranks) == 8 * proof.reduced
        assert sum(rank.messages_sent for rank in ranks) == proof.messages
        assert sum(rank.messages_received for rank in ranks) == proof.messages
        assert max(rank.scratch_bytes for rank in ranks) == 8 * proof.scratch


@pytest.mark.parametrize("size", [5, 12])
def test_ring_and_circulant_load_all_ranks_alike(size):
    for name in ("ring", "circulant"):
        ranks = simulate(name, size=size, count=120).ranks
        assert len({replace_rank(rank) for rank in ranks}) == 1


def replace_rank(traffic):
    return replace(traffic, rank=0)


def test_one_rank_or_no_elements_is_no_work():
    for simulation in (simulate("ring", size=1, count=9), simulate("ring", size=3, nbytes=0)):
        assert simulation.time == 0
        assert simulation.total_bytes == simulation.steps == 0
        assert set(simulation.units) == {0.0}


def test_half_types_send_partial_sums_in_float32():
    half = simulate("ring", size=4, count=400, itemsize=2, partial_itemsize=4)
    assert half.nbytes == 800
    assert {rank.bytes_sent for rank in half.ranks} == {3 * 100 * 4 + 3 * 100 * 2}
    assert {rank.bytes_reduced for rank in half.ranks} == {3 * 100 * 4}
    assert {rank.scratch_bytes for rank in half.ranks} == {100 * 4}
    assert half.units == (2.25,) * 4


def test_numbers_may_be_numpy_integers():
    simulation = simulate("ring", size=np.int64(4), nbytes=np.int32(1600))
    assert simulation == simulate("ring", size=4, count=400)
    assert type(simulation.ranks[0].bytes_sent) is int
    assert type(simulation.time) is float


# What is predicted.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_predicted_times_are_those_of_the_cost_formulas(name, size):
    count = size * Fold(size).power  # so that all chunks and windows are equal
    units = {"size": size, "count": count, "itemsize": 1, "alpha": 0, "beta": 0, "gamma": 0}
    expected = coefficients(ALGORITHMS[name].cost, size)
    for parameter, vectors, coefficient in zip(
        ("alpha", "beta", "gamma"), (1, count, count), expected, strict=True
    ):
        time = simulate(name, **{**units, parameter: 1.0}).time
        assert time / vectors == pytest.approx(coefficient)


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (3, 3), (4, 2), (5, 1), (8, 5)])
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_predicted_times_are_those_of_the_cost_formulas_on_nodes(name, nodes, each):
    size, count = nodes * each, nodes * Fold(nodes).power * Fold(each).power
    where = {"size": size, "nodes": ",".join([str(each)] * nodes), "count": count, "itemsize": 1}
    expected = coefficients(ALGORITHMS[name].cost, size, nodes)
    for parameters, vectors, coefficient in zip(
        (("alpha", "alpha_within"), ("beta", "beta_within"), ("gamma",)),
        (1, count, count),
        expected,
        strict=True,
    ):
        seconds = dict.fromkeys(("alpha", "beta", "gamma", "alpha_within", "beta_within"), 0.0)
        seconds |= dict.fromkeys(parameters, 1.0)
        time = simulate(name, **where, **seconds).time
        assert time / vectors == pytest.approx(coefficient)
    assert ALGORITHMS[name].on(simulate(name, **where).topology).steps(size) == expected[0]


def test_messages_of_both_directions_overlap():
    simulation = simulate("recursive_doubling", size=2, nbytes=1000, alpha=1, beta=0.1, gamma=0.01)
    assert simulation.time == pytest.approx(1 + 0.1 * 1000 + 0.01 * 1000)


def test_defaults_are_the_named_constants():
    simulation = simulate("ring", size=2, nbytes=1000)
    assert (simulation.alpha, simulation.beta, simulation.gamma) == (ALPHA, BETA, GAMMA)
    assert simulation.time == pytest.approx(2 * (ALPHA + 500 * BETA) + 500 * GAMMA)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda steps, rank: steps[1:] if rank == 0 else steps, "do not pair up"),
        (lambda steps, rank: [steps[1], steps[0], *steps[2:]] if rank else steps, "do not pair"),
        (lambda steps, rank: split(steps), "deadlock"),
    ],
)
def test_broken_schedules_are_refused(change, text):
    ring = ALGORITHMS["ring"]

    def schedule(rank, size, count):
        plan = ring.schedule(rank, size, count)
        return replace(plan, steps=tuple(change(list(plan.steps), rank)))

    with pytest.raises(ValueError, match=text):
        simulate(replace(ring, schedule=schedule), size=3, count=4)


def split(steps):
    for step in steps:
        yield step._replace(receive_from=None, receive=())
        yield step._replace(send_to=None, send=())


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"size": 4}, TypeError, "exactly one of count and nbytes; got neither"),
        ({"size": 4, "count": 1, "nbytes": 4}, TypeError, "got count=1 and nbytes=4"),
        ({"size": 0, "count": 1}, ValueError, "size must be at least 1; got 0"),
        ({"size": 4, "count": -1}, ValueError, "count must be at least 0; got -1"),
        ({"size": 4, "nbytes": -4}, ValueError, "nbytes must be at least 0; got -4"),
        ({"size": 4, "nbytes": 6}, ValueError, "nbytes=6 is no multiple of itemsize=4"),
        ({"size": 4, "count": 1.5}, TypeError, "count must be an integer; got 1.5 of type float"),
        ({"size": "4", "count": 1}, TypeError, "size must be an integer; got '4' of type str"),
        ({"size": 4, "count": 1, "itemsize": 0}, ValueError, "itemsize must be at least 1"),
        ({"size": 4, "count": 1, "partial_itemsize": 0}, ValueError, "partial_itemsize must be"),
        ({"size": 4, "count": 1, "beta": -1.0}, ValueError, "beta must be a finite .* got -1.0"),
        ({"size": 4, "count": 1, "alpha": math.nan}, ValueError, "alpha must be a finite"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        simulate("ring", **arguments)


@pytest.mark.parametrize("name", ["auto", "rings", None])
def test_an_unknown_algorithm_is_refused(name):
    with pytest.raises(ValueError, match=f"unknown algorithm {name!r}; choose from naive_root"):
        simulate(name, size=4, count=1)


# Nodes.


@pytest.mark.parametrize("name", NAMES)
def test_traffic_is_split_into_within_and_between_nodes(name):
    # Told from the schedule, message by message.
    topology = Topology((0, 0, 1, 0, 1, 2))
    plans = [ALGORITHMS[name].on(topology).schedule(rank, 6, 100) for rank in range(6)]
    within = [
        sum(
            4 * part.count
            for step in plan.steps
            if step.send and topology.nodes[step.send_to] == topology.nodes[plan.rank]
            for part in step.send
        )
        for plan in plans
    ]
    simulation = simulate(name, size=6, count=100, nodes=topology.nodes)
    assert [rank.bytes_sent_within for rank in simulation.ranks] == within
    assert simulation.total_bytes_within == sum(within) > 0
    assert simulation.total_bytes_between > 0
    assert simulation.total_bytes == simulation.total_bytes_within + simulation.total_bytes_between


@pytest.mark.parametrize("name", NAMES)
def test_without_nodes_a_flat_algorithm_has_none_and_the_others_have_one(name):
    simulation = simulate(name, size=6, count=100)
    one = simulate(name, size=6, count=100, nodes="6", alpha_within=ALPHA, beta_within=BETA)
    assert simulation.time == one.time
    hierarchical = ALGORITHMS[name].hierarchical
    assert simulation.total_bytes_between == (0 if hierarchical else simulation.total_bytes)
    assert one.total_bytes_between == 0
    assert simulation.topology == (Topology.one_node(6) if hierarchical else None)


def test_nodes_send_no_more_than_they_must():
    # 2(N-1)/N of a vector per node, and for any flat algorithm on ranks in turn much more.
    for nodes, each in ((2, 4), (3, 3), (4, 8)):
        where = {"size": nodes * each, "count": 96 * nodes, "itemsize": 1}
        where["nodes"] = ",".join([str(each)] * nodes)
        for name in HIERARCHICAL:
            simulation = simulate(name, **where)
            assert simulation.total_bytes_between == 2 * (nodes - 1) * simulation.nbytes


def test_messages_within_a_node_take_their_own_time():
    figures = {"alpha": 5, "beta": 1, "gamma": 0, "alpha_within": 3, "beta_within": 0.5}
    pairs = {"1,1": 5 + 100, "2": 3 + 50}
    for nodes, time in pairs.items():
        where = {"size": 2, "nodes": nodes, "count": 100, "itemsize": 1}
        assert simulate("recursive_doubling", **where, **figures).time == time
    simulation = simulate("ring", size=4, count=4, nodes="2,2")
    assert (simulation.alpha_within, simulation.beta_within) == (ALPHA_WITHIN, BETA_WITHIN)
    # Of a step that sends within and receives from another node, the longer one counts.
    assert simulation.time == pytest.approx(6 * (ALPHA + 4 * BETA) + 3 * 4 * GAMMA)


@pytest.mark.parametrize(
    ("nodes", "error", "text"),
    [
        ("3,2", ValueError, "nodes is '3,2'; wanted, for 4 ranks, how many"),
        ([0, 1, 2], ValueError, "nodes must have a number for each of 4 ranks; got 3"),
        ([0, 1, 2, -1], ValueError, "a number in nodes must be at least 0; got -1"),
        ([0, 1, 2, "a"], TypeError, "a number in nodes must be an integer; got 'a'"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(nodes, error, text):
    for name in ("ring", "multi_leader"):
        with pytest.raises(error, match=text):
            simulate(name, size=4, count=4, nodes=nodes)


def test_the_table_shows_the_split():
    text = str(simulate("multi_leader:ring", size=4, count=4, nodes=[5, 7, 5, 7]))
    head, split, *_, columns, _, _, _, last = text.splitlines()
    assert head.startswith("multi_leader:ring: 4 ranks, 16 bytes")
    assert split == "2 nodes of 2 ranks: 64 bytes sent within nodes, 32 between them"
    assert re.split("  +", columns)[3:6] == ["sent (B)", "within (B)", "between (B)"]
    assert last.split()[3:6] == ["24", "16", "8"]
    assert "within" not in str(simulate("ring", size=4, count=4))


# What it looks like.


def test_many_ranks_are_abbreviated():
    lines = str(simulate("ring", size=100, nbytes=4000)).splitlines()
    assert [line.split()[0] for line in lines[3:]] == [*"01234567", "...", "98", "99"]
    lines = str(simulate("ring", size=12, nbytes=4000)).splitlines()
    assert [int(line.split()[0]) for line in lines[3:]] == list(range(12))


def test_the_busiest_rank_is_shown():
    shifted = ALGORITHMS["naive_root"]

    def root_at_50(rank, size, count):
        names = {0: 50, 50: 0}
        plan = shifted.schedule(names.get(rank, rank), size, count)
        steps = [
            step._replace(
                send_to=names.get(step.send_to, step.send_to),
                receive_from=names.get(step.receive_from, step.receive_from),
            )
            for step in plan.steps
        ]
        return replace(plan, rank=rank, steps=tuple(steps))

    simulation = simulate(replace(shifted, schedule=root_at_50), size=100, count=4)
    assert simulation.busiest.rank == 50
    heads = [line.split()[0] for line in str(simulation).splitlines()[3:]]
    assert heads == [*"01234567", "...", "50", "...", "98", "99"]


# docs/algorithms.md: every figure and table in it, worked out again.


def most(name, size, attribute):
    """Return the most that a rank has of something, in vectors; chunks and windows are equal."""
    simulation = simulate(name, size=size, count=480, itemsize=1)
    return max(getattr(rank, attribute) for rank in simulation.ranks) / simulation.nbytes


def markdown(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def steps_and_units():
    return markdown(
        ["steps / units sent", *(f"p = {size}" for size in (4, 5, 8, 12))],
        [
            [
                f"`{name}`",
                *(
                    f"{simulate(name, size=size, count=480).steps} / "
                    f"{most(name, size, 'bytes_sent'):.4g}"
                    for size in (4, 5, 8, 12)
                ),
            ]
            for name in FLAT
        ],
    )


def reduced_and_scratch():
    return markdown(
        ["units reduced / scratch", *(f"p = {size}" for size in (4, 5, 8, 12))],
        [
            [
                f"`{name}`",
                *(
                    f"{most(name, size, 'bytes_reduced'):.3g} / "
                    f"{most(name, size, 'scratch_bytes'):.3g}"
                    for size in (4, 5, 8, 12)
                ),
            ]
            for name in FLAT
        ],
    )


def worked_figures():
    ring = {size: simulate("ring", size=size, count=100 * size).units[0] for size in (4, 100)}
    root = {
        size: simulate("naive_root", size=size, count=100).units_handled[0] for size in (16, 100)
    }
    return markdown(
        ["who", "what", "units"],
        [
            ["each of 4 ranks of `ring`", "sends", f"{ring[4]:g}"],
            ["each of 100 ranks of `ring`", "sends", f"{ring[100]:g}"],
            ["a hub beside 16 workers", "sends and receives", separate_hub_units(16)],
            ["a hub beside 100 workers", "sends and receives", separate_hub_units(100)],
            ["the root among 16 ranks of `naive_root`", "sends and receives", f"{root[16]:g}"],
            ["the root among 100 ranks of `naive_root`", "sends and receives", f"{root[100]:g}"],
        ],
    )


def expressions():
    def row(name):
        proof = prove(name, 5, 5)
        first, last = f"`{proof.expression(0)}`", f"`{proof.expression(4)}`"
        return [f"`{name}`", first, "the same" if first == last else last, proof.depth]

    return markdown(
        ["p = 5", "first element", "last element", "roundings"], [row(name) for name in FLAT]
    )


def predicted_times():
    sizes, lengths = (8, 12), {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "16 MiB": 16 << 20}

    def times(name):
        for size in sizes:
            for nbytes in lengths.values():
                yield f"{simulate(name, size=size, nbytes=nbytes).time * 1e6:,.0f}"

    return markdown(
        ["predicted us", *(f"p = {size}, {length}" for size in sizes for length in lengths)],
        [[f"`{name}`", *times(name)] for name in FLAT],
    )


def clusters():
    nodes = {
        "2 x 4": (8, "4,4"),
        "4 x 2": (8, "2,2,2,2"),
        "3 + 1": (4, "3,1"),
        "in turns": (8, "0,1,0,1,0,1,0,1"),
    }

    def cells(name):
        for size, text in nodes.values():
            simulation = simulate(name, size=size, nbytes=12 << 20, nodes=text)
            units = simulation.total_bytes_between / simulation.nbytes
            yield f"{units:.3g} / {simulation.time * 1e6:,.0f}"

    return markdown(["units between / us", *nodes], [[f"`{name}`", *cells(name)] for name in NAMES])


def example():
    return f"```text\n{simulate('rabenseifner', size=5, nbytes=1 << 20)}\n```"


def at_a_glance(collective="allreduce"):
    return table(collective).rstrip()


def collectives():
    texts = {
        Share.EVERYTHING: "all ranks: everything",
        Share.CHUNK: "rank r: chunk r",
        Share.ROOT: "the root: everything",
    }

    def row(kind):
        shares = [texts[kind.brings], texts[kind.ends]]
        if kind.name == "barrier":
            shares = ["rank r: word that it has come", "all ranks: that of all"]
        return [f"`{kind.name}`", kind.purpose, *shares, f"{kind.busbw_factor(8):g}"]

    heads = ["collective", "when", "brings", "ends with", "units"]
    return markdown(heads, [row(kind) for kind in COLLECTIVES.values()])


GENERATED = {
    "at a glance": at_a_glance,
    "steps and units": steps_and_units,
    "reduced and scratch": reduced_and_scratch,
    "worked figures": worked_figures,
    "expressions": expressions,
    "predicted times": predicted_times,
    "clusters": clusters,
    "example": example,
    "collectives": collectives,
    **{name: functools.partial(at_a_glance, name) for name in COLLECTIVES if name != "allreduce"},
}


def section_of_docs(name):
    text = DOCS.read_text(encoding="utf-8")
    return text.split(f"<!-- {name} -->\n")[1].split("\n<!-- end -->")[0]


@pytest.mark.parametrize("name", GENERATED)
def test_tables_in_the_docs_are_what_the_code_says(name):
    assert section_of_docs(name) == GENERATED[name]()


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_show_each_algorithm_as_its_module_does(name):
    text = DOCS.read_text(encoding="utf-8")
    section = text.split(f"\n### {name}\n")[1].split("\n### ")[0].split("\n## ")[0]
    doc = importlib.import_module(f"hpccoll.algorithms.{name}").__doc__
    picture = re.split(r"\n\n(?=\w)", doc.split("::\n\n")[1])[0]
    assert textwrap.dedent(picture).strip("\n") in section
    assert f"`{ALGORITHMS[name].cost}`" in " ".join(section.split())
    identifier = re.search(r"(?:doi:|arXiv:)(\S+)$", ALGORITHMS[name].source).group(1)
    assert identifier in section


def test_all_tables_in_the_docs_are_generated():
    text = DOCS.read_text(encoding="utf-8")
    assert text.count("<!-- end -->") == len(GENERATED)
    rest = re.sub(r"<!-- (?!end)[^\n]* -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
    words = rest.split("## Words")[1].split("\n## ")[0]
    assert [line for line in rest.splitlines() if line.startswith("|")] == [
        line for line in words.splitlines() if line.startswith("|")
    ]


def test_the_example_in_the_docs_runs(capsys):
    text = DOCS.read_text(encoding="utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.endswith("(((x1 + x2) + x3) + x4) + x0\n")


def test_the_constants_in_the_docs_are_the_simulator_s():
    text = DOCS.read_text(encoding="utf-8")
    assert f"{ALPHA * 1e6:g} us" in text
    assert f"{1 / BETA / 1e9:g} GB/s for messages" in text
    assert f"{ALPHA_WITHIN * 1e6:g} us and {1 / BETA_WITHIN / 1e9:g} GB/s within" in text
    assert f"{1 / GAMMA / 1e9:g} GB/s for reducing" in text

"""The prover accepts every algorithm of the registry, and rejects what is broken."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import ALGORITHMS
from hpccoll.chunks import Range
from hpccoll.prover import ProofError, prove
from hpccoll.schedule import Action, Schedule, ScheduleBuilder, Step
from hpccoll.topology import Topology

NAMES = tuple(ALGORITHMS)
PRIME = 257


def rank_order(size):
    """Return the expression of a sum from left to right."""
    text = "x0"
    for rank in range(1, size):
        text = f"{text} + x{rank}" if rank == 1 else f"({text}) + x{rank}"
    return text


# The proofs.


@pytest.mark.parametrize("size", [*range(1, 34), 64, 100])
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_is_right_for_any_size_and_count(name, size):
    for count in (0, 1, size // 2, size - 1, size, size + 1, 2 * size + 1, 5 * size + 3, PRIME):
        proof = prove(name, size, count)
        assert (proof.algorithm, proof.size, proof.count) == (name, size, count)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(NAMES), st.integers(1, 40), st.integers(0, 300))
def test_random_sizes_and_counts(name, size, count):
    prove(name, size, count)


@pytest.mark.parametrize("size", [3, 5, 6, 12, 33])
@pytest.mark.parametrize("name", NAMES)
def test_the_registry_does_not_promise_too_little(name, size):
    entry = ALGORITHMS[name].on(Topology.of_labels(rank % 3 for rank in range(size)))
    if not entry.one_tree:
        assert prove(entry, size, PRIME).trees > 1
    if not entry.ordered:
        with pytest.raises(ProofError, match="leaves rank order"):
            prove(replace(entry, ordered=True), size, PRIME)


def test_what_a_proof_says():
    proof = prove("circulant", 5, 10)
    assert (proof.steps, proof.messages, proof.sent, proof.reduced) == (6, 30, 80, 40)
    assert (proof.scratch, proof.most_ranges, proof.trees, proof.depth) == (4, 2, 5, 3)
    assert "Expressions" not in repr(proof)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 100])
def test_naive_root_adds_from_left_to_right(size):
    proof = prove("naive_root", size, 3)
    assert proof.expression(2) == rank_order(size)
    assert proof.depth == size - 1


def test_each_chunk_of_a_ring_starts_with_another_rank():
    proof = prove("ring", 4, 4)
    assert [proof.expression(element) for element in range(4)] == [
        "((x1 + x2) + x3) + x0",
        "((x2 + x3) + x0) + x1",
        "((x3 + x0) + x1) + x2",
        "((x0 + x1) + x2) + x3",
    ]


@pytest.mark.parametrize("size", [*range(1, 18), 32, 33, 100])
def test_recursive_doubling_and_rabenseifner_give_the_same_bits(size):
    one, other = prove("recursive_doubling", size, 257), prove("rabenseifner", size, 257)
    assert one.expression(0) == other.expression(0)
    assert one.trees == other.trees == 1


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_circulant_has_one_expression_where_size_is_a_power_of_two(size):
    assert prove("circulant", size, PRIME).trees == 1


def test_an_expression_needs_an_element():
    with pytest.raises(IndexError, match="element 4 is outside 0 to 3"):
        prove("ring", 4, 4).expression(4)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="unknown algorithm 'auto'; choose from naive_root"):
        prove("auto", 4, 4)


@pytest.mark.parametrize(("size", "count"), [(0, 1), (-1, 1), (1, -1)])
def test_sizes_and_counts_that_make_no_sense_are_refused(size, count):
    with pytest.raises(ValueError, match=f"got {size} and {count}$"):
        prove("ring", size, count)


# Mutants: each breaks one thing.


def changed(name, change):
    """Return an algorithm whose schedules are `change`d: from the steps and the rank to steps."""
    entry = ALGORITHMS[name]

    def schedule(rank, size, count):
        plan = entry.schedule(rank, size, count)
        return replace(plan, steps=tuple(change(list(plan.steps), rank)))

    return replace(entry, schedule=schedule)


def on_rank(wanted, change):
    """Return a change that applies to one rank only."""
    return lambda steps, rank: change(steps) if rank == wanted else steps


def rejects(algorithm, size, count, text):
    with pytest.raises(ProofError, match=text) as caught:
        prove(algorithm, size, count)
    assert str(caught.value).startswith(f"{algorithm.name}, size {size}, count {count}: ")


@pytest.mark.parametrize("name", NAMES)
def test_a_dropped_step(name):
    mutant = changed(name, on_rank(0, lambda steps: steps[:-1]))
    rejects(mutant, 4, 8, "deadlock: .* waits to .* rank 0, and rank 0 has finished")


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_all_ranks_drop(name):
    mutant = changed(name, lambda steps, rank: steps[1:])
    rejects(mutant, 8, 16, "deadlock|expects|leaves rank order|without the contribution of rank")


def test_a_dropped_copy():
    mutant = changed("ring", lambda steps, rank: steps[:-1])
    rejects(mutant, 4, 8, "rank 0 ends with elements 2 to 3 without the contribution of rank 1$")


def swapped_peer(name):
    return changed(name, on_rank(0, lambda steps: [steps[0]._replace(send_to=2), *steps[1:]]))


def test_a_swapped_peer():
    rejects(
        swapped_peer("ring"),
        4,
        8,
        "deadlock: rank 0 at step 0 waits to send to rank 2, "
        "rank 2 at step 1 waits to receive from rank 1, "
        "rank 1 at step 0 waits to receive from rank 0$",
    )
    # Here the message finds a receive, though a wrong one.
    text = r"rank 2 at step 1 leaves rank order in elements 0 to 7: x0 \+ \(x2 \+ x3\)"
    rejects(swapped_peer("recursive_doubling"), 4, 8, text)


def test_a_doubled_contribution():
    mutant = changed("recursive_doubling", lambda steps, rank: [steps[0], *steps])
    rejects(
        mutant,
        2,
        8,
        r"rank \d at step 1 would count the contribution of ranks 0, 1 twice in elements 0 to 7",
    )


def test_the_wrong_side():
    flip = {Action.REDUCE_LEFT: Action.REDUCE_RIGHT, Action.REDUCE_RIGHT: Action.REDUCE_LEFT}
    mutant = changed(
        "recursive_doubling",
        on_rank(1, lambda steps: [steps[0]._replace(action=flip[steps[0].action]), *steps[1:]]),
    )
    rejects(mutant, 4, 8, r"rank 1 at step 0 leaves rank order in elements 0 to 7: x1 \+ x0")
    # Swapped operands change no bits, so without the promise of rank order it is right.
    prove(replace(mutant, ordered=False), 4, 8)


def test_a_copy_that_overlaps_a_send():
    mutant = changed(
        "ring", on_rank(2, lambda steps: [*steps[:-1], steps[-1]._replace(send=steps[-1].receive)])
    )
    rejects(mutant, 4, 8, "rank 2 at step 5 sends elements . to . and copies into elements . to .")


def test_a_circle_of_ranks_that_all_send_first():
    def send_first(steps, rank):
        for step in steps:
            yield step._replace(receive_from=None, receive=())
            yield step._replace(send_to=None, send=())

    rejects(
        changed("ring", send_first),
        3,
        6,
        "deadlock: rank 0 at step 0 waits to send to rank 1, "
        "rank 1 at step 0 waits to send to rank 2, rank 2 at step 0 waits to send to rank 0$",
    )


def test_a_wait_that_leads_into_a_circle():
    def all_wait(rank, size, count):
        plan = ScheduleBuilder(rank, size, count)
        plan.receive((2, 2, 1)[rank], [Range(0, count)], Action.REDUCE_LEFT)
        return plan.finish()

    rejects(
        replace(ALGORITHMS["ring"], schedule=all_wait),
        3,
        6,
        "deadlock: rank 2 at step 0 waits to receive from rank 1, "
        "rank 1 at step 0 waits to receive from rank 2$",
    )


def swing(rank, size, count):
    """Exchange whole vectors with partners at distance 1, -1, 3, -5, ..., odd ranks reversed.

    Every rank gets every contribution once, but by other expressions than its neighbours: groups
    of partners do not nest. Published for large and small vectors; see arXiv:2401.09356.
    """
    plan = ScheduleBuilder(rank, size, count)
    whole = [Range(0, count)]
    for step in range(size.bit_length() - 1):
        distance = (1 - (-2) ** (step + 1)) // 3
        partner = (rank + (distance if rank % 2 == 0 else -distance)) % size
        plan.exchange(partner, whole, partner, whole, Action.REDUCE_RIGHT)
    return plan.finish()


def test_two_ranks_with_different_expressions():
    entry = replace(ALGORITHMS["recursive_doubling"], schedule=swing, ordered=False)
    prove(entry, 4, 3)
    rejects(entry, 8, 3, r"rank 0 ends with elements 0 to 2 as \(.*, and rank \d with \(.*")


def test_ranges_that_do_not_pair_up():
    def shorter(steps):
        start, stop = steps[0].receive[0]
        return [steps[0]._replace(receive=(Range(start, stop - 1),)), *steps[1:]]

    rejects(
        changed("naive_root", on_rank(0, shorter)),
        4,
        8,
        "rank 1 at step 0 sends elements 0 to 7, where rank 0 at step 0 expects elements 0 to 6",
    )


def test_partial_values_that_are_copied():
    mutant = changed(
        "ring", on_rank(1, lambda steps: [steps[0]._replace(action=Action.COPY), *steps[1:]])
    )
    rejects(
        mutant,
        4,
        4,
        "rank 1 at step 0 sends element 0 as finished, but rank 2 at step 0 reduces|"
        "rank 0 at step 0 sends element 3 as partial, but rank 1 at step 0 copies",
    )


def test_values_handed_out_before_they_are_finished():
    mutant = changed(
        "ring",
        lambda steps, rank: [step._replace(action=Action.COPY) for step in steps],
    )
    rejects(mutant, 4, 4, r"hands out element \d without the contribution of ranks")


def test_finished_values_that_are_reduced_again():
    mutant = changed("naive_root", lambda steps, rank: [*steps, *steps] if rank < 2 else steps)
    rejects(mutant, 4, 4, r"deadlock|twice in elements 0 to 3")


def test_an_element_that_is_received_twice():
    mutant = changed(
        "naive_root",
        on_rank(
            0, lambda steps: [steps[0]._replace(receive=(Range(0, 4), Range(3, 8))), *steps[1:]]
        ),
    )
    rejects(mutant, 4, 8, "rank 0 at step 0 receives elements 3 to 7 twice")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(None, (), None, (), Action.COPY), "neither sends nor receives"),
        (Step(1, (), None, (Range(0, 1),), Action.COPY), "a peer without elements, or elements"),
        (Step(0, (Range(0, 1),), None, (), Action.COPY), "names rank 0 as its peer"),
        (Step(4, (Range(0, 1),), None, (), Action.COPY), "names rank 4 as its peer"),
        (Step(1, (Range(7, 9),), None, (), Action.COPY), "empty or outside the vector"),
        (Step(1, (Range(3, 3),), None, (), Action.COPY), "empty or outside the vector"),
    ],
)
def test_a_malformed_step(step, text):
    rejects(changed("ring", on_rank(0, lambda steps: [step])), 4, 8, f"rank 0 at step 0 .*{text}")


def test_a_step_too_many():
    """One that changes nothing, and that the registry knows nothing of."""

    def again(steps, rank):
        if rank > 1:
            return steps
        share = (Range(0, 1),)
        peer = 1 - rank
        extra = Step(peer, share, None, (), Action.COPY)
        if rank:
            extra = Step(None, (), peer, share, Action.COPY)
        return [*steps, extra]

    rejects(changed("ring", again), 4, 8, "49 elements sent, where the registry says 48")


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ({"steps": lambda size: 5}, "6 steps, where the registry says 5"),
        ({"steps": lambda size: 7}, "6 steps, where the registry says 7"),
        ({"sent": lambda size, count: 1}, "48 elements sent, where the registry says 1"),
        ({"reduced": lambda size, count: 1}, "24 elements reduced, where the registry says 1"),
        ({"scratch": lambda size, count: 1}, "2 elements of scratch, where the registry says 1"),
        ({"one_tree": True}, r"element 0 is worked out as .*, and elements 2 to 3 as "),
    ],
)
def test_a_registry_that_says_something_else(formula, text):
    rejects(replace(ALGORITHMS["ring"], **formula), 4, 8, text)


def test_nobody_does_anything():
    entry = replace(ALGORITHMS["ring"], schedule=lambda *of: Schedule(*of, ()))
    rejects(entry, 3, 6, "rank 0 ends with elements 0 to 5 without the contribution of ranks 1, 2")

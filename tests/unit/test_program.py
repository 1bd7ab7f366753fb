"""Programs of all ranks, run together by the machine of machine.py."""

import pytest
from clusters import in_pieces, in_turns, nodes_of
from machine import Machine, Rank, contributions

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.compiler import compile_program
from hpccoll.program import Buffer, Opcode, Program


def run_all(
    algorithm: Algorithm,
    size: int,
    count: int,
    segment_count: int,
    *,
    in_place: bool,
    mode: str,
    seed: int,
) -> Machine:
    widen = mode == "widen"
    finish = mode == "divide"
    given = contributions(size, count)
    ranks = []
    for rank in range(size):
        program = compile_program(
            algorithm.schedule(rank, size, count),
            segment_count=segment_count,
            room=segment_count if segment_count < 10 else 0,
            in_place=in_place,
            widen=widen,
            finish=finish,
        )
        ranks.append(Rank(program, given[rank], in_place=in_place, widen=widen))
    machine = Machine(ranks, size if finish else 1, seed)
    machine.run()
    machine.assert_sums()
    return machine


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 8, 11])
@pytest.mark.parametrize("mode", ["plain", "divide", "widen"])
def test_programs_are_right_in_any_order(name: str, size: int, mode: str) -> None:
    for count in (0, 1, size - 1, 2 * size + 1, 4 * size + 3):
        for segment_count, in_place in ((2, False), (2, True), (10**6, size % 2 == 0)):
            options = {"in_place": in_place, "mode": mode, "seed": count}
            run_all(ALGORITHMS[name], size, count, segment_count, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_long_pipelines(name: str) -> None:
    for seed in range(5):
        for size in (2, 3, 4):
            options = {"in_place": seed % 2 == 0, "mode": "plain", "seed": seed}
            run_all(ALGORITHMS[name], size, 200, 2, **options)


@pytest.mark.parametrize("mode", ["plain", "widen"])
@pytest.mark.parametrize("network", ["rabenseifner", "circulant"])
def test_pieces_between_nodes(network: str, mode: str) -> None:
    for topology in (nodes_of(3, 4), in_turns(5, 3)):
        for segments in (1, 3):
            algorithm = in_pieces(network, topology, segments)
            for in_place in (False, True):
                options = {"in_place": in_place, "mode": mode, "seed": segments}
                run_all(algorithm, topology.size, 90, 2, **options)


@pytest.mark.parametrize("name", ["ring", "circulant"])
def test_scratch_is_a_few_segments(name: str) -> None:
    for size in (2, 4, 5, 8):
        program = compile_program(
            ALGORITHMS[name].schedule(0, size, 1000 * size), segment_count=100, room=100
        )
        assert program.scratch_count <= 200


def test_out_of_place_needs_no_copy_of_the_vector() -> None:
    for name in ("ring", "recursive_doubling", "rabenseifner"):
        for rank in range(4):
            program = compile_program(ALGORITHMS[name].schedule(rank, 4, 1000), segment_count=100)
            assert not [i for i in program.instructions if i.opcode == Opcode.COPY]


@pytest.mark.parametrize("hazard", ["reduce_before_send_left", "no_wait_for_receive"])
def test_the_machine_notices(hazard: str) -> None:
    """The machine above is no rubber stamp: programs with a hazard fail in it."""
    size, count = 2, 8
    given = contributions(size, count)
    ranks = []
    for rank in range(size):
        program = compile_program(
            ALGORITHMS["recursive_doubling"].schedule(rank, size, count),
            segment_count=4,
            in_place=True,
        )
        waits = {
            "reduce_before_send_left": Opcode.WAIT_SEND,
            "no_wait_for_receive": Opcode.WAIT_RECEIVE,
        }
        kept = tuple(i for i in program.instructions if i.opcode != waits[hazard])
        program = Program(program.sends, program.receives, kept, program.scratch_count, 1)
        ranks.append(Rank(program, given[rank], in_place=True, widen=False))
    Machine(ranks, 1, seed=1).run()
    total = given.sum(axis=0)
    assert any((rank.memory[Buffer.OUTPUT] != total).any() for rank in ranks)

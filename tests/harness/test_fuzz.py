"""The fuzzer: it makes the same programs everywhere, finds what is wrong, and shows it in short."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fuzz import data, steps
from fuzz.generator import EPOCH, environment, generate
from fuzz.interpreter import Rank
from fuzz.normal import FORMS_OF_BUFFERS, normal
from fuzz.places import NAMES as LAYOUTS
from fuzz.refusals import REFUSALS
from fuzz.shrinker import candidates, shrink
from fuzz.steps import Call, End, Environment, Many, Program, Refused, Ring
from launch import Finished, Launcher
from mpi4py import MPI

from hpccoll.algorithms import REGISTRY

TESTS = Path(__file__).resolve().parents[1]

try:
    LAUNCHER = Launcher.find()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def calls(programs):
    return [step for program in programs for step in program.steps if isinstance(step, Call)]


# Programs.


def test_a_program_depends_on_its_seed_and_the_number_of_ranks_alone():
    here = "".join(generate(seed, 3).text() for seed in range(40))
    script = (
        "from fuzz.generator import generate\n"
        "print(end=''.join(generate(seed, 3).text() for seed in range(40)))"
    )
    env = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == here
    assert len({generate(seed, 3).steps for seed in range(40)}) > 35
    assert generate(7, 3) != generate(7, 4)


def test_programs_of_an_epoch_share_their_environment():
    assert len({generate(seed, 4).environment for seed in range(EPOCH)}) == 1
    assert len({environment(epoch, 4) for epoch in range(20)}) > 15


def test_the_text_of_a_program_makes_it_again(monkeypatch):
    made = []
    monkeypatch.setattr("fuzz.ranks.replay", made.append)
    for seed in range(0, 2000, 17):
        exec(generate(seed, 3).text(), {})
        assert made[-1] == generate(seed, 3)


def test_there_is_something_of_everything():
    programs = [generate(seed, 3) for seed in range(0, 3000 * EPOCH // 10, EPOCH // 10)]
    made = calls(programs)
    kinds = {type(step) for program in programs for step in program.steps}
    assert kinds == set(steps.Step.__args__) - {End}
    seen = {(call.collective, call.door, call.form, call.where, call.vector) for call in made}
    for collective in REGISTRY:
        for door, form in (
            ("function", "blocking"),
            ("function", "begun"),
            ("method", "blocking"),
            ("method", "begun"),
            ("method", "prepared"),
        ):
            assert {one[:3] for one in seen} >= {(collective, door, form)}
    types = {(call.dtype, call.op) for call in made if call.op != "sum"}
    for dtype in data.COMMON:
        assert {op for one, op in types if one == dtype} >= {*data.operations_of(dtype)} - {"sum"}
    assert {call.dtype for call in made} == {*data.COMMON, *data.RARE}
    assert {call.source for call in made} == {*LAYOUTS, "scalar", "python scalar"}
    assert {call.form_of_buffer for call in made} == {*FORMS_OF_BUFFERS}
    assert {call.where for call in made} == {"new", "apart", "in place", "overlap"}
    for collective, entries in REGISTRY.items():
        named = {call.algorithm.partition(":")[0] for call in made if call.collective == collective}
        assert named >= ({*entries, "auto"} if collective != "barrier" else {"auto"})
    refused = {step.what for one in programs for step in one.steps if isinstance(step, Refused)}
    assert len(refused) > 0.9 * len(REFUSALS)
    for field in ("nodes", "node", "wait", "algorithm", "kernel"):
        assert len({getattr(program.environment, field) for program in programs}) > 1


def test_a_generated_call_is_normal_and_any_change_of_one_can_be_made_so():
    made = calls(generate(seed, 3) for seed in range(100))
    for call, other in itertools.pairwise(made):
        assert normal(call) == call
        for field in fields(call):
            mixed = normal(replace(call, **{field.name: getattr(other, field.name)}))
            assert normal(mixed) == mixed


# One rank.


@pytest.mark.limit(120)
def test_on_one_rank_nothing_fails():
    if MPI.COMM_WORLD.size > 1:
        pytest.skip("ranks of a job")
    before = dict(os.environ)
    try:
        for first in (0, EPOCH):
            rank = Rank(MPI.COMM_SELF, generate(first, 1).environment)
            for seed in range(first, first + 60):
                assert rank.run(generate(seed, 1).steps).errors == [], seed
            rank.close()
        rank = Rank(MPI.COMM_SELF, Environment())
        assert rank.run(Refused(what) for what in REFUSALS).errors == []
        rank.close()
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_changes_of_any_byte_are_seen():
    program = Program(
        1, Environment(), (Call("allreduce", source="gaps in all axes", rows=(5,), rest=(3,)),)
    )
    rank = Rank(MPI.COMM_SELF, program.environment)
    from fuzz.doors import Prepared

    comm = MPI.COMM_SELF.Dup()
    prepared = Prepared(program.steps[0], comm, comm)
    for place in (0, 1):
        room = prepared._rooms[place]
        for byte in range(room.memory.size):
            prepared.fill(0)
            result = prepared.blocking()
            room.memory[byte] ^= 1
            assert prepared.complaint(result), (place, byte)
    comm.Free()
    rank.close()


# Shrinking.


def is_bad(step):
    """Whether a made-up defect shows."""
    return (
        isinstance(step, Call)
        and (step.collective, step.dtype) == ("reduce_scatter", "float32")
        and sum(step.rows) > 11
    )


def test_a_failing_program_becomes_short():
    bad = (seed for seed in range(10_000) if any(map(is_bad, generate(seed, 3).steps)))
    for seed in itertools.islice(bad, 5):
        shorter, tries = shrink(generate(seed, 3), lambda p: any(map(is_bad, p.steps)))
        (call,) = shorter.steps
        assert shorter.environment == Environment()
        assert 12 <= sum(call.rows) <= 14
        plain = Call("reduce_scatter", call.number, dtype="float32", rows=call.rows)
        assert call == plain
        assert tries < 200


def test_two_steps_that_fail_together_are_kept():
    def fails(program):
        kinds = [type(step) for step in program.steps]
        return Ring in kinds and Many in kinds[kinds.index(Ring) :]

    program = Program(2, Environment(), sum((generate(s, 2).steps for s in range(60)), ()))
    assert fails(program)
    shorter, _ = shrink(program, fails)
    assert shorter.steps == (Ring(), Many(()))
    assert all(candidate != shorter for candidate in candidates(shorter))


def test_shrinking_ends():
    tried = []
    shrink(generate(3, 3), lambda p: not tried.append(p), most_tries=20)
    assert len(tried) <= 20


# All of it, on two ranks.

PLANTED = """
import sys
import numpy as np
from mpi4py import MPI
from hpccoll.jobs import Job
from fuzz.ranks import main

right = Job.run

def wrong(job, channel, moment=None):
    if {hangs} and channel.rank == 1 and job.pattern.collective == "reduce":
        return right(job, None)
    plan = right(job, channel, moment)
    if job.pattern.collective == "reduce_scatter" and job.count > 20 and job.out.size:
        one = job.out.flat[0:1]
        job.out.flat[0:1] = np.frombuffer(bytes(b ^ 1 for b in one.tobytes()), one.dtype)
    return plan

Job.run = wrong
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def planted(folder: Path, monkeypatch, *options: str, hangs: bool = False) -> Finished:
    """Fuzz on two ranks with a defect."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    script = folder / "planted.py"
    script.write_text(PLANTED.format(hangs=hangs))
    return LAUNCHER.run(2, [sys.executable, str(script), *options], limit=100, cwd=folder)


@pytest.mark.limit(200)
def test_a_defect_is_found_and_shown_as_a_short_program(tmp_path, monkeypatch):
    done = planted(tmp_path, monkeypatch, "--seed", "0", "--minutes", "1")
    assert done.status == 1, done.output
    assert not done.ended_by_us
    seed = re.search(r"^seed (\d+), size 2: failure$", done.output, re.MULTILINE)[1]
    assert f"-m fuzz.ranks --seed {seed} --programs 1\n" in done.output
    assert "bytes differ" in done.output or "elements differ" in done.output
    text = done.output[done.output.index("# PYTHONPATH=tests mpiexec -n 2") :]
    text = text[: text.index("\n))\n") + 4]  # Open MPI's launcher has more to say
    shown = re.findall(r"^        (\w+\(.*\)),$", text, re.MULTILINE)
    assert len(shown) == 1, text
    call = eval(shown[0], {"Call": Call})
    assert call == Call("reduce_scatter", call.number, door=call.door, rows=call.rows)
    assert 21 <= 2 * max(call.rows) <= 26

    # What is printed can be run.
    again = tmp_path / "again.py"
    again.write_text(text)
    done = LAUNCHER.run(2, [sys.executable, str(again)], limit=60, cwd=tmp_path)
    assert (done.status, done.output) == (0, "no failure\n")
    again.write_text(f"import planted\n{text}")
    done = LAUNCHER.run(2, [sys.executable, str(again)], limit=60, cwd=tmp_path)
    assert done.status != 0
    assert "reduce_scatter" in done.output


@pytest.mark.limit(200)
def test_a_hang_ends_and_shows_the_program(tmp_path, monkeypatch):
    done = planted(tmp_path, monkeypatch, "--seed", "0", "--limit", "5", hangs=True)
    assert done.status != 0
    assert not done.ended_by_us
    assert re.search(r"\[rank 0 of 2\] time limit of 5 s reached: seed \d+, size 2", done.output)
    assert "replay(Program(2," in done.output
    assert "collective='reduce'" in done.output
    assert "[rank 1 of 2] time limit of 5 s reached" in done.output
    assert "has run the program\nstep" in done.output  # and what the other rank noted


def test_without_a_defect_it_says_how_much_it_has_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    program = [sys.executable, "-W", "error", "-m", "fuzz.ranks", "--seed", "5", "--programs", "30"]
    done = LAUNCHER.run(2, program, limit=60, cwd=TESTS.parent)
    assert done.status == 0, done.output
    assert re.search(r"^30 programs, \d+ calls, seed 5, size 2: no failure", done.output, re.M)

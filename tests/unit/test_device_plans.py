"""Plans of messages on device memory, with a fake driver that finds what nothing orders."""

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from device_ranks import run
from fake_cuda import FakeCuda
from inputs import contribution, expected

from hpccoll import device_program
from hpccoll.algorithms import ALGORITHMS, REGISTRY
from hpccoll.cuda import driver
from hpccoll.pattern import ALLREDUCE, Pattern
from hpccoll.task import STAGE_BYTES

# (type, operation, elements, segment_bytes), as of test_engine.py.
CASES = (
    ("float32", "sum", 0, None),
    ("float64", "sum", 1, None),
    ("int16", "prod", 7, 2),
    ("float16", "mean", 101, 24),
    ("complex64", "mean", STAGE_BYTES // 8, None),
    ("float64", "mean", STAGE_BYTES // 8 + 1, 520),
    (ml_dtypes.bfloat16, "sum", 2503, 2000),
    ("float16", "min", 3001, 4096),
)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("staged", [False, True])
def test_every_rank_gets_the_exact_result(name, size, staged):
    def job(rank):
        for dtype, op, count, segment_bytes in CASES:
            task = rank.task(ALLREDUCE, name, op, count, dtype, segment_bytes)
            mine = contribution(rank.rank, count, dtype, op, size)
            wanted = expected(count, dtype, op, size).tobytes()
            for in_place in (False, True):
                x = rank.array(mine)
                out = None if in_place else rank.array(np.zeros_like(mine))
                rank.run(task, None if in_place else x, x if in_place else out)
                result = (x if in_place else out).numpy()
                case = (str(np.dtype(dtype)), op, count, segment_bytes, in_place)
                assert result.tobytes() == wanted, case
                assert in_place or x.numpy().tobytes() == mine.tobytes(), case

    with FakeCuda(devices=2, seed=size) as fake:
        run(fake, size, job, staged=staged, devices=2)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("collective", "name"),
    [
        (collective, name)
        for collective in ("reduce", "reduce_scatter", "allgather", "broadcast")
        for name in REGISTRY[collective]
    ],
)
def test_the_family(collective, name, size, staged):
    def job(rank):
        for count, segment_bytes in ((3, None), (1700 * size, None), (5003, 3000)):
            counts = None
            pattern = Pattern(collective, size - 1 if collective in ("reduce", "broadcast") else 0)
            brings = pattern.brings(rank.rank, size, count)
            wants = pattern.wants(rank.rank, size, count)
            vectors = [contribution(peer, count, "float64", "sum", size) for peer in range(size)]
            total = expected(count, "float64", "sum", size)
            whole = total if pattern.reduces else vectors[size - 1]
            mine = vectors[rank.rank] if pattern.reduces else whole
            task = rank.task(pattern, name, "sum", count, "float64", segment_bytes)
            x = rank.array(mine[slice(*brings)]) if brings.count else None
            out = rank.array(np.full(wants.count, -1.0)) if wants.count else None
            if x is None and out is None:
                out = rank.array(np.empty(0))
            rank.run(task, x, out)
            if out is not None:
                assert out.numpy().tobytes() == whole[slice(*wants)].tobytes(), (count, counts)

    with FakeCuda(seed=size) as fake:
        run(fake, size, job, staged=staged)


def test_calls_that_repeat_run_the_same_plan_on_new_contents():
    def job(rank):
        task = rank.task(ALLREDUCE, "ring", "sum", 6000, "float32", 4096)
        x = rank.array(np.zeros(6000, np.float32))
        out = rank.array(np.zeros(6000, np.float32))
        with rank.device:
            plan = rank.site.make_plan(task, x.address, out.address)
        for turn in range(4):
            x.fill(contribution(rank.rank, 6000, "float32", "sum", 3, seed=turn))
            with rank.device:
                rank.site.queue.follow(rank.stream)
                plan.run(x.address, out.address)
                rank.site.queue.lead(rank.stream)
            wanted = expected(6000, "float32", "sum", 3, seed=turn)
            np.testing.assert_array_equal(out.numpy(), wanted)

    for staged in (False, True):
        with FakeCuda() as fake:
            run(fake, 3, job, staged=staged)


def test_calls_are_counted_where_peers_on_the_node_look():
    """Who waits for this rank in the memory of their node sees that it sends messages."""

    def job(rank):
        begun = ctypes.c_uint64()
        node = SimpleNamespace(calls_by_messages=ctypes.addressof(begun))
        rank.site.channel.meeting = SimpleNamespace(region=0, node=node)
        x = rank.array(np.ones(10, np.float32))
        for turn in range(3):
            assert begun.value == turn
            rank.run(rank.task(ALLREDUCE, "ring", "sum", 10, "float32", None), None, x)
        x.numpy()

    with FakeCuda() as fake:
        run(fake, 2, job, staged=False)


@pytest.mark.parametrize("staged", [False, True])
def test_nothing_is_allocated_after_the_first_call(staged):
    names = ("cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister", "cuEventCreate")

    def job(rank):
        task = rank.task(ALLREDUCE, "ring", "sum", 600, "float32", 4096)
        x, out = (rank.array(np.ones(600, np.float32)) for _ in range(2))
        before = {}
        for _ in range(2):
            rank.run(task, x, out)  # a plan of its own each time
            before, allocated = allocations(rank), before
        assert before == allocated
        assert (out.numpy() == 1).all()

    def allocations(rank):
        return {name: rank.fake.calls[name] for name in names}

    with FakeCuda() as fake:
        run(fake, 1, job, staged=staged)


@pytest.mark.parametrize("staged", [False, True])
def test_a_host_that_does_not_wait_is_found(staged):
    """The fake notices messages that leave too early: without AWAIT there are violations."""

    def job(rank):
        task = rank.task(ALLREDUCE, "ring", "sum", 6000, "float32", 4096)
        x = rank.array(np.ones(6000, np.float32))
        rank.run(task, None, x)
        x.numpy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_program._Translator, "wait_for", lambda self, works: None)
        fake = FakeCuda()
        former = driver.install(fake.driver)
        try:
            run(fake, 3, job, staged=staged)
            with pytest.raises(AssertionError, match="order"):
                fake.check()
        finally:
            driver.install(former)
            fake.close()

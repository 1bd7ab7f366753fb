"""Queues of a device: order between streams, works of a plan, and how the host waits."""

import ctypes
import functools
import os
import signal
import threading

import numpy as np
import pytest
import simple_kernels
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from simple_kernels import PAIR

from hpccoll import _device
from hpccoll._device import (
    ABSOLUTE,
    COMPUTE,
    COPY,
    COPY_DOWN,
    COPY_UP,
    DOWN,
    FINISH,
    LAUNCH,
    REDUCE,
    SOURCE,
    TARGET,
    UP,
    WIDEN,
    BoundWorks,
    DeviceQueue,
)
from hpccoll._executor import MessagePlan
from hpccoll._plans import CallClock, Loops
from hpccoll.cuda import driver_api as api
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.memory import pinned_bytes
from hpccoll.errors import CollectiveTimeoutError, CudaError
from hpccoll.local_transport import LocalRanks, LocalTransport
from hpccoll.program import Opcode

N = 1000
SEEDS = 15
BACK = (0, 0)  # a place that a work does not use


class Bench:
    """A queue, its device and its kernels."""

    def __init__(self, fake):
        self.fake, self.device = fake, get_device(0)
        self.clock = CallClock()
        self.user = fake.new_stream()
        streams = [self.device.new_stream() for _ in range(3)]
        self.events = [self.device.new_event() for _ in range(8)]
        queue_events = [self.device.new_event() for _ in range(_device.QUEUE_EVENTS)]
        functions, context = self.device.driver.functions, self.device.context
        self.queue = DeviceQueue(functions, context, streams, queue_events, self.clock)
        module = self.device.load_module(simple_kernels.CODE)
        self.kernels = {
            name: self.device.function(module, name)
            for name in ("add", "divide", "widen", "narrow")
        }

    def array(self, values=None, dtype=np.float32, n=N):
        array = FakeArray(n, dtype, stream=self.user)
        return array if values is None else array.fill(values)

    def add(self, out, left, right, queue=COMPUTE):
        arguments = PAIR.pack(out.address, left.address, right.address, N)
        self.queue.launch(self.kernels["add"], arguments, 4, 256, queue)

    def works(self, works, **options):
        kernels = {"reduce": self.kernels["add"], "finish": 0, "widen": 0}
        settings = {"divisor": 0.0, "itemsize": 4, "partial_itemsize": 4, "multiprocessors": 4}
        return BoundWorks(
            self.queue, works, events=self.events, keep=None, **{**kernels, **settings, **options}
        )

    def run(self, works, source, target, *indices):
        """Run works as a call on arrays of the user."""
        with self.device:
            self.queue.follow(self.user)
            works.begin_call(source.address, target.address)
            reduced = [works.submit_one(index) for index in indices]
            self.queue.lead(self.user)
        return reduced


@pytest.fixture(params=range(SEEDS))
def each_order(request):
    with FakeCuda(kernels=simple_kernels, seed=request.param) as fake:
        yield Bench(fake)


@pytest.fixture
def bench():
    with FakeCuda(kernels=simple_kernels) as fake:
        bench = Bench(fake)
        fake.kept = bench
        yield bench


def work(kind, queue, out, left, right=BACK, count=0, nbytes=0, after=(), is_marked=False):
    return (kind, queue, out, left, right, count, nbytes, after, is_marked)


def test_a_queue_follows_and_leads_the_callers_stream(each_order):
    bench = each_order
    x, y, out = bench.array(np.arange(N)), bench.array(2), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        bench.add(out, x, y)
        bench.queue.lead(bench.user)
    assert (out.numpy() == np.arange(N) + 2).all()


def test_without_follow_or_lead_there_is_no_order(bench):
    x, y, out = bench.array(1), bench.array(2), bench.array()
    with bench.device:
        bench.add(out, x, y)
    assert len(bench.fake.violations) == 2
    bench.fake.violations.clear()
    out.numpy()
    assert len(bench.fake.violations) == 1
    bench.fake.violations.clear()
    bench.fake.kept = (x, y, out)


@pytest.mark.parametrize("queue", [COMPUTE, DOWN, UP])
def test_every_queue_follows_and_leads(bench, queue):
    x, out = bench.array(3), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        bench.queue.copy(out.address, x.address, 4 * N, queue)
        bench.queue.lead(bench.user)
    assert (out.numpy() == 3).all()


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_default_streams_of_the_caller(bench, stream):
    x, out = (FakeArray(N, stream=stream or 1) for _ in range(2))
    x.fill(5)
    with bench.device:
        bench.queue.follow(stream)
        bench.queue.copy(out.address, x.address, 4 * N)
        bench.queue.lead(stream)
    assert (out.numpy() == 5).all()


def test_events_order_queues(each_order):
    bench = each_order
    x, middle, out = bench.array(4), bench.array(), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        bench.queue.copy(middle.address, x.address, 4 * N, UP)
        bench.queue.record(bench.events[0], UP)
        bench.queue.wait_for(bench.events[0], COMPUTE)
        bench.add(out, middle, middle)
        bench.queue.record(bench.events[1], COMPUTE)
        bench.queue.await_event(bench.events[1], "the sum")
    bench.fake.host_reads(out.address, 4 * N)
    assert (simple_kernels.at(out.address, N, "f4") == 8).all()


def test_drain_waits_for_all_queues(each_order):
    bench = each_order
    arrays = [bench.array() for _ in range(4)]
    with bench.device:
        bench.queue.follow(bench.user)
        for queue in (COMPUTE, DOWN, UP):
            bench.queue.copy(arrays[queue].address, arrays[3].address, 4 * N, queue)
        bench.queue.drain("copies")
    for array in arrays:
        bench.fake.host_writes(array.address, 4 * N)


def test_copies_of_nothing_are_none(bench):
    x = bench.array(1)
    with bench.device:
        bench.queue.copy(x.address, 12345, 0)
        bench.queue.copy(x.address, x.address, 4)
        bench.queue.launch(bench.kernels["add"], bytes(PAIR.size), 0, 256)
    assert bench.fake.calls["cuMemcpyAsync"] == bench.fake.calls["cuLaunchKernel"] == 0


def test_structures_are_arguments(bench):
    class Arguments(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("out", "left", "right", "n")]

    x, out = bench.array(6), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        arguments = Arguments(out.address, x.address, x.address, N)
        bench.queue.launch(bench.kernels["add"], arguments, 1, 32)
        arguments.out = 0  # they were copied
        bench.queue.lead(bench.user)
    assert (out.numpy() == 12).all()


def test_what_a_queue_is_made_of(bench):
    functions, context = bench.device.driver.functions, bench.device.context
    with pytest.raises(ValueError, match="2 streams and 4 events; wanted 3 and 4"):
        DeviceQueue(functions, context, [1, 2], [1, 2, 3, 4], bench.clock)
    with bench.device, pytest.raises(ValueError, match="there is no queue 3"):
        bench.queue.copy(8, 4096, 8, 3)


def test_errors_of_the_driver_are_raised(bench):
    x = bench.array(1)
    message = "cuMemcpyAsync failed: CUDA_ERROR_INVALID_VALUE \\(1\\): invalid value"
    bench.fake.fail("cuMemcpyAsync", api.INVALID_VALUE)
    with bench.device, pytest.raises(CudaError, match=message) as caught:
        bench.queue.copy(x.address + 8, x.address, 8)
    assert caught.value.code == api.INVALID_VALUE
    for function, call in {
        "cuEventRecord": lambda: bench.queue.follow(bench.user),
        "cuStreamWaitEvent": lambda: bench.queue.lead(bench.user),
        "cuLaunchKernel": lambda: bench.add(x, x, x),
        "cuEventQuery": lambda: bench.queue.drain("it"),
    }.items():
        bench.fake.fail(function, 719)
        with bench.device, pytest.raises(CudaError, match=f"{function} failed"):
            call()


# Waits


def test_a_wait_ends_with_its_time_limit(bench):
    bench.clock.limit = 30_000_000
    bench.fake.hold(bench.queue.streams[DOWN])
    with bench.device:
        bench.queue.record(bench.events[0], DOWN)
        with pytest.raises(CollectiveTimeoutError) as caught:
            bench.queue.await_event(bench.events[0], "the copy to the host")
    text = str(caught.value)
    assert text.startswith("call 0 on this communicator: waited 0.0")
    assert " s for the copy to the host on CUDA device 0. The communicator cannot" in text
    assert bench.clock.broken
    bench.fake.release(bench.queue.streams[DOWN])


def test_a_long_wait_warns_once(bench, capfd):
    bench.clock.warning = 1
    stream = bench.queue.streams[DOWN]
    bench.fake.hold(stream)
    # The second look is at least 1 ms after the first, and the third 50 ms later.
    timer = threading.Timer(0.2, bench.fake.release, [stream])
    timer.start()
    with bench.device:
        bench.queue.record(bench.events[0], DOWN)
        bench.queue.await_event(bench.events[0], "a slow one")
    timer.join()
    _, err = capfd.readouterr()
    assert err.count("for a slow one on CUDA device 0; it goes on waiting") == 1
    assert err.startswith("hpccoll: call 0 on this communicator: waited ")


def test_signals_end_a_wait(bench):
    # A query that runs no Python code, in which the handler would raise.
    never = functools.partial(max, api.NOT_READY)
    query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(never)
    address = ctypes.cast(query, ctypes.c_void_p).value
    functions = {**bench.device.driver.functions, "cuEventQuery": address}
    queue = DeviceQueue(functions, 0, [1, 2, 3], [1, 2, 3, 4], bench.clock)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        queue.await_event(5, "what never comes")
    timer.join()


def test_other_threads_run_during_a_wait(bench):
    stream = bench.queue.streams[COMPUTE]
    bench.fake.hold(stream)
    with bench.device:
        bench.queue.record(bench.events[0], COMPUTE)
        released = threading.Thread(target=bench.fake.release, args=[stream])
        released.start()
        bench.queue.await_event(bench.events[0], "it")
    released.join()


# Works


def test_works_reduce_vectors_of_the_call(each_order):
    bench = each_order
    works = bench.works([work(REDUCE, COMPUTE, (TARGET, 8), (SOURCE, 0), (SOURCE, 4), N - 4)])
    x, out = bench.array(np.arange(N)), bench.array(0)
    assert bench.run(works, x, out, 0) == [4 * (N - 4)]
    expected = np.zeros(N)
    expected[2:-2] = np.arange(N - 4) * 2 + 1
    assert (out.numpy() == expected).all()
    # The next call is on other memory.
    y = bench.array(1)
    bench.run(works, y, y, 0)
    assert y.numpy()[2] == 2


def test_works_stage_through_pinned_memory(each_order):
    """Down, up to another place, and reduced there: three queues, in two segments."""
    bench = each_order
    half = N // 2
    pinned = pinned_bytes(bench.device, 4 * N, 0)
    scratch = bench.array()
    plan = []
    for k in (0, 4 * half):
        place = (ABSOLUTE, pinned.ctypes.data + k)
        there = (ABSOLUTE, scratch.address + k)
        first, target = len(plan), (TARGET, k)
        plan += [
            work(COPY_DOWN, DOWN, place, (SOURCE, k), nbytes=4 * half, is_marked=True),
            work(COPY_UP, UP, there, place, nbytes=4 * half, after=[first], is_marked=True),
            work(REDUCE, COMPUTE, target, (SOURCE, k), there, half, after=[first + 1]),
        ]
    works = bench.works(plan)
    x, out = bench.array(np.arange(N)), bench.array()
    for _ in range(2):
        bench.run(works, x, out, *range(len(plan)))
        assert (out.numpy() == 2 * np.arange(N)).all()


def test_marked_works_can_be_waited_for(each_order):
    bench = each_order
    pinned = pinned_bytes(bench.device, 4 * N, 0)
    place = (ABSOLUTE, pinned.ctypes.data)
    works = bench.works([work(COPY_DOWN, DOWN, place, (SOURCE, 0), nbytes=4 * N, is_marked=True)])
    x = bench.array(9)
    with bench.device:
        bench.queue.follow(bench.user)
        works.begin_call(x.address, 0)
        works.submit_one(0)
        works.wait_for_one(0)
    bench.fake.host_reads(pinned.ctypes.data, 4 * N)
    assert (pinned.view(np.float32) == 9).all()


def test_the_host_waits_for_what_the_caller_had_submitted(each_order):
    bench = each_order
    works, x = bench.works([]), bench.array(1)
    with bench.device:
        bench.queue.follow(bench.user)
        works.begin_call(x.address, 0)
        works.wait_for_one(-1)
    bench.fake.host_reads(x.address, 4 * N, "MPI")


@pytest.mark.parametrize("divisor", [0.0, 4.0])
def test_works_widen_reduce_and_finish(bench, divisor):
    """As for a type whose partial values are wider."""
    partial = bench.array(dtype=np.float64)
    there = (ABSOLUTE, partial.address)
    works = bench.works(
        [
            work(WIDEN, COMPUTE, there, (SOURCE, 0), count=N),
            work(FINISH, COMPUTE, (TARGET, 0), there, count=N),
        ],
        finish=bench.kernels["narrow"],
        widen=bench.kernels["widen"],
        divisor=divisor,
        partial_itemsize=8,
    )
    x, out = bench.array(np.arange(N)), bench.array()
    assert bench.run(works, x, out, 0, 1) == [0, 0]
    expected = np.arange(N, dtype=np.float32) / (divisor or 1)
    assert (out.numpy() == expected.astype(np.float32)).all()


def test_finish_without_a_kernel_copies_what_is_not_in_place(bench):
    works = bench.works(
        [
            work(FINISH, COMPUTE, (TARGET, 0), (SOURCE, 0), count=N),
            work(FINISH, COMPUTE, (TARGET, 0), (TARGET, 0), count=N),
        ]
    )
    x, out = bench.array(7), bench.array()
    bench.run(works, x, out, 0, 1)
    assert (out.numpy() == 7).all()
    assert bench.fake.calls["cuMemcpyAsync"] == 1
    assert bench.fake.calls["cuLaunchKernel"] == 0


def test_works_copy_on_the_device(bench):
    works = bench.works([work(COPY, COMPUTE, (TARGET, 4), (SOURCE, 8), nbytes=12)])
    x, out = bench.array(np.arange(N)), bench.array(0)
    bench.run(works, x, out, 0)
    assert out.numpy()[:6].tolist() == [0, 2, 3, 4, 0, 0]


def test_works_launch_any_kernel(bench):
    x, out = bench.array(3), bench.array()
    arguments = PAIR.pack(out.address, x.address, x.address, N)
    works = bench.works([(LAUNCH, UP, bench.kernels["add"], arguments, 4, 64, 24, (), False)])
    assert bench.run(works, x, out, 0) == [24]
    assert (out.numpy() == 6).all()


def test_launches_get_other_arguments(bench):
    x, out, other = bench.array(3), bench.array(), bench.array()
    arguments = [PAIR.pack(each.address, x.address, x.address, N) for each in (out, other)]
    works = bench.works(
        [
            (LAUNCH, UP, bench.kernels["add"], arguments[0], 4, 64, 24, (), False),
            work(COPY, DOWN, (TARGET, 0), (SOURCE, 0)),
        ]
    )
    assert bench.run(works, x, out, 0) == [24]
    works.set_arguments(0, bytearray(arguments[1]))
    assert bench.run(works, x, out, 0) == [24]
    assert (out.numpy() == 6).all()
    assert (other.numpy() == 6).all()
    with pytest.raises(ValueError, match="work 0 takes 32 bytes of arguments, and was given 31"):
        works.set_arguments(0, arguments[1][:-1])
    for index in (1, 2):
        with pytest.raises(ValueError, match=f"work {index} takes no arguments"):
            works.set_arguments(index, arguments[1])


def test_empty_works_keep_the_order(each_order):
    """What comes after an empty work comes after all that the empty one comes after."""
    bench = each_order
    x, middle, out = bench.array(2), bench.array(), bench.array()
    there = (ABSOLUTE, middle.address)
    works = bench.works(
        [
            work(COPY, DOWN, there, (SOURCE, 0), nbytes=4 * N, is_marked=True),
            work(REDUCE, COMPUTE, there, there, there, 0, after=[0], is_marked=True),
            work(COPY, UP, (TARGET, 0), there, nbytes=4 * N, after=[1]),
        ]
    )
    assert bench.run(works, x, out, 0, 1, 2) == [0, 0, 0]
    assert (out.numpy() == 2).all()
    assert bench.fake.calls["cuLaunchKernel"] == 0


def test_order_between_works_is_made_where_it_is_asked_for_only(bench):
    x, middle, out = bench.array(2), bench.array(), bench.array()
    there = (ABSOLUTE, middle.address)
    works = bench.works(
        [
            work(COPY, DOWN, there, (SOURCE, 0), nbytes=4 * N, is_marked=True),
            work(COPY, UP, (TARGET, 0), there, nbytes=4 * N),
        ]
    )
    bench.run(works, x, out, 0, 1)
    (text,) = bench.fake.violations
    assert "nothing orders" in text
    bench.fake.violations.clear()


def test_grids_follow_the_size(bench):
    grids = {}

    class Kernels:
        has, argument_bytes, ranges = (
            simple_kernels.has,
            simple_kernels.argument_bytes,
            simple_kernels.ranges,
        )

        @staticmethod
        def run(code, name, arguments, grid, block):
            grids[PAIR.unpack(arguments)[3]] = grid, block

    bench.fake.kernels = Kernels
    counts = [1, 1024, 1025, 64 * 1024, 1 << 20]
    plan = [work(REDUCE, COMPUTE, (TARGET, 0), (SOURCE, 0), (SOURCE, 0), n) for n in counts]
    x, out = bench.array(n=1 << 20), bench.array(n=1 << 20)
    bench.run(bench.works(plan), x, out, *range(len(plan)))
    out.numpy()
    assert grids == {n: (grid, 256) for n, grid in zip(counts, [1, 1, 2, 64, 64], strict=True)}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([work(99, 0, BACK, BACK)], "work 0 is of kind 99"),
        ([work(COPY, 3, BACK, BACK)], "on queue 3"),
        ([work(COPY, 0, (3, 0), BACK)], "no base 3"),
        ([work(WIDEN, 0, BACK, BACK)], "needs a kernel"),
        ([work(COPY, 0, BACK, BACK, after=[0])], "which is not before it"),
        (
            [work(COPY, 0, BACK, BACK), work(COPY, 1, BACK, BACK, after=[0])],
            "work 1 comes after work 0, which is not marked",
        ),
        (
            [
                *[work(COPY, 1, BACK, BACK, is_marked=True)] * 4,
                work(COPY, 0, BACK, BACK, after=range(4)),
            ],
            "after more than 3 others",
        ),
        ([work(COPY, 0, BACK, BACK, is_marked=True)] * 9, "only 8 events"),
    ],
)
def test_works_that_make_no_sense(bench, plan, message):
    with pytest.raises(ValueError, match=message):
        bench.works(plan)


def test_works_of_the_same_queue_need_no_mark(bench):
    copy = work(COPY, 0, BACK, BACK)
    bench.works([copy, work(COPY, 0, BACK, BACK, after=[0])])


def test_works_that_were_not_submitted(bench):
    works = bench.works(
        [
            work(COPY, DOWN, BACK, BACK, is_marked=True),
            work(COPY, UP, BACK, BACK, after=[0]),
        ]
    )
    with bench.device:
        for call in (lambda: works.wait_for_one(0), lambda: works.submit_one(1)):
            works.begin_call(0, 0)
            with pytest.raises(RuntimeError, match="work 0 was not submitted in this call"):
                call()
            works.submit_one(0)
            works.submit_one(1)
            works.wait_for_one(0)
            with pytest.raises(RuntimeError, match="not marked"):
                works.wait_for_one(1)
        with pytest.raises(IndexError):
            works.submit_one(2)


def test_a_call_that_is_left_has_nothing_under_way(each_order):
    bench = each_order
    works = bench.works([work(COPY, DOWN, (TARGET, 0), (SOURCE, 0), nbytes=4 * N)])
    x, out = bench.array(1), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        works.begin_call(x.address, out.address)
        works.submit_one(0)
        works.leave_call()
    assert (simple_kernels.at(out.address, N, "f4") == 1).all()
    assert _device.abandoned == []
    # The fake's host knows: memory may be freed, and used.
    bench.fake.host_writes(out.address, 4 * N)


def test_leaving_tells_whether_something_is_under_way(bench):
    x, out = bench.array(1), bench.array()
    with bench.device:
        bench.queue.follow(bench.user)
        bench.queue.copy(out.address, x.address, 4 * N, DOWN)
        assert bench.queue.leave()
    bench.fake.host_writes(out.address, 4 * N)


def test_a_call_that_is_left_in_a_broken_context(bench):
    works = bench.works([])
    with bench.device:
        bench.fake.fail("cuEventRecord", 719)
        works.leave_call()
        bench.fake.fail("cuEventQuery", 719)
        works.leave_call()
    assert _device.abandoned == []


@pytest.mark.slow
def test_what_never_ends_is_abandoned(bench):
    works = bench.works([])
    bench.fake.hold(bench.queue.streams[UP])
    with bench.device:
        works.leave_call()
    assert _device.abandoned == [works]
    _device.abandoned.clear()
    bench.fake.release(bench.queue.streams[UP])


# Plans


class Info:
    """What a plan tells of itself, as far as it is needed here."""

    def complete(self, error, silent):
        return error


def plan_with(bench, works, *instructions):
    transport = LocalTransport(LocalRanks(1), 0)
    transport.clock = bench.clock
    return MessagePlan(
        [(opcode, index, 0, 0, 0, 0) for opcode, index in instructions],
        [],
        [],
        Loops(lambda *_: None),
        itemsize=4,
        partial_itemsize=4,
        device=works,
        transport=transport,
        status=transport.new_status(),
        keep=None,
        info=Info(),
    )


def test_plans_submit_works_and_wait_for_them(each_order):
    bench = each_order
    pinned = pinned_bytes(bench.device, 4 * N, 0)
    place = (ABSOLUTE, pinned.ctypes.data)
    works = bench.works(
        [
            work(REDUCE, COMPUTE, (TARGET, 0), (SOURCE, 0), (SOURCE, 0), N, is_marked=True),
            work(COPY_DOWN, DOWN, place, (TARGET, 0), nbytes=4 * N, after=[0], is_marked=True),
        ]
    )
    submit, wait = Opcode.SUBMIT, Opcode.AWAIT
    plan = plan_with(bench, works, (wait, -1), (submit, 0), (submit, 1), (wait, 1))
    x, out = bench.array(), bench.array()
    for call in range(1, 3):
        x.fill(call)
        with bench.device:
            bench.queue.follow(bench.user)
            plan.run(x.address, out.address)
            bench.fake.host_reads(pinned.ctypes.data, 4 * N)
            assert (pinned.view(np.float32) == 2 * call).all()
            bench.queue.lead(bench.user)
        assert plan.bytes_reduced == 4 * N
        assert bench.clock.number == call


def test_a_plan_that_waits_too_long_is_lost(bench):
    works = bench.works([work(COPY, DOWN, (TARGET, 0), (SOURCE, 0), nbytes=8, is_marked=True)])
    plan = plan_with(bench, works, (Opcode.SUBMIT, 0), (Opcode.AWAIT, 0))
    bench.clock.limit = 10_000_000
    bench.fake.hold(bench.queue.streams[DOWN])
    x, out = bench.array(1), bench.array()
    # What the plan submitted is complete before the error is raised.
    release = threading.Timer(0.3, bench.fake.release, [bench.queue.streams[DOWN]])
    release.start()
    with bench.device:
        bench.queue.follow(bench.user)
        with pytest.raises(CollectiveTimeoutError, match="work 1 of 1 on CUDA device 0"):
            plan.run(x.address, out.address)
    assert bench.clock.broken == "call 1 on this communicator was given up"
    bench.fake.finish(bench.queue.streams[DOWN])
    release.join()
    assert not plan.usable
    assert _device.abandoned == []

"""Which stream the caller's work is on, and how calls are put in order with it."""

import ctypes
import sys
import types

import numpy as np
import pytest
from fake_cuda import FakeCuda

from hpccoll.cuda import streams
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.streams import LEGACY, PER_THREAD, CallerStreams, Moment, given_stream


@pytest.fixture
def fake():
    with FakeCuda(devices=2, kernels=object()) as fake:
        yield fake


class Stream:
    """A stream of some library: the attributes that it is made with."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def of_protocol(pair, **attributes):
    return Stream(__cuda_stream__=pair, **attributes)


def nothing(*_):
    pass


GIVEN = {
    "a handle": (0x1234, 0x1234, None),
    "a handle of NumPy": (np.int64(0x1234), 0x1234, None),
    "the default": (0, LEGACY, None),
    "the default of the thread": (2, PER_THREAD, None),
    "a long handle": (0x7FFF_1234_5678, 0x7FFF_1234_5678, None),
    "cuda.core": (of_protocol(lambda: (0, 0x1234)), 0x1234, None),
    "the protocol as an attribute": (of_protocol((0, 0x1234)), 0x1234, None),
    "torch": (Stream(cuda_stream=0x1234, device_index=1), 0x1234, 1),
    "torch's default": (Stream(cuda_stream=0, device_index=0), LEGACY, 0),
    "CuPy": (Stream(ptr=0x1234, wait_event=nothing, device_id=1), 0x1234, 1),
    "CuPy's default": (Stream(ptr=0, wait_event=nothing, device_id=-1), LEGACY, None),
    "Numba": (Stream(handle=ctypes.c_void_p(0x1234), synchronize=nothing), 0x1234, None),
    "Numba's default": (Stream(handle=ctypes.c_void_p(0), synchronize=nothing), LEGACY, None),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_stream_of_any_library_is_taken(name):
    stream, handle, device = GIVEN[name]
    assert given_stream(stream) == streams.GivenStream(handle, device)


def test_no_stream_is_none():
    assert given_stream(None) is None


@pytest.mark.parametrize(
    "stream",
    [
        *("text", 1.5, True, object(), [1]),
        Stream(ptr=0x1234),  # a pointer of CuPy's, or an event
        Stream(handle=0x1234),
        Stream(cuda_stream="text"),
    ],
)
def test_what_is_no_stream_is_refused(stream):
    kind = type(stream).__name__
    with pytest.raises(TypeError, match=rf"^stream is .* of type {kind}; wanted a handle .*CuPy"):
        given_stream(stream)


def test_a_negative_handle_is_refused():
    with pytest.raises(ValueError, match="stream is -5; wanted the handle of a stream"):
        given_stream(-5)


# The current stream of an array.


class Exporter:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"version": 3, **interface}


@pytest.mark.parametrize(
    ("interface", "stream"),
    [
        ({}, LEGACY),
        ({"stream": None}, LEGACY),
        ({"stream": 1}, LEGACY),
        ({"stream": 2}, PER_THREAD),
        ({"stream": 0x1234}, 0x1234),
    ],
)
def test_the_interface_names_the_stream(interface, stream):
    assert streams.current_stream(Exporter(**interface), 0) == stream


@pytest.mark.parametrize("stream", [0, -1, True, "1"])
def test_a_stream_that_the_interface_must_not_name_is_refused(stream):
    with pytest.raises(ValueError, match=rf"of a Exporter has the stream {stream!r}; wanted None"):
        streams.current_stream(Exporter(stream=stream), 0)


class Tensor:
    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("of a tensor that requires grad")


@pytest.mark.parametrize(("current", "stream"), [(0x1234, 0x1234), (0, LEGACY)])
def test_torch_tells_its_current_stream(monkeypatch, current, stream):
    asked = []

    def current_stream(device):
        asked.append(device)
        return Stream(cuda_stream=current)

    cuda = types.SimpleNamespace(current_stream=current_stream)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, cuda=cuda))
    assert streams.current_stream(Tensor(), 1) == stream
    assert asked == [1]


class Entered:
    """A context manager that notes what was entered, and when it was left."""

    entered = ()

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        Entered.entered = (*Entered.entered, self.number)

    def __exit__(self, *exception):
        Entered.entered = Entered.entered[:-1]


def test_cupy_tells_its_current_stream_on_the_device(monkeypatch):
    def get_current_stream():
        assert Entered.entered == (1,)
        return Stream(ptr=0x1234)

    cuda = types.SimpleNamespace(Device=Entered, get_current_stream=get_current_stream)
    # CuPy names its stream in the interface, too, but not in all of its versions.
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=Exporter, cuda=cuda))
    assert streams.current_stream(Exporter(), 1) == 0x1234
    assert Entered.entered == ()


def test_what_came_by_dlpack_is_told_of_the_stream():
    told = []
    x = types.SimpleNamespace(__dlpack__=lambda *, stream: told.append(stream))
    assert streams.current_stream(streams.Exported(x, None), 0) == LEGACY
    assert told == [LEGACY]


# Moments.


def test_a_call_is_on_the_streams_of_its_arguments():
    x, out = Exporter(stream=0x10), Exporter(stream=0x20)
    assert CallerStreams(1, owners=(x,)).now() == Moment(1, 0x10)
    assert CallerStreams(1, owners=(x, out, x)).now() == Moment(1, 0x10, (0x20,))
    assert CallerStreams(1, (0x30,)).now() == Moment(1, 0x30)
    assert CallerStreams(1).now() == Moment(1, LEGACY)
    x.__cuda_array_interface__["stream"] = 0x40
    assert CallerStreams(1, owners=(x, out)).now() == Moment(1, 0x40, (0x20,))


def test_streams_can_be_fixed_and_joined():
    x, out = Exporter(stream=0x10), Exporter(stream=0x20)
    fixed = CallerStreams(1, owners=(x, out)).fixed()
    x.__cuda_array_interface__["stream"] = 0x40
    assert fixed.now() == Moment(1, 0x10, (0x20,))
    both = fixed.joined([CallerStreams(1, (0x20, 0x30)), CallerStreams(1, owners=(x, x))])
    assert both.now() == Moment(1, 0x10, (0x20, 0x30, 0x40))


@pytest.fixture
def memory(fake):
    address = get_device(0).allocate(64)
    yield address, 64
    get_device(0).free(address)


def test_a_body_is_between_the_work_of_all_streams(fake, memory):
    first, second = fake.new_stream(), fake.new_stream()
    done = []
    fake.enqueue(second, "producer", lambda: done.append("producer"), writes=[memory])
    with Moment(0, first, (second,)).joined():
        fake.enqueue(first, "call", lambda: done.append("call"), writes=[memory])
    fake.enqueue(second, "consumer", lambda: done.append("consumer"), reads=[memory])
    fake.finish(second)
    assert done == ["producer", "call", "consumer"]


def test_a_recorded_moment_is_taken_up_by_another_stream(fake, memory):
    mine, own = fake.new_stream(), get_device(0).new_stream()
    done = []
    fake.enqueue(mine, "before", lambda: done.append("before"), writes=[memory])
    moment = Moment(0, mine).record()
    fake.enqueue(mine, "after", lambda: done.append("after"))  # is not waited for
    fake.hold(mine)
    here = moment.resume(own)
    assert here == Moment(0, own)
    assert moment.event == 0
    fake.release(mine)
    fake.enqueue(own, "call", lambda: done.append("call"), reads=[memory])
    streams.wait_for(0, own)
    assert done.index("before") < done.index("call")
    fake.finish(mine)
    get_device(0).destroy_stream(own)


def test_a_moment_that_nobody_took_up_gives_its_event_back(fake):
    moment = Moment(0, LEGACY).record()
    del moment
    assert fake.calls["cuEventDestroy"] == fake.calls["cuEventCreate"] == 1


def test_order_leaves_no_event_behind(fake):
    first, then = fake.new_stream(), fake.new_stream()
    streams.order(0, first=first, then=then)
    streams.order(0, first=first, then=first)
    assert fake.calls["cuEventDestroy"] == fake.calls["cuEventCreate"] == 1


def test_a_stream_is_checked_for_its_device(fake):
    stream = fake.new_stream()
    streams.check_stream(streams.GivenStream(stream), 0)
    streams.check_stream(streams.GivenStream(stream, 0), 0)
    with pytest.raises(ValueError, match="stream is one of device 0, and x lies on device 1"):
        streams.check_stream(streams.GivenStream(stream, 0), 1)
    fake.fail("cuEventRecord", 400)
    with pytest.raises(ValueError, match=rf"stream is {stream:#x}, which is no stream of device 0"):
        streams.check_stream(streams.GivenStream(stream), 0)
    assert fake.calls["cuEventDestroy"] == fake.calls["cuEventCreate"]


def test_the_host_waits_for_one_stream_alone(fake):
    held, stream = fake.new_stream(), fake.new_stream()
    done = []
    fake.enqueue(held, "for ever")
    fake.hold(held)
    fake.enqueue(stream, "work", lambda: done.append("work"))
    streams.wait_for(0, stream)
    assert done == ["work"]
    fake.release(held)
    assert not {"cuStreamSynchronize", "cuCtxSynchronize"} & set(fake.calls)


def test_who_waits_can_be_interrupted(fake):
    stream = fake.new_stream()
    fake.enqueue(stream, "for ever")
    fake.hold(stream)

    def look():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streams.wait_for(0, stream, look)
    fake.release(stream)
    assert fake.calls["cuEventDestroy"] == fake.calls["cuEventCreate"]

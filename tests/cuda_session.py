"""Tests of device memory under mpiexec: on a fake driver, or on the GPUs that are there.

With ``HPCCOLL_TEST_GPU=1`` the same tests run on real devices, where nothing is checked but the
results. Test modules take the fixtures that they name from here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from host_kernels import HostCompiler

import hpccoll
from hpccoll import transport
from hpccoll.cuda import compilation, cuda_array
from hpccoll.cuda.driver import get_device, get_driver

REAL = os.environ.get("HPCCOLL_TEST_GPU") == "1"

WAYS = {
    "direct": {"HPCCOLL_CUDA": "direct", "HPCCOLL_CUDA_IPC": "off"},
    "staged, device": {
        "HPCCOLL_CUDA": "staged",
        "HPCCOLL_CUDA_REDUCE": "device",
        "HPCCOLL_CUDA_IPC": "off",
    },
    "staged, host": {
        "HPCCOLL_CUDA": "staged",
        "HPCCOLL_CUDA_REDUCE": "host",
        "HPCCOLL_CUDA_IPC": "off",
    },
    "mapped": {"HPCCOLL_CUDA": "staged"},
}
"""By the name of a way that calls can go, the environment in which they go it."""


class CheckedRequest:
    """A request of MPI's that tells the fake from when to when it uses memory."""

    def __init__(self, fake: FakeCuda, request: Any, address: int, nbytes: int, text: str) -> None:
        self.fake, self.request, self.text = fake, request, text
        self.address, self.nbytes = address, nbytes
        self.accesses: Any = []

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        writes = self.text.startswith("a receive")
        self.accesses = self.fake.host_begins(
            self.address, self.nbytes, writes=writes, text=self.text
        )
        self.request.Start()

    def Test(self, status: Any = None) -> bool:  # noqa: N802 - mpi4py's name
        done = self.request.Test(status)
        if done:
            self.fake.host_ends(self.accesses)
            self.accesses = []
        return done

    def Cancel(self) -> None:  # noqa: N802 - mpi4py's name
        self.request.Cancel()
        self.fake.host_ends(self.accesses)

    def Free(self) -> None:  # noqa: N802 - mpi4py's name
        self.request.Free()

    def Wait(self, status: Any = None) -> bool:  # noqa: N802 - mpi4py's name
        return bool(self.request.Wait(status))


class Gpu:
    """What a test sees of the devices."""

    def __init__(self, rank: int, fake: FakeCuda | None) -> None:
        self.fake = fake
        self.device = rank % get_driver().device_count()
        if fake is None:
            self.stream = get_device(self.device).new_stream()
        else:
            self.stream = fake.new_stream(self.device)

    def array(self, values: Any) -> Any:
        """Return an array on the device, whose contents its stream has yet to produce."""
        values = np.asarray(values)
        if self.fake is None:
            return cuda_array.asarray(values, self.device, stream=self.stream)
        from fake_arrays import FakeArray

        return FakeArray(values.shape, values.dtype, self.device, self.stream).fill(values)

    def numpy(self, x: Any) -> np.ndarray:
        """Return the contents, as what comes next in the stream finds them."""
        return cuda_array.asnumpy(x) if self.fake is None or not hasattr(x, "numpy") else x.numpy()


@contextmanager
def gpu(rank: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Give devices: fake ones, where messages that are not ordered are found; or real ones."""
    if REAL:
        found = Gpu(rank, None)
        yield found
        get_device(found.device).destroy_stream(found.stream)
        return
    monkeypatch.setattr(compilation, "NvrtcCompiler", HostCompiler)
    with FakeCuda(devices=2, seed=rank) as fake:
        make_send = transport.MpiTransport.send_request
        make_receive = transport.MpiTransport.receive_request
        handle = transport.MpiTransport.handle

        def send(self: Any, address: int, nbytes: int, peer: int, tag: int) -> CheckedRequest:
            request = make_send(self, address, nbytes, peer, tag)
            return CheckedRequest(fake, request, address, nbytes, f"a send to rank {peer}")

        def receive(self: Any, address: int, nbytes: int, peer: int) -> CheckedRequest:
            request = make_receive(self, address, nbytes, peer)
            return CheckedRequest(fake, request, address, nbytes, f"a receive from rank {peer}")

        monkeypatch.setattr(transport.MpiTransport, "send_request", send)
        monkeypatch.setattr(transport.MpiTransport, "receive_request", receive)
        monkeypatch.setattr(
            transport.MpiTransport,
            "handle",
            lambda self, thing: handle(self, getattr(thing, "request", thing)),
        )
        # Requests have to be asked by `Test`, which tells the fake.
        monkeypatch.setattr(transport, "_find_test", lambda: 0)
        yield Gpu(rank, fake)


@pytest.fixture(name="way", params=WAYS)
def which_way(request: pytest.FixtureRequest, comm: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the environment for each of the ways in turn, and return its name."""
    if REAL and request.param == "direct":
        # An MPI library that is given device memory, and cannot take it, ends the process.
        told = comm.bcast(hpccoll.info()["cuda_aware"])
        if told["answer"] != "yes":
            pytest.skip(f"this MPI library takes no device memory: {told['how']}")
    for name, value in WAYS[request.param].items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture(name="gpu")
def devices(comm: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Give devices to calls that go that way."""
    with gpu(comm.rank, monkeypatch) as found:
        yield found


@pytest.fixture(name="ours")
def our_communicator(gpu: Gpu, comm: Any) -> Iterator[hpccoll.Comm]:
    """Give a communicator whose channel goes before the devices do."""
    made = hpccoll.Comm(comm).Dup()
    yield made
    made.Free()

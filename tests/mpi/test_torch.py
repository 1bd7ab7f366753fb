"""Tensors of torch through both doors, on all ranks."""

import numpy as np
import pytest
from inputs import contribution, expected

import hpccoll

pytestmark = [pytest.mark.mpi, pytest.mark.limit(240)]  # many ranks that import torch share a core


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def tensor(torch, values, dtype):
    return torch.tensor(values.astype("float32")).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_come_back_as_tensors(torch, comm, dtype):
    kind = getattr(torch, dtype)
    for op in ("sum", "mean", "max"):
        mine = contribution(comm.rank, 3000, dtype, op, comm.size).astype("f4").reshape(60, 50)
        total = expected(3000, dtype, op, comm.size).astype("f4").reshape(60, 50)
        for view in (lambda t: t, lambda t: t.T, lambda t: t[::2, 1::3], lambda t: t[3, 4]):
            x, wanted = view(tensor(torch, mine, kind)), view(tensor(torch, total, kind))
            kept = x.clone()
            result = hpccoll.allreduce(x, op, comm=comm)
            assert type(result) is torch.Tensor
            assert result.dtype is kind
            assert torch.equal(result, wanted)
            assert torch.equal(x, kept)
            assert hpccoll.allreduce(x, op, out=x, comm=comm) is x
            assert torch.equal(x, wanted)


def test_gradients_are_averaged_in_place(torch, comm):
    weight = torch.nn.Parameter(torch.ones(40, 30))
    (weight * (comm.rank + 1)).sum().backward()
    gradient = weight.grad
    assert hpccoll.allreduce(gradient, "mean", out=gradient, comm=comm) is gradient
    assert torch.equal(weight.grad, torch.full((40, 30), (comm.size + 1) / 2))
    with pytest.raises(TypeError, match=r"requires grad.*x\.detach\(\)"):
        hpccoll.allreduce(weight, comm=comm)
    out = np.empty((40, 30), "f4")
    hpccoll.allreduce(weight.detach(), out=out, comm=comm)
    assert (out == comm.size).all()


def test_comm_allreduce_takes_tensors(torch, comm):
    wrapped = hpccoll.Comm(comm)
    for count in (10, 5000):
        mine = contribution(comm.rank, count, "float32", "sum", comm.size)
        total = expected(count, "float32", "sum", comm.size)
        x, out = tensor(torch, mine, torch.float32), torch.zeros(count)
        for _ in range(2):
            wrapped.Allreduce(x, out)
            assert wrapped.last_call.path != "native"
            assert out.numpy().tobytes() == total.tobytes()
            out.zero_()
        with pytest.raises(TypeError, match=r"requires grad"):
            wrapped.Allreduce(x.clone().requires_grad_(), out)


def test_an_expanded_tensor_cannot_receive(torch, comm):
    x, out = torch.ones(3, 4), torch.zeros(4).expand(3, 4)
    with pytest.raises(ValueError, match=r"out.*overlap"):
        hpccoll.allreduce(x, out=out, comm=comm)
    assert torch.equal(hpccoll.allreduce(out + 1, comm=comm), torch.full((3, 4), float(comm.size)))

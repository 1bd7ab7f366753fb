"""The examples run, say what they promise, and notice when something is wrong."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
QUICK = ["--epochs", "2", "--hidden", "16", "--batch", "200"]


def load_example(name):
    """Import an example by its path; it runs on the ranks that are there already."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be sent
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    return load_example("train_digits")


@pytest.mark.limit(180)
def test_digits_are_learned_and_the_weights_agree(digits, capfd):
    status = digits.main(["--epochs", "12"])
    output = capfd.readouterr().out
    assert status == 0
    if MPI.COMM_WORLD.rank:
        assert output == ""
        return
    epochs = re.findall(r"^ +(\d+) +(\d+\.\d+) +(\d+\.\d)%$", output, re.MULTILINE)
    assert [int(epoch) for epoch, _, _ in epochs] == list(range(1, 13))
    assert float(epochs[-1][1]) < float(epochs[0][1]) / 5
    assert float(epochs[-1][2]) > 90
    rows = re.findall(r"^(\w+) +[\d.]+ +\d+% +([\d,]+) B +(\S+)  yes$", output, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(ALGORITHMS)
    nbytes = 8 * (64 * 64 + 64 + 64 * 10 + 10)
    for name, sent, difference in rows:
        simulation = hpccoll.simulate(name, size=MPI.COMM_WORLD.size, nbytes=nbytes, itemsize=8)
        assert int(sent.replace(",", "")) == max(rank.bytes_sent for rank in simulation.ranks)
        assert float(difference) < 1e-12
    assert "weights are the same bytes on all ranks" in output
    assert output.endswith("all agree\n")


@pytest.mark.limit(120)
@pytest.mark.parametrize("batch", ["1", "7"])
def test_batches_may_be_smaller_than_the_number_of_ranks(digits, capfd, monkeypatch, batch):
    monkeypatch.setattr(digits, "COMPARED_EPOCHS", 1)
    monkeypatch.setattr(digits, "TEST_IMAGES", 1797 - 100)
    assert digits.main([*QUICK[:4], "--batch", batch, "--algorithm", "ring"]) == 0
    assert MPI.COMM_WORLD.rank or capfd.readouterr().out.endswith("all agree\n")


def plain_mean(backward):
    """Weigh the images of a shard by its size: wrong where shards differ."""

    def wrong(self, images, labels, factor):
        return backward(self, images, labels, 1 / max(len(labels), 1))

    return wrong


def lost_shard(backward):
    """Lose what the last rank has."""

    def wrong(self, images, labels, factor):
        last = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
        return backward(self, images, labels, 0 if last else factor)

    return wrong


@pytest.mark.mpi(min_size=2)
@pytest.mark.limit(120)
@pytest.mark.parametrize("mistake", [plain_mean, lost_shard])
def test_a_wrong_gradient_is_noticed(digits, capfd, monkeypatch, mistake):
    monkeypatch.setattr(digits.Network, "backward", mistake(digits.Network.backward))
    monkeypatch.setattr(digits, "COMPARED_EPOCHS", 1)
    # 1437 = 7 * 200 + 37 images: no number of ranks up to 36 divides 37.
    assert digits.main(QUICK) == 1
    output = capfd.readouterr().out
    assert "all agree" not in output
    if MPI.COMM_WORLD.rank == 0:
        assert output.splitlines()[-1].startswith("THE WEIGHTS DIFFER")


@pytest.mark.mpi(min_size=2)
@pytest.mark.limit(120)
def test_a_rank_with_other_bytes_is_noticed(digits, capfd, monkeypatch):
    allreduce = hpccoll.allreduce

    def one_bit_off(x, *args, out=None, comm, **options):
        result = allreduce(x, *args, out=out, comm=comm, **options)
        if out is not None and comm.size > 1 and comm.rank == comm.size - 1:
            out[-1] = np.nextafter(out[-1], 1)
        return result

    monkeypatch.setattr(hpccoll, "allreduce", one_bit_off)
    monkeypatch.setattr(digits, "COMPARED_EPOCHS", 1)
    assert digits.main(QUICK) == 1
    output = capfd.readouterr().out
    if MPI.COMM_WORLD.rank == 0:
        assert "NOT THE SAME" in output
        assert output.count("  NO\n") == len(ALGORITHMS)


def test_a_missing_scikit_learn_is_named_once(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert load_example("train_digits").main([]) == 1
    output = capfd.readouterr()
    assert output.out == ""
    wanted = "" if MPI.COMM_WORLD.rank else "pip install scikit-learn"
    assert wanted in output.err
    assert bool(output.err) == bool(wanted)


@pytest.mark.parametrize("options", [["--batch", "0"], ["--algorithm", "rings"], ["--epochs", "x"]])
def test_options_that_make_no_sense_are_refused(capfd, options):
    with pytest.raises(SystemExit) as caught:
        load_example("train_digits").main(options)
    assert caught.value.code == 2
    assert options[0] in capfd.readouterr().err


@pytest.fixture(scope="module")
def poisson():
    return load_example("poisson_cg")


def solutions(poisson, comm, n, tolerance=1e-9):
    """Solve by each solver with each communicator."""
    domain = poisson.Domain(comm, n)
    comms = {"MPI": domain.cart, "hpccoll": hpccoll.Comm(domain.cart)}
    results = {
        (solver, name): poisson.solve(domain, reducer, solver, tolerance)
        for solver in poisson.SOLVERS
        for name, reducer in comms.items()
    }
    assert comms["hpccoll"].last_call.path != "native"
    domain.free()
    return results


@pytest.mark.limit(120)
@pytest.mark.parametrize("n", [11, 16])
def test_the_error_of_poisson_is_that_of_the_grid(poisson, comm, n):
    coarse, fine = (solutions(poisson, comm, cells) for cells in (n, 2 * n))
    for cells, results in ((n, coarse), (2 * n, fine)):
        counts = [result.iterations for result in results.values()]
        assert n < min(counts) <= max(counts) <= min(counts) + 1
        for (solver, _), result in results.items():
            assert result.same_bytes
            assert result.residual < 1.1e-9
            assert result.error < poisson.grid_error(cells) + poisson.LEFT * cells * 1.1e-9
            sums = 2 if solver == "plain" else 1
            assert result.calls == 1 + sums * result.iterations
    for case, result in coarse.items():
        assert 3.6 < result.error / fine[case].error < 4.4


@pytest.mark.limit(120)
def test_poisson_prints_what_it_measured(poisson, capfd):
    assert poisson.main(["--grid", "20", "--repeats", "1"], standalone_mode=False) == 0
    output = capfd.readouterr().out
    if MPI.COMM_WORLD.rank:
        assert output == ""
        return
    rows = re.findall(r"^ *(\w+) +(MPI|hpccoll) +(\d+) +\S+ +(\S+) ", output, re.MULTILINE)
    cases = [(solver, name) for solver in poisson.SOLVERS for name in ("MPI", "hpccoll")]
    assert [(solver, name) for solver, name, _, _ in rows] == cases
    assert all(0 < float(error) < poisson.grid_error(20) for *_, error in rows)
    assert output.endswith("all agree\n")


@pytest.mark.mpi(min_size=2)
@pytest.mark.limit(120)
def test_blocks_of_poisson_that_do_not_meet_are_noticed(poisson, capfd, monkeypatch):
    monkeypatch.setattr(poisson.Domain, "exchange", lambda self: None)
    assert poisson.main(["--grid", "16", "--repeats", "1"], standalone_mode=False) == 1
    output = capfd.readouterr().out
    assert "all agree" not in output
    if MPI.COMM_WORLD.rank == 0:
        assert output.splitlines()[-1].startswith("THE SOLVERS DISAGREE")


@pytest.mark.parametrize("options", [["--grid", "3"], ["--tolerance", "2"], ["--repeats", "0"]])
def test_options_that_poisson_cannot_take_are_refused(poisson, capfd, options):
    with pytest.raises(SystemExit) as caught:
        poisson.main(options)
    assert caught.value.code == 2
    assert options[0] in capfd.readouterr().err

"""Calls that look like an earlier one, and are not: the plan cache must not be fooled."""

import os
import threading
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll

pytestmark = pytest.mark.mpi

COMM = MPI.COMM_WORLD


def total(x: np.ndarray) -> np.ndarray:
    """Return the sum over ranks of ``x * (rank + 1)``."""
    return x * (COMM.size * (COMM.size + 1) // 2)


@pytest.mark.parametrize("count", [12, 30000])
def test_a_result_of_another_shape_gets_its_elements_in_index_order(count: int) -> None:
    comm = hpccoll.Comm(COMM)
    x = np.arange(count, dtype=float)
    outs = [
        np.full((3, count // 3), -1.0, order="F"),
        np.full((5, count), -1.0)[:3, : count // 3],
        np.full((count // 3, 3), -1.0).T,
    ]
    for out in outs * 2:
        out[...] = -1
        comm.Allreduce(x * (comm.rank + 1), out)
        np.testing.assert_array_equal(out.reshape(-1), total(x))
    outs[0].flags.writeable = False
    with pytest.raises(BufferError, match="recvbuf is read-only"):
        comm.Allreduce(x, outs[0])


def test_a_shape_is_checked_also_where_a_plan_is_there() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for _ in range(2):
        hpccoll.allreduce(x, out=np.empty((2, 3)))
        with pytest.raises(ValueError, match=r"out has shape \(3, 2\)"):
            hpccoll.allreduce(x, out=np.empty((3, 2)))


def test_units_of_time_are_told_apart() -> None:
    seconds = np.full(5, 5, "m8[s]")
    for _ in range(2):
        np.testing.assert_array_equal(hpccoll.allreduce(seconds, "max"), seconds)
        thousandths = seconds.astype("m8[ms]")
        np.testing.assert_array_equal(hpccoll.allreduce(thousandths, "max"), thousandths)
        with pytest.raises(TypeError, match="out has dtype"):
            hpccoll.allreduce(seconds, "max", out=np.empty(5, "m8[ms]"))


def test_elements_that_share_memory_are_refused() -> None:
    strided = np.lib.stride_tricks.as_strided
    for out in (strided(np.zeros(1), (5,), (0,)), strided(np.zeros(6), (3, 4), (8, 8))):
        with pytest.raises(ValueError, match="overlap"):
            hpccoll.allreduce(np.arange(float(out.size)).reshape(out.shape), out=out)
    # As a contribution they are fine.
    x = np.broadcast_to(np.float64(COMM.rank + 1), (4, 3))
    np.testing.assert_array_equal(hpccoll.allreduce(x), total(np.ones((4, 3))))


def test_null_and_freed_communicators() -> None:
    freed = hpccoll.Comm(COMM.Dup())
    freed.Allreduce(MPI.IN_PLACE, np.ones(3))
    freed.Free()
    for comm in (MPI.COMM_NULL, freed):
        with pytest.raises(ValueError, match=r"comm is MPI\.COMM_NULL"):
            hpccoll.allreduce(np.ones(3), comm=comm)
    with pytest.raises(ValueError, match=r"MPI\.COMM_NULL"):
        freed.Allreduce(MPI.IN_PLACE, np.ones(3))


def test_in_place_is_not_a_contribution() -> None:
    with pytest.raises(TypeError, match="in place is allreduce"):
        hpccoll.allreduce(MPI.IN_PLACE, out=np.ones(3))


def test_a_forked_child_is_refused() -> None:
    x, y = np.ones(100), np.empty(100)
    comm = hpccoll.Comm(COMM)
    comm.Allreduce(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            comm.Allreduce(x, y)
        except RuntimeError as error:
            code = 0 if "forked child" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    comm.Allreduce(x, y)
    assert (y == COMM.size).all()


def test_threads_take_turns_also_with_packed_arrays() -> None:
    errors = []

    def work(number: int) -> None:
        x = np.full((40, 40), float(number)).T[::2]
        for _ in range(100):
            y = hpccoll.allreduce(x, comm=MPI.COMM_SELF)
            if not (y == number).all():
                errors.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors

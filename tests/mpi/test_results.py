"""What comes back from the functions: the type, shape and library of what went in."""

import array

import numpy as np
import pytest
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll


def mine(comm, count, dtype="float64", op="sum"):
    return contribution(comm.rank, count, dtype, op, comm.size)


def total(comm, count, dtype="float64", op="sum"):
    return expected(count, dtype, op, comm.size)


@pytest.mark.parametrize("kind", [int, float, complex])
def test_python_numbers_come_back_as_they_went_in(comm, kind):
    result = hpccoll.allreduce(kind(comm.rank + 1), comm=comm)
    assert type(result) is kind
    assert result == comm.size * (comm.size + 1) // 2
    assert type(hpccoll.allreduce(kind(3), "prod", comm=comm)) is kind


def test_a_mean_of_python_numbers(comm):
    assert hpccoll.allreduce(comm.rank + 0.5, "mean", comm=comm) == comm.size / 2
    assert hpccoll.allreduce((comm.rank + 0.5) * 1j, "mean", comm=comm) == comm.size / 2 * 1j


def test_python_truth_values_come_back_as_such(comm):
    first = comm.rank == 0
    assert hpccoll.allreduce(first, "lor", comm=comm) is True
    assert hpccoll.allreduce(first, "land", comm=comm) is (comm.size == 1)
    assert hpccoll.allreduce(first, "lxor", comm=comm) is True
    assert hpccoll.allreduce(first, "max", comm=comm) is True


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float32", "longdouble", "complex64", "m8[s]"]
)
def test_numpy_scalars_come_back_as_they_went_in(comm, dtype):
    x = np.array(comm.rank % 2).astype("i8").astype(dtype)[()]
    result = hpccoll.allreduce(x, "lor" if dtype == "bool" else "sum", comm=comm)
    assert type(result) is type(x)
    assert result.dtype == x.dtype
    wanted = comm.size > 1 if dtype == "bool" else comm.size // 2
    assert result == np.array(wanted).astype("i8").astype(dtype)


def test_an_array_without_dimensions_stays_one(comm):
    result = hpccoll.allreduce(np.array(1.5), comm=comm)
    assert type(result) is np.ndarray
    assert result.shape == ()
    assert result == 1.5 * comm.size
    out = np.zeros(())
    assert hpccoll.allreduce(1.5, out=out, comm=comm) is out
    assert out == 1.5 * comm.size


class Tagged(np.ndarray):
    def __array_finalize__(self, parent):
        self.unit = getattr(parent, "unit", None)


def test_a_subclass_keeps_its_type_and_attribute(comm):
    x = np.asfortranarray(mine(comm, 12).reshape(3, 4)).view(Tagged)
    x.unit = f"metre on rank {comm.rank}"
    result = hpccoll.allreduce(x, comm=comm)
    assert type(result) is Tagged
    assert result.unit == x.unit
    np.testing.assert_array_equal(result, total(comm, 12).reshape(3, 4))
    out = np.zeros((3, 4)).view(Tagged)
    assert hpccoll.allreduce(x, out=out, comm=comm) is out
    np.testing.assert_array_equal(out, total(comm, 12).reshape(3, 4))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_stays_a_matrix(comm):
    x = np.matrix(mine(comm, 12).reshape(3, 4))
    result = hpccoll.allreduce(x.T, comm=comm)
    assert type(result) is np.matrix
    np.testing.assert_array_equal(result, total(comm, 12).reshape(3, 4).T)


BUFFERS = {
    "bytearray": lambda values: bytearray(values.astype("u1").tobytes()),
    "memoryview": lambda values: memoryview(values.copy()),
    "memoryview with gaps": lambda values: memoryview(values.repeat(2))[::2],
    "array.array": lambda values: array.array("d", values),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_give_arrays_and_receive_results(comm, kind):
    dtype = "uint8" if kind == "bytearray" else "float64"
    make, wanted = BUFFERS[kind], total(comm, 20, dtype)
    x, out = make(mine(comm, 20, dtype)), make(np.zeros(20))
    result = hpccoll.allreduce(x, comm=comm)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, wanted, strict=True)
    assert hpccoll.allreduce(x, out=out, comm=comm) is out
    assert list(out) == wanted.tolist()
    assert hpccoll.allreduce(x, out=x, comm=comm) is x
    assert list(x) == wanted.tolist()


class Library:
    @staticmethod
    def from_dlpack(x):
        return Member(np.from_dlpack(x))


class Member:
    """An array of another library that follows the array API standard."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array_namespace__(self, api_version=None):
        return Library


def test_another_library_gets_its_own_arrays(comm):
    x = Member(mine(comm, 24).reshape(4, 6)[:, ::2])
    wanted = total(comm, 24).reshape(4, 6)[:, ::2]
    result = hpccoll.allreduce(x, comm=comm)
    assert type(result) is Member
    np.testing.assert_array_equal(result.values, wanted)
    out = Member(np.zeros((4, 3)))
    assert hpccoll.allreduce(x, out=out, comm=comm) is out
    np.testing.assert_array_equal(out.values, wanted)
    assert hpccoll.allreduce(x, out=x, comm=comm) is x
    np.testing.assert_array_equal(x.values, wanted)


def test_libraries_can_be_mixed(comm):
    out = np.zeros(20)
    hpccoll.allreduce(memoryview(mine(comm, 20)), out=out, comm=comm)
    np.testing.assert_array_equal(out, total(comm, 20))
    out = memoryview(bytearray(160)).cast("d")
    assert hpccoll.allreduce(Member(mine(comm, 20)), out=out, comm=comm) is out
    assert out.tolist() == total(comm, 20).tolist()


def test_ranks_may_pass_different_libraries(comm):
    make = [np.array, memoryview, Member, lambda values: array.array("d", values)][comm.rank % 4]
    result = hpccoll.allreduce(make(mine(comm, 20)), comm=comm)
    np.testing.assert_array_equal(getattr(result, "values", result), total(comm, 20))


def test_results_are_the_caller_s_own(comm):
    # Neither the next call nor a plan that is kept may change what was handed out.
    for count in (5, 5000):
        x = mine(comm, count)
        results = [hpccoll.allreduce(x * k, comm=comm) for k in range(1, 5)]
        for k, result in enumerate(results, 1):
            np.testing.assert_array_equal(result, k * total(comm, count))
            assert result.flags.owndata
        np.testing.assert_array_equal(x, mine(comm, count))


def test_the_default_communicator_is_the_world():
    world = MPI.COMM_WORLD
    result = hpccoll.allreduce(np.full(3, world.rank + 1))
    assert result.tolist() == [world.size * (world.size + 1) // 2] * 3


def test_names_and_objects_of_operations_mean_the_same(comm):
    for name in ("sum", "prod", "min", "max", "land", "lor", "lxor", "band", "bor", "bxor"):
        x = mine(comm, 50, "int32", name)
        for op in (name, getattr(MPI, name.upper()), MPI.Op(getattr(MPI, name.upper()))):
            result = hpccoll.allreduce(x, op, comm=comm)
            np.testing.assert_array_equal(result, total(comm, 50, "int32", name))

"""Arrays in shared memory as a user makes them: empty, zeros, full, shared_arrays, is_shared."""

import asyncio
import gc
import threading
import warnings

import numpy as np
import pytest
from fresh import python

import hpccoll
from hpccoll import _arena

SHAPES = [(), 0, 1, 5, (3, 0), (3, 4), [2, 3], np.int64(7), (100, 1000)]
TYPES = [float, "int8", ">f8", np.complex64, "S3", "datetime64[ns]", [("a", "i4"), ("b", "f8", 3)]]


def same_facts(array, expected):
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype, array.strides) == (
        expected.shape,
        expected.dtype,
        expected.strides,
    )
    for flag in ("OWNDATA", "WRITEABLE", "ALIGNED", "C_CONTIGUOUS", "F_CONTIGUOUS"):
        assert array.flags[flag] == expected.flags[flag], flag


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_arrays_are_as_numpys_and_lie_in_the_arena(shape, dtype):
    for order in ("C", "F"):
        array = hpccoll.empty(shape, dtype, order)
        same_facts(array, np.empty(shape, dtype, order))
        assert hpccoll.is_shared(array)
        assert array.ctypes.data % 64 == 0
        zeros = hpccoll.zeros(shape, dtype, order=order)
        same_facts(zeros, np.zeros(shape, dtype, order))
        assert zeros.tobytes() == bytes(zeros.nbytes)
        assert hpccoll.is_shared(zeros)
    assert not hpccoll.is_shared(np.empty(shape, dtype))  # the handler is gone again


@pytest.mark.parametrize("dtype", [None, "float32", "int8"])
@pytest.mark.parametrize("value", [7, 2.5, True, [1, 2, 3], 1 + 2j])
def test_full_is_as_numpys(value, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        array, expected = hpccoll.full((4, 3), value, dtype), np.full((4, 3), value, dtype)
    same_facts(array, expected)
    assert (array == expected).all()
    assert hpccoll.is_shared(array)


@pytest.mark.parametrize(
    "arguments",
    [(-1,), ("x",), (2.5,), ((3, None),), (3, "nonsense"), (3, float, "K"), (2**70,), (2**62,)],
    ids=str,
)
@pytest.mark.parametrize("name", ["empty", "zeros"])
def test_wrong_arguments_are_numpys_errors(name, arguments):
    with pytest.raises((TypeError, ValueError)) as expected:
        getattr(np, name)(*arguments)
    with pytest.raises(expected.type) as raised:
        getattr(hpccoll, name)(*arguments)
    assert str(raised.value) == str(expected.value)
    assert not hpccoll.is_shared(np.empty(3))


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "O")]], ids=str)
@pytest.mark.parametrize("name", ["empty", "zeros"])
def test_python_objects_are_refused(name, dtype):
    with pytest.raises(
        TypeError, match=rf"hpccoll\.{name}: dtype is .*; wanted one without Python"
    ):
        getattr(hpccoll, name)(3, dtype)


def test_comm_is_checked():
    from mpi4py import MPI

    assert hpccoll.is_shared(hpccoll.empty(3, comm=MPI.COMM_WORLD))
    with hpccoll.shared_arrays(MPI.COMM_SELF):
        assert hpccoll.is_shared(np.empty(5000))
    with pytest.raises(
        TypeError, match=r"hpccoll.zeros: comm is of type int; wanted an mpi4py.MPI"
    ):
        hpccoll.zeros(3, comm=3)
    with (
        pytest.raises(TypeError, match=r"hpccoll.shared_arrays: comm is of type str"),
        hpccoll.shared_arrays("x"),
    ):
        pass


def test_garbage_collection_frees_when_the_last_view_goes():
    gc.collect()
    before = _arena.live()
    array = hpccoll.empty(1000)
    view = array[10:20]
    del array
    assert _arena.live() == before + 1
    view[:] = 3
    del view
    assert _arena.live() == before
    loop = [hpccoll.empty(10)]
    loop.append(loop)
    del loop
    gc.collect()
    assert _arena.live() == before


def test_views_are_shared_and_copies_are_not():
    array = hpccoll.zeros((10, 20))
    views = [
        array[2:5, ::3], array[::-1, ::-2], array.T, array[3:3], array.reshape(-1)[7:],
        array.view(np.uint8), np.broadcast_to(array[0], (5, 20)), array[3, 4, ...],
        np.lib.stride_tricks.sliding_window_view(array, (2, 2)), array.real,
    ]  # fmt: skip
    assert all(map(hpccoll.is_shared, views))
    assert not any(map(hpccoll.is_shared, [array.copy(), array + 1, array[[0, 1]]]))
    with pytest.raises(TypeError, match="array is of type list; wanted an ndarray"):
        hpccoll.is_shared([1, 2])


def test_an_array_that_reaches_out_of_the_arena_is_not_shared():
    array = hpccoll.empty(10)
    strided = np.lib.stride_tricks.as_strided
    assert hpccoll.is_shared(strided(array, (2,), (8 * 5,)))
    for stride in (_arena.capacity(), -_arena.capacity()):
        assert not hpccoll.is_shared(strided(array, (2,), (stride,)))


def test_numpys_large_arrays_are_shared_in_the_context_and_small_ones_are_not():
    with hpccoll.shared_arrays():
        large, small = np.empty(16384, np.uint8), np.empty(16383, np.uint8)
        zeros = np.zeros((64, 64))
        total = large + large
    after = np.empty(16384, np.uint8)
    assert [hpccoll.is_shared(x) for x in (large, small, zeros, total, after)] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_min_bytes():
    with hpccoll.shared_arrays(min_bytes=np.int64(0)):
        assert hpccoll.is_shared(np.empty(1, np.uint8))
    with hpccoll.shared_arrays(min_bytes=800):
        assert hpccoll.is_shared(np.empty(100))
        assert not hpccoll.is_shared(np.empty(99))
    with pytest.raises(ValueError, match="min_bytes is -1; wanted 0 or more"):
        hpccoll.shared_arrays(min_bytes=-1).__enter__()
    with pytest.raises(TypeError):
        hpccoll.shared_arrays(min_bytes="16K").__enter__()


def shared(nbytes=20_000):
    return hpccoll.is_shared(np.empty(nbytes, np.uint8))


def test_contexts_nest_and_are_left_after_errors():
    with hpccoll.shared_arrays(min_bytes=1000):
        with hpccoll.shared_arrays(min_bytes=5000):
            assert shared(5000)
            assert not shared(1000)
            assert hpccoll.is_shared(hpccoll.empty(1))
            assert not shared(1000)
        assert shared(1000)
        with pytest.raises(KeyError), hpccoll.shared_arrays():
            raise KeyError
        assert shared(1000)
    assert not shared()


def test_as_a_decorator():
    @hpccoll.shared_arrays()
    def work(depth):
        return shared() and (depth == 0 or work(depth - 1)) and shared()

    assert work(3)
    assert not shared()
    assert work(0)


def test_another_thread_is_not_in_the_context():
    seen = []
    with hpccoll.shared_arrays():
        thread = threading.Thread(target=lambda: seen.append(shared()))
        thread.start()
        thread.join()
        assert shared()
    assert seen == [False]


def test_another_task_is_not_in_the_context():
    async def inside(entered, done):
        with hpccoll.shared_arrays():
            entered.set()
            await done.wait()
            return shared()

    async def main():
        entered, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(entered, done))
        await entered.wait()
        outside = shared()
        done.set()
        return outside, await task

    assert asyncio.run(main()) == (False, True)


def test_threads_make_and_drop_arrays_at_once():
    wrong = []
    before = _arena.live()

    def work(mark):
        with hpccoll.shared_arrays(min_bytes=100):
            kept = []
            for k in range(300):
                array = np.full(100 + 37 * (k % 50), float(mark))
                kept.append(array)
                kept[:-10] = []
                wrong.extend(mark for old in kept if not (old == mark).all())

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _arena.live() == before


def test_arrays_outlive_the_context_and_can_be_resized_there_and_back():
    gc.collect()
    before = _arena.live()
    with hpccoll.shared_arrays():
        array = np.arange(5000.0)
        small = np.arange(10.0)
    array.resize(50_000, refcheck=False)  # within the arena
    assert hpccoll.is_shared(array)
    assert (array[:5000] == np.arange(5000)).all()
    assert not array[5000:].any()
    array.resize(5, refcheck=False)
    assert array.tolist() == [0, 1, 2, 3, 4]
    small.resize(5000, refcheck=False)  # into it
    assert hpccoll.is_shared(small)
    assert small[:11].tolist() == [*range(10), 0]
    small.resize(3, refcheck=False)
    assert small.tolist() == [0, 1, 2]
    del array, small
    assert _arena.live() == before


def test_arrays_that_grow_step_by_step_get_there():
    with hpccoll.shared_arrays():
        array = np.fromiter((k * 0.5 for k in range(20_000)), float)
    assert hpccoll.is_shared(array)
    assert (array == np.arange(20_000) * 0.5).all()


def test_zeros_are_zeros_in_memory_that_was_used():
    for _ in range(3):
        with hpccoll.shared_arrays():
            array = np.zeros(100_000)
        assert hpccoll.is_shared(array)
        assert not array.any()
        array[:] = np.nan
        del array


def test_what_does_not_fit_says_how_much_there_is():
    code = (
        "import hpccoll\n"
        "x = hpccoll.empty(30 * 4096, 'uint8')\n"
        "for make in hpccoll.empty, hpccoll.zeros, lambda shape: hpccoll.full(shape, 1.5):\n"
        "    try: make((300, 100))\n"
        "    except MemoryError as error: print(error)\n"
        "del x\n"
        "print(hpccoll.is_shared(hpccoll.empty((300, 100))))"
    )
    *errors, after = python(code, HPCCOLL_ARENA="256K").splitlines()
    for name, error in zip(("empty", "zeros", "full"), errors, strict=True):
        assert error.startswith(
            f"hpccoll.{name}: wanted 234.4 KiB (240000 bytes) of memory that the node shares; "
            "135.9 KiB of 255.9 KiB are free, 135.8 KiB (139072 bytes) of them in one piece."
        )
        assert error.endswith("HPCCOLL_ARENA sets the size of the arena (now '256K')")
    assert after == "True"


OVERFLOW = """
import warnings
import numpy as np
import hpccoll
def work():
    with hpccoll.shared_arrays():
        kept = [np.full(40_000, k, 'uint8') for k in range(10)]
        kept.append(np.zeros(1 << 20, 'uint8'))
    return kept
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    kept = work()
    with hpccoll.shared_arrays():
        np.empty(10)
print([hpccoll.is_shared(x) for x in kept].count(True), len(caught), caught[0].lineno)
assert all((x == k).all() for k, x in enumerate(kept[:-1])) and not kept[-1].any()
small = kept[0]
small.resize(300_000, refcheck=False)
assert not hpccoll.is_shared(small) and not small.any()
print(caught[0].category.__name__, caught[0].message)
"""


def test_in_the_context_what_does_not_fit_is_made_elsewhere_with_one_warning():
    facts, text = python(OVERFLOW, HPCCOLL_ARENA="256K").splitlines()
    assert facts == "6 1 6"
    assert text.startswith(
        "RuntimeWarning hpccoll.shared_arrays: arrays that were made in ordinary memory, where "
        "collectives are slower: 5, of together 1.153 MiB. The largest wanted 1 MiB "
        "(1048576 bytes) of memory that the node shares; "
    )
    assert text.endswith("HPCCOLL_ARENA sets the size of the arena (now '256K')")


def test_where_the_system_has_no_such_memory_the_context_goes_on_without():
    code = (
        "import resource, hpccoll, numpy as np, warnings\n"
        "hpccoll.shared_arrays\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    with hpccoll.shared_arrays():\n"
        "        x = np.ones(5000)\n"
        "print(x.sum(), caught[0].message)"
    )
    said = python(code, HPCCOLL_ARENA="1M")
    assert said.startswith("5000.0 hpccoll.shared_arrays: arrays that were made in ordinary ")
    assert "memory, where collectives are slower: 1, of together 39.06 KiB. " in said
    assert "The largest had no place: cannot make the arena of 1 MiB" in said


def test_no_mpi_is_needed():
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import hpccoll, numpy as np\n"
        "with hpccoll.shared_arrays():\n"
        "    x = np.ones(5000)\n"
        "print(hpccoll.is_shared(x), hpccoll.is_shared(hpccoll.full(3, 1)))"
    )
    assert python(code) == "True True"


def test_arrays_that_live_at_the_end_of_the_program_do_no_harm():
    code = (
        "import hpccoll, numpy as np, atexit\n"
        "x = hpccoll.zeros(1000)\n"
        "hpccoll.shared_arrays().__enter__()\n"
        "y = np.ones(5000)\n"
        "atexit.register(lambda: print(x.sum(), y.sum()))"
    )
    assert python(code) == "0.0 5000.0"

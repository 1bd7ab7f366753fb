"""One `Call` on this rank: its arrays, how it is called, and what must come of it."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from fuzz import data
from fuzz.data import Array, Shape, dtype_of
from fuzz.normal import SCALARS
from fuzz.places import Room, place, turned
from fuzz.steps import Call
from hpccoll.chunks import chunks
from hpccoll.ops import OPERATIONS

METHODS = {
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "reduce_scatter": "Reduce_scatter_block",
    "allgather": "Allgather",
    "broadcast": "Bcast",
    "barrier": "Barrier",
}
VECTOR_METHODS = {"reduce_scatter": "Reduce_scatter", "allgather": "Allgatherv"}

GUARD = 64


class Prepared:
    """A call, with its arrays.

    Parameters
    ----------
    call : Call
        Which is `normal`.
    comm : mpi4py.MPI.Intracomm
        Where.
    wrapped : hpccoll.Comm
        The same, with the settings of the call.
    """

    def __init__(self, call: Call, comm: MPI.Intracomm, wrapped: "hpccoll.Comm") -> None:
        self.call = call
        self._comm, self._wrapped = comm, wrapped
        self.rank, self.size = comm.rank, comm.size
        self._root = call.root % self.size
        self._rooms: list[Room] = []
        self._parts: list[tuple[Room, Array, Any]] = []
        """Where results go: the memory, the elements, and which ones of the result they are."""
        self._seed = call.seed
        if call.collective != "barrier":
            self._measure()
            self._lay_out()

    # -- shapes ------------------------------------------------------------------------------------

    def _measure(self) -> None:
        call, size = self.call, self.size
        rows = [call.rows[rank % len(call.rows)] if call.rows else 1 for rank in range(size)]
        if call.collective == "reduce_scatter" and call.door == "function" and not call.counts:
            rows = [chunk.count for chunk in chunks(sum(rows), size)]
        starts = [0, *accumulate(rows)]
        self._rows = rows
        self._own = slice(starts[self.rank], starts[self.rank + 1])
        self._row = int(np.prod(call.rest, dtype=np.int64))
        split = call.collective in ("reduce_scatter", "allgather")
        first = (starts[-1],) if split else call.rows[:1]
        self._whole: Shape = (*first, *call.rest)
        part = (rows[self.rank], *call.rest) if call.rows else ()
        self._source_shape = part if call.collective == "allgather" else self._whole
        self._target_shape = part if call.collective == "reduce_scatter" else self._whole

    @property
    def _wants(self) -> bool:
        return self.call.collective != "reduce" or self.rank == self._root

    # -- arrays ------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        call = self.call
        dtype = dtype_of(call.dtype)
        shared = call.shared == "all" or (call.shared == "some" and self.rank % 2 == 0)
        layouts = [
            layout if layout in SCALARS else turned(layout, call.turn * self.rank)
            for layout in (call.source, call.target)
        ]
        self._starts = [0, *accumulate(self._rows)][:-1]
        if call.displaced:
            # In reverse order, two elements between them.
            ends = [0, *accumulate(count * self._row + 2 for count in reversed(self._rows))]
            self._starts = list(reversed([end + 2 for end in ends[:-1]]))
        if call.where == "in place":
            room = self._one_room(layouts[0], dtype, shared)
        elif call.where == "overlap":
            room = self._overlapping(dtype)
        else:
            source = "C order" if layouts[0] in SCALARS else layouts[0]
            room = place(source, self._source_shape, dtype, shared)
            self._rooms.append(room)
            self._source = room.array
            if call.where == "apart":
                shape = self._target_shape
                if call.displaced:
                    shape = (sum(self._rows) * self._row + 2 * self.size + 2,)
                room = place(layouts[1], shape, dtype, shared)
                self._rooms.append(room)
                self._target = room.array
        if call.where == "new":
            return
        if call.displaced:
            for start, place_, count in zip(
                self._starts, [0, *accumulate(self._rows)], self._rows, strict=False
            ):
                of_result = slice(place_ * self._row, (place_ + count) * self._row)
                part = self._target[start : start + count * self._row]
                self._parts.append((room, part, of_result))
        elif self._wants:
            self._parts.append((room, self._target, ...))

    def _one_room(self, layout: str, dtype: Any, shared: bool) -> Room:
        """Let input and output share their elements, as the collective has them in place."""
        call = self.call
        shape = self._whole
        if call.displaced:
            shape = (sum(self._rows) * self._row + 2 * self.size + 2,)
        room = place(layout, shape, dtype, shared)
        self._rooms.append(room)
        self._source = self._target = room.array
        if call.displaced:
            start = self._starts[self.rank]
            self._source = room.array[start : start + self._rows[self.rank] * self._row]
        elif call.collective == "allgather":
            self._source = room.array[self._own]
        elif call.collective == "reduce_scatter":
            self._target = room.array[: self._rows[self.rank]]
        return room

    def _overlapping(self, dtype: Any) -> Room:
        """Let input and output share a part of their memory, in another way than in place."""
        shift = self.call.shift
        lengths = [int(np.prod(s)) for s in (self._source_shape, self._target_shape)]
        starts = max(0, -shift), max(0, shift)
        nbytes = dtype.itemsize * max(s + n for s, n in zip(starts, lengths, strict=True))
        memory = np.zeros(nbytes + 2 * GUARD, np.uint8)
        self._source, self._target = (
            np.ndarray(shape, dtype, memory.data, GUARD + start * dtype.itemsize)
            for start, shape in zip(starts, (self._source_shape, self._target_shape), strict=True)
        )
        room = Room(memory, memory[GUARD : GUARD + nbytes])
        self._rooms.append(room)
        return room

    # -- data --------------------------------------------------------------------------------------

    def fill(self, run: int) -> None:
        """Write inputs, and rubbish everywhere else, for a run of that number."""
        if self.call.collective == "barrier":
            return
        self._seed = self.call.seed + run
        for room in self._rooms:
            room.clear()
        self._source[...] = self._brought(self.rank).reshape(self._source.shape)
        for room in self._rooms:
            room.note()
        if not self._is_loose:
            wanted = self._wanted() if self._wants else None
            for room, part, which in self._parts:
                assert wanted is not None
                values = wanted if which is ... else wanted.reshape(-1)[which]
                room.expect(part, values.reshape(part.shape))

    @property
    def _is_loose(self) -> bool:
        """Whether bytes of the result cannot be foretold."""
        return self.call.rounded or self.call.dtype in data.WITH_PADDING

    def _brought(self, rank: int) -> Array:
        call, seed = self.call, self._seed
        if call.collective == "broadcast":
            return data.moved(self._whole, call.dtype, rank, seed)
        if call.collective == "allgather":
            shape = (self._rows[rank], *call.rest) if call.rows else ()
            return data.moved(shape, call.dtype, rank, seed)
        if call.rounded:
            return data.rounded(self._whole, call.dtype, call.op, rank, seed)
        return data.brought(self._whole, call.dtype, call.op, rank, self.size, seed)

    def _wanted(self) -> Array:
        call = self.call
        if call.collective == "broadcast":
            return self._brought(self._root)
        if call.collective == "allgather":
            parts = [np.atleast_1d(self._brought(rank)) for rank in range(self.size)]
            return np.concatenate(parts)
        result = data.combined(self._whole, call.dtype, call.op, self.size, self._seed)
        return result[self._own] if call.collective == "reduce_scatter" else result

    # -- the call ----------------------------------------------------------------------------------

    def blocking(self) -> Any:
        """Make the call; return what it returns."""
        return self._start("{}", str)

    def begin(self) -> Any:
        """Begin the call; return its handle or request."""
        return self._start("i{}", lambda name: f"I{name.lower()}")

    def prepare(self) -> Any:
        """Prepare the call; return its request."""
        return self._start("", lambda name: f"{name}_init")

    def _start(self, function: str, method: Callable[[str], str]) -> Any:
        call = self.call
        if call.door == "function":
            run = getattr(hpccoll, function.format(call.collective))
            arguments, options = self._of_function()
            return run(*arguments, **options)
        names = VECTOR_METHODS if call.vector else METHODS
        return getattr(self._wrapped, method(names[call.collective]))(*self._of_method())

    @property
    def _operation(self) -> Any:
        op = self.call.op
        mpi = OPERATIONS[op].mpi if self.call.mpi_op else ""
        return getattr(MPI, mpi) if mpi else op

    def _of_function(self) -> tuple[list[Any], dict[str, Any]]:
        call = self.call
        options: dict[str, Any] = {"comm": self._comm}
        if call.collective == "barrier":
            return [], options
        x: Any = self._source
        if call.source in SCALARS:
            x = x[()] if call.source == "scalar" else x.item()
        elif call.readonly:
            x = x[...]
            x.flags.writeable = False
        if call.where == "in place":
            if call.collective != "broadcast":
                options["out"] = self._target if call.collective == "allgather" else x
        elif call.where != "new":
            options["out"] = self._target
        if call.algorithm != "auto":
            options["algorithm"] = call.algorithm
        if call.segment_bytes is not None:
            options["segment_bytes"] = call.segment_bytes
        if call.counts and call.collective in ("reduce_scatter", "allgather"):
            options["counts"] = self._rows
        arguments = [x]
        if call.collective in ("allreduce", "reduce", "reduce_scatter"):
            arguments.append(self._operation)
        if call.collective in ("reduce", "broadcast"):
            arguments.append(self._root)
        return arguments, options

    def _of_method(self) -> list[Any]:
        call, rank = self.call, self.rank
        if call.collective == "barrier":
            return []
        if call.collective == "broadcast":
            return [self._spec(self._source), self._root]
        in_place = call.where == "in place"
        x = self._source
        if call.readonly:
            x = x[...]
            x.flags.writeable = False
        send: Any = None
        if not in_place or (call.collective == "reduce" and rank != self._root):
            blocks = call.collective == "reduce_scatter" and not call.vector
            send = self._spec(x, self.size if blocks else 1)
        elif self.call.seed % 2:
            send = MPI.IN_PLACE
        receive: Any = self._rooms[0].array if in_place else self._target
        if call.collective == "reduce" and rank != self._root and call.seed % 2:
            receive = None
        elif call.collective == "allgather":
            receive = self._gathered_spec() if call.vector else self._spec(receive, self.size)
        elif call.collective == "reduce_scatter" and in_place and not call.vector:
            receive = self._spec(receive, self.size)
        else:
            receive = self._spec(receive)
        if call.collective == "allgather":
            return [send, receive]
        if call.collective == "reduce":
            return [send, receive, self._operation, self._root]
        if call.vector:
            counts = [count * self._row for count in self._rows] if call.counts else None
            return [send, receive, counts, self._operation]
        return [send, receive, self._operation]

    def _spec(self, array: Array, blocks: int = 1) -> Any:
        """Return a form of a buffer that has so many blocks, of which counts tell the length."""
        form, count = self.call.form_of_buffer, array.size // blocks
        if form == "array":
            return array
        if form == "count":
            return [array, count]
        if form == "memoryview":
            return memoryview(array)
        datatype = MPI.Datatype.fromcode(array.dtype.char)
        if form == "type":
            return [array, datatype]
        if form == "code":
            return [array, array.dtype.char]
        if form == "both":
            return [array, (count, 0), datatype]
        if form == "bytes" and array.size:
            return [array.reshape(-1).view(np.uint8), count, datatype]
        if form == "part" and array.size:
            room = next(room for room in self._rooms if np.shares_memory(room.memory, array))
            start = (
                array.__array_interface__["data"][0] - room.memory.__array_interface__["data"][0]
            )
            before = min(2, start // array.itemsize)
            wide = np.ndarray(
                (before + array.size + 1,), array.dtype, room.memory.data,
                start - before * array.itemsize,
            )  # fmt: skip
            wide.flags.writeable = array.flags.writeable
            return [wide, (count, before), datatype]
        return (array, count, datatype)

    def _gathered_spec(self) -> Any:
        """Return a form of the buffer of an ``Allgatherv``."""
        call, array = self.call, self._rooms[0 if self.call.where == "in place" else -1].array
        if call.where == "overlap":
            array = self._target
        counts = [count * self._row for count in self._rows]
        starts = self._starts if call.displaced else [s * self._row for s in self._starts]
        even = [chunk.count for chunk in chunks(sum(counts), self.size)] == counts
        if not call.counts and even and not call.displaced:
            return array
        form = call.form_of_buffer
        if form in ("array", "count", "memoryview") and not call.displaced:
            return [array, counts]
        if form in ("array", "count", "memoryview", "type"):
            return [array, (counts, starts)]
        datatype = MPI.Datatype.fromcode(array.dtype.char)
        if form == "both":
            return [array, (counts, starts), datatype]
        return [array, counts, starts, datatype]

    # -- what came of it ---------------------------------------------------------------------------

    def complaint(self, result: Any) -> str:
        """Say what is wrong after a run, if it returned `result`; empty if all is well."""
        if self.call.collective == "barrier":
            return "" if self.call.door == "method" or result is None else f"returned {result!r}"
        wrong = self._of_result(result) if self.call.door == "function" else ""
        if self._is_loose:
            for _, part, which in self._parts:
                wrong = wrong or self._of_loose(part, which)
        return wrong or "; ".join(filter(None, (room.complaint() for room in self._rooms)))

    def _of_result(self, result: Any) -> str:
        """Check what a function returned."""
        call = self.call
        if not self._wants:
            return "" if result is None else f"returned {result!r} where None was wanted"
        if call.where == "in place" and call.collective == "reduce_scatter":
            same = result.shape == self._target.shape and (
                not result.size or np.shares_memory(result, self._target)
            )
            return "" if same else "did not return the first rows"
        if call.where != "new":
            return "" if result is self._target else "did not return out"
        if call.source in SCALARS and call.collective != "allgather":
            wanted = self._source[()] if call.source == "scalar" else self._source.item()
            if type(result) is not type(wanted):
                return f"returned a {type(result).__name__}, wanted a {type(wanted).__name__}"
            result = np.asarray(result, self._source.dtype)
        if type(result) is not np.ndarray or result.shape != self._target_shape:
            return f"returned {result!r}, wanted an array of shape {self._target_shape}"
        if result.dtype != self._source.dtype:
            return f"returned type {result.dtype}, wanted {self._source.dtype}"
        if self._is_loose:
            return self._of_loose(result, ...)
        wanted = self._wanted()
        if result.astype(wanted.dtype).tobytes() == wanted.tobytes():
            return ""
        return _difference(result, wanted)

    def _of_loose(self, part: Array, which: Any) -> str:
        """Check a result by values; then let it be what it is."""
        call = self.call
        if call.rounded:
            count = int(np.prod(self._whole))
            start = self._own.start * self._row if call.collective == "reduce_scatter" else 0
            if not data.is_near(part, count, start, call.dtype, call.op, self.size, self._seed):
                return f"is not near: {part.reshape(-1)[:4]}"
        else:
            wanted = self._wanted()
            wanted = wanted if which is ... else wanted.reshape(-1)[which]
            if not np.array_equal(part, wanted.reshape(part.shape), equal_nan=True):
                return _difference(part, wanted)
        for room, other, _ in self._parts:
            if other is part:
                room.expect(part, part)
        return ""

    def digest(self, result: Any) -> bytes:
        """Return bytes that must be equal on all ranks; empty where there are none."""
        if not (self.call.rounded and self.call.collective == "allreduce"):
            return b""
        array = self._target if self.call.where != "new" else np.asarray(result)
        return array.astype(dtype_of(self.call.dtype)).tobytes()


def _difference(result: Array, wanted: Array) -> str:
    one, other = (np.ascontiguousarray(x).reshape(-1) for x in (result, wanted))
    one = one.astype(other.dtype)
    size = other.itemsize
    rows = [np.frombuffer(x.tobytes(), np.uint8).reshape(-1, size) for x in (one, other)]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    return (
        f"{len(wrong)} of {len(other)} elements differ, the first is {wrong[:1].tolist()}: "
        f"{one[wrong[:4]]} instead of {other[wrong[:4]]}"
    )

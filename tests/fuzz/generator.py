"""Makes programs out of seeds: pure, and the same on all ranks."""

import functools
import itertools
import math
import random
from typing import Any

from fuzz import data
from fuzz.normal import ARRAY, FORMS_OF_BUFFERS, SCALARS, normal
from fuzz.places import NAMES as LAYOUTS
from fuzz.refusals import REFUSALS
from fuzz.steps import (
    Call,
    Environment,
    Forget,
    Free,
    Many,
    Program,
    Refused,
    Ring,
    Shape,
    Split,
    Start,
    Step,
    Wait,
)
from hpccoll.algorithms import REGISTRY

EPOCH = 100
"""Programs of so many seeds run with one `Environment`: to make communicators takes longer than a
program."""

MOST_STEPS = 5
MOST_BYTES = 1 << 20
MANY_BYTES = 64 << 10
"""Most of a vector that is not rare."""

MOST_SEGMENTS = 50

FIRST_SPLIT = 10
"""Numbers of communicators that a program makes begin here."""

COLLECTIVES = {
    "allreduce": 6,
    "reduce_scatter": 4,
    "allgather": 4,
    "reduce": 3,
    "broadcast": 3,
    "barrier": 1,
}
"""How often each is drawn."""


def generate(seed: int, size: int) -> Program:
    """Return the program of a seed for a number of ranks."""
    return Program(size, environment(seed // EPOCH, size), _Maker(seed, size).steps())


@functools.lru_cache(maxsize=4)
def environment(epoch: int, size: int) -> Environment:
    """Return what holds for the programs of an epoch."""
    draw = random.Random(f"hpccoll epoch {epoch} of {size}")
    one = tuple(draw.randrange(2) for _ in range(size))
    other = tuple(draw.choice((-1, 0, 0, 1, 2)) for _ in range(size))
    return Environment(
        nodes=_nodes(draw, size),
        node=_pick(draw, {"": 10, "arena": 1, "window": 3, "off": 6}),
        wait=_pick(draw, {"": 12, "yield": 3, "sleep": 2, "spin": 2}),
        algorithm=_pick(draw, {"": 8, "auto": 1, "anything": 2}).replace(
            "anything", _algorithm(draw, draw.choice(list(REGISTRY)))
        ),
        kernel=_pick(draw, {"": 3, "baseline": 1}),
        parts=(one, other),
    )


def _nodes(draw: random.Random, size: int) -> str:
    """Return which ranks share a node: what MPI says, runs of ranks, or any."""
    how = draw.random()
    if how < 0.3 or size == 1:
        return ""
    if how < 0.65:
        cuts = sorted(draw.sample(range(1, size), draw.randrange(1, size)))
        ends = [0, *cuts, size]
        return ",".join(str(stop - start) for start, stop in itertools.pairwise(ends))
    labels = [draw.randrange(size) for _ in range(size)]
    # One without a node 0 that adds up to the number of ranks would be read as numbers of ranks.
    return ",".join(map(str, [0, *labels[1:]]))


class _Maker:
    """Draws the steps of one program."""

    def __init__(self, seed: int, size: int) -> None:
        self._draw = random.Random(f"hpccoll {seed} of {size}")
        self._size = size
        self._comms = [0] * 6 + [1, 2]
        self._splits = 0
        self._active: list[int] = []
        self._prepared: list[int] = []
        self._numbers = 0

    def steps(self) -> tuple[Step, ...]:
        """Return the steps."""
        draw = self._draw
        steps: list[Step] = []
        for _ in range(draw.randint(1, MOST_STEPS)):
            kind = _pick(draw, STEPS)
            made = getattr(self, f"_{kind}")()
            if made is not None:
                steps.append(made)
        if len(self._active) > 1 and draw.random() < 0.6:
            steps.append(self._wait())
        return tuple(steps)

    def _chance(self, probability: float) -> bool:
        return self._draw.random() < probability

    # -- steps -------------------------------------------------------------------------------------

    def _call(self) -> Call:
        return self._one("blocking")

    def _begin(self) -> Call:
        call = self._one("begun")
        self._active.append(call.number)
        return call

    def _prepare(self) -> Call:
        call = self._one("prepared")
        if call.form == "prepared":
            self._prepared.append(call.number)
        return call

    def _start(self) -> Step | None:
        if not self._prepared:
            return self._prepare()
        number = self._draw.choice(self._prepared)
        self._active.append(number)
        return Start(number)

    def _wait(self) -> Step | None:
        draw = self._draw
        if not self._active:
            return None
        how = _pick(draw, {"each": 4, "test": 2, "look": 1, "all": 2})
        active = list(dict.fromkeys(self._active))
        numbers = draw.sample(active, draw.randint(1, len(active)))
        if how != "look":
            self._active = [number for number in self._active if number not in numbers]
        return Wait(tuple(numbers), how, draw.choice((0, 0, 1, 2)))

    def _forget(self) -> Step | None:
        if not self._prepared:
            return None
        number = self._draw.choice(self._prepared)
        self._prepared.remove(number)
        return Forget(number)

    def _split(self) -> Step | None:
        draw = self._draw
        number = FIRST_SPLIT + self._splits
        self._splits += 1
        colors = tuple(draw.choice((-1, 0, 0, 1)) for _ in range(self._size))
        step = Split(number, draw.choice(self._comms), colors, draw.choice((0, 1, self._size - 1)))
        self._comms += [number] * 8
        return step

    def _free(self) -> Step | None:
        own = sorted({comm for comm in self._comms if comm >= FIRST_SPLIT})
        if not own:
            return None
        number = self._draw.choice(own)
        self._comms = [comm for comm in self._comms if comm != number]
        return Free(number)

    def _refused(self) -> Step:
        return Refused(self._draw.choice(list(REFUSALS)), self._comm())

    def _ring(self) -> Step:
        return Ring(self._comm(), self._draw.choice((0, 1, 7, 1000)))

    def _many(self) -> Step:
        draw = self._draw
        op = draw.choice(("sum", "sum", "mean", "max", "prod", "land", "bxor", "fmin"))
        types = [name for name in data.COMMON if op in data.operations_of(name)]
        types = draw.sample(types, min(len(types), draw.randint(1, 3)))
        items = tuple(
            (draw.choice(types), self._shape(4096), self._layout())
            for _ in range(draw.choice((0, 1, 2, 3, 5)))
        )
        return Many(
            items,
            comm=self._comm(),
            bucketer=self._chance(0.4),
            op=op,
            where=draw.choice(("new", "apart", "in place")),
            shared=_pick(draw, SHARED),
            bucket_bytes=draw.choice((25_000_000, 25_000_000, 1000, 1, 64)),
            algorithm=_algorithm(draw, "allreduce") if self._chance(0.3) else "auto",
            segment_bytes=self._segment(sum(8 * math.prod(shape) for _, shape, _ in items)),
            times=draw.choice((1, 1, 2, 3)),
            seed=draw.randrange(5),
        )

    # -- one call ----------------------------------------------------------------------------------

    def _comm(self) -> int:
        return self._draw.choice(self._comms)

    def _one(self, form: str) -> Call:
        draw = self._draw
        collective = _pick(draw, COLLECTIVES)
        dtype = draw.choice(data.COMMON) if self._chance(0.95) else draw.choice(data.RARE)
        many = self._chance(0.01)
        door = "method" if form == "prepared" else draw.choice(("function", "method"))
        split = collective in ("reduce_scatter", "allgather")
        limit = (MOST_BYTES if many else MANY_BYTES) // data.dtype_of(dtype).itemsize
        shape = self._shape(limit // self._size if split else limit, many)
        rows, rest = shape[:1], shape[1:]
        if split and self._chance(0.5):
            rows = self._uneven(rows[0] if rows else 1)
        plain = self._chance(0.5)
        self._numbers += 1
        nbytes = math.prod(shape) * data.dtype_of(dtype).itemsize * (self._size if split else 1)
        source, target = ("C order",) * 2 if plain else (self._layout(), self._layout())
        if not rows and self._chance(0.5):
            source = draw.choice(SCALARS)
        return normal(
            Call(
                collective,
                number=self._numbers,
                comm=self._comm(),
                door=door,
                form=form,
                dtype=dtype,
                op=draw.choice(data.operations_of(dtype)),
                rows=rows,
                rest=rest,
                root=draw.randrange(self._size),
                where=_pick(draw, {"new": 2, "apart": 4, "in place": 4, "overlap": 1}),
                shift=draw.choice((-3, -1, 0, 1, 2, 17)),
                source=source,
                target=target,
                turn=0 if plain else draw.choice((0, 0, 1, 3)),
                shared=_pick(draw, SHARED),
                readonly=self._chance(0.1),
                form_of_buffer=draw.choice(FORMS_OF_BUFFERS) if plain else ARRAY,
                counts=self._chance(0.5),
                vector=self._chance(0.5),
                displaced=self._chance(0.3),
                mpi_op=self._chance(0.5),
                rounded=self._chance(0.2),
                algorithm=self._named(collective, door),
                segment_bytes=self._segment(nbytes),
                times=1 if form != "blocking" else draw.choice((1, 1, 2, 3)),
                seed=draw.randrange(5),
            )
        )

    def _named(self, collective: str, door: str) -> str:
        """Return an algorithm; a communicator may have one of another collective."""
        if self._chance(0.6):
            return "auto"
        other = door == "method" and self._chance(0.1)
        return _algorithm(self._draw, "allreduce" if other else collective)

    def _segment(self, nbytes: int) -> int | None:
        """Return a limit of messages that cuts so many bytes into not too many."""
        segment = self._draw.choice((None, None, None, None, 1, 7, 40, 1001, 4096, 65_537))
        return segment if segment and nbytes / segment <= MOST_SEGMENTS else None

    def _layout(self) -> str:
        return self._draw.choice(LAYOUTS)

    def _length(self, limit: int, many: bool = False) -> int:
        """Return a length of at most `limit`: around the number of ranks, small, or larger."""
        draw, size = self._draw, self._size
        how = draw.random()
        if many:
            length = draw.randint(limit // 4, limit)
        elif how < 0.35:
            length = draw.choice((0, 1, size - 1, size, size + 1, 2 * size + 1))
        elif how < 0.75:
            length = draw.randint(0, 40)
        elif how < 0.92:
            length = draw.choice((63, 64, 65, 127, 255, 257, 511, 513, 1023, 1025))
        else:
            length = draw.randint(0, limit)
        return min(length, limit)

    def _shape(self, limit: int, many: bool = False) -> Shape:
        """Return a shape of at most `limit` elements."""
        draw = self._draw
        how = draw.random()
        if how < 0.08:
            return ()
        if how < 0.7 or many:
            return (self._length(limit, many),)
        rest = draw.choice(((1,), (2,), (3,), (5,), (2, 3), (4, 1, 2), (0,), (17,)))
        row = 1
        for length in rest:
            row *= length
        return (self._length(limit // max(row, 1)), *rest)

    def _uneven(self, length: int) -> tuple[int, ...]:
        """Return lengths of the ranks' parts, of `length` at most: some are empty."""
        draw, size = self._draw, self._size
        how = draw.randrange(4)
        if how == 0:
            alone = draw.randrange(size)
            return tuple(length * (rank == alone) for rank in range(size))
        if how == 1:
            return tuple(max(length - rank, 0) for rank in range(size))
        return tuple(draw.choice((0, 1, length // 2, length)) for _ in range(size))


SHARED = {"none": 6, "all": 3, "some": 1}

STEPS = {
    "call": 50,
    "begin": 22,
    "prepare": 6,
    "start": 10,
    "wait": 12,
    "forget": 2,
    "split": 1,
    "free": 10,
    "refused": 4,
    "ring": 2,
    "many": 5,
}
"""How often each is drawn."""


def _algorithm(draw: random.Random, collective: str) -> str:
    """Return the name of an algorithm, sometimes with one for between nodes."""
    entries = list(REGISTRY[collective].values())
    entry = draw.choice(entries)
    flat = [other.name for other in entries if not other.hierarchical]
    if entry.hierarchical and draw.random() < 0.5:
        return f"{entry.name}:{draw.choice(flat)}"
    return entry.name


def _pick(draw: random.Random, weights: dict[str, Any]) -> str:
    return draw.choices(list(weights), list(weights.values()))[0]

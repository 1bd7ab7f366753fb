"""All cases with all candidates: from options to rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.algorithms import AUTO, COLLECTIVES
from hpccoll.benchmark.data import NARROW, Array, Vectors
from hpccoll.benchmark.measure import Contestant, measure
from hpccoll.benchmark.options import METHODS, NATIVE, NONE, Case, Options, has_elements
from hpccoll.calls import Call
from hpccoll.comm import Comm
from hpccoll.ops import OPERATIONS

MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate on one case. What is None could not be had.

    Attributes
    ----------
    collective : str
        What was measured.
    nbytes, count : int
        Bytes and elements of the whole vector.
    type, op, place : str
        Element type, operation, "in" (in place) or "out"; "none" where the collective has none.
    algorithm : str
        The candidate.
    ran : str
        What it chose, for "auto"; otherwise the same.
    time_us, min_us, p99_us : float or None
        Of the slowest rank, per call: median, smallest and 99th percentile of the samples.
    algbw_gbps, busbw_gbps : float or None
        nbytes / time, and that times the collective's `busbw_factor`; 10^9 bytes per second.
    wrong : int or None
        Wrong elements, and such as should not have been touched, over all ranks.
    vs_mpi : float or None
        Median of the MPI library / median of this.
    fresh : bool
        Whether the input was rewritten before every call.
    calls : int
        Calls per sample.
    times_us : list of float
        All samples.
    """

    collective: str
    nbytes: int
    count: int
    type: str
    op: str
    place: str
    algorithm: str
    ran: str
    time_us: float | None
    min_us: float | None
    p99_us: float | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    wrong: int | None
    vs_mpi: float | None
    fresh: bool
    calls: int
    times_us: list[float] = field(repr=False)


@dataclass(slots=True)
class _Candidate:
    name: str
    call: Contestant | None
    """None where it cannot be called; `why` says why."""
    last_call: Callable[[], Call | None] = lambda: None
    why: str = ""
    wrong: int = 0

    @property
    def ran(self) -> str:
        """What ran: for "auto" the algorithm that it chose, or the path if that was another."""
        last = self.last_call()
        if self.name != AUTO or last is None:
            return self.name
        if last.path in ("point-to-point", last.algorithm):
            return last.algorithm
        return f"{last.path}, {last.algorithm}"


def sweep(
    options: Options,
    comm: MPI.Intracomm = MPI.COMM_WORLD,
    note: Callable[[str], object] = lambda text: None,
) -> Iterator[list[Row]]:
    """Measure case by case. Collective; all ranks get the same rows.

    Parameters
    ----------
    options : Options
        Equal on all ranks.
    comm : mpi4py.MPI.Intracomm
        A communicator of the MPI library's own, not an `hpccoll.Comm`.
    note : callable
        Takes a line about what is left out.

    Yields
    ------
    list of Row
        A row per candidate that could run, and one for the MPI library in any case.
    """
    doors = {
        name: Comm(comm, algorithm=name, segment_bytes=options.segment_bytes)
        for name in options.candidates
        if name != NATIVE
    }
    misfits = [pair for pair, reason in options.pairs().items() if reason]
    for op in options.ops:
        types = ", ".join(name for name, its_op in misfits if its_op == op)
        if types:
            reason = f", since they do not go together: {op} on {types}"
            note(f"left out{reason if op != NONE else f': {types}'}")
    told: set[str] = set()
    make: Callable[[Case, int, int], Vectors] = Vectors
    if options.device == "cuda":
        from hpccoll.benchmark.device import DeviceVectors, device_of_rank

        make = partial(DeviceVectors, device=device_of_rank(comm))
    for case in options.cases(comm.size):
        vectors = make(case, comm.rank, comm.size)
        candidates = _candidates(case, vectors, options, comm, doors)
        for candidate in candidates:
            _try(candidate, vectors, comm, options)
            remark = f"{candidate.name} cannot run {case}: {candidate.why}"
            if candidate.why and remark not in told:
                told.add(remark)
                note(remark)
        yield _measured(case, vectors, candidates, comm, options)


def _candidates(
    case: Case,
    vectors: Vectors,
    options: Options,
    comm: MPI.Intracomm,
    doors: dict[str, Comm],
) -> list[_Candidate]:
    found = []
    for name in options.candidates:
        if name != NATIVE:
            door = doors[name]
            call = vectors.complete(bound(door, case, vectors))
            found.append(_Candidate(name, call, partial(getattr, door, "last_call")))
        elif case.pattern.reduces and not OPERATIONS[case.op].mpi:
            found.append(_Candidate(name, None, why="MPI has no such operation"))
        else:
            found.append(_Candidate(name, vectors.by_hand(bound(comm, case, vectors))))
    return found


def bound(comm: MPI.Intracomm, case: Case, vectors: Vectors) -> Contestant:
    """Return the call of a case on a communicator, with all its arguments."""
    collective = COLLECTIVES[case.pattern.collective]
    if isinstance(comm, Comm):
        send, out = vectors.send, vectors.receive
    else:
        send, out = vectors.x, vectors.out
        if not collective.reduces:
            send, out = _plain(send), _plain(out)
    arguments: list[Any] = [MPI.IN_PLACE if vectors.in_place else send, out]
    if not has_elements(collective.name):
        arguments = []
    elif collective.name == "broadcast":
        arguments = [out]
    if collective.reduces:
        operation = OPERATIONS[case.op]
        arguments.append(getattr(MPI, operation.mpi) if operation.mpi else case.op)
    if collective.rooted:
        arguments.append(case.pattern.root)
    return partial(getattr(comm, METHODS[collective.name]), *arguments)


def _plain(array: Array) -> Array:
    """Return an array of a type that MPI knows, for what only moves."""
    return array.view(np.uint16) if array.dtype.name in NARROW else array


def _try(candidate: _Candidate, vectors: Vectors, comm: MPI.Intracomm, options: Options) -> None:
    """Make one untimed call, on all ranks alike, to see whether it can be made and is right."""
    if candidate.call is None:
        return
    vectors.spoil()
    vectors.rewrite()
    comm.Barrier()
    try:
        candidate.call()
    except MPI.Exception as error:  # its text has the trail of calls and their addresses
        candidate.why = MPI.Get_error_string(error.Get_error_class())
    except Exception as error:  # whatever else a library has against it
        candidate.why = str(error) or type(error).__name__
    failed = comm.allreduce(int(bool(candidate.why)))
    if failed:
        if failed < comm.size:
            message = f"{candidate.name} failed on {failed} of {comm.size} ranks: {candidate.why}"
            raise RuntimeError(message)
        candidate.call = None
    elif options.check:
        candidate.wrong = vectors.count_wrong()


def _measured(
    case: Case,
    vectors: Vectors,
    candidates: list[_Candidate],
    comm: MPI.Intracomm,
    options: Options,
) -> list[Row]:
    able = [candidate for candidate in candidates if candidate.call is not None]
    if not able:
        return [_row(case, candidates[0], comm.size)]
    calls = [candidate.call for candidate in able if candidate.call is not None]
    timing = measure(comm, calls, vectors, options)
    # Before and after, apart: an element may be wrong both times and is to be counted once.
    wrong = np.array([[candidate.wrong for candidate in able], timing.wrong], np.int64)
    comm.Allreduce(MPI.IN_PLACE, wrong, MPI.SUM)
    medians = dict(zip((c.name for c in able), np.median(timing.seconds, axis=1), strict=True))
    native = medians.get(NATIVE)
    rows = [] if native is not None else [_row(case, candidates[0], comm.size)]
    for candidate, seconds, count in zip(able, timing.seconds, wrong.max(axis=0), strict=True):
        median = medians[candidate.name]
        rows.append(
            _row(
                case,
                candidate,
                comm.size,
                times_us=(seconds * MICRO).round(3).tolist(),
                calls=timing.calls,
                wrong=int(count) if options.check else None,
                vs_mpi=None if native is None else float(native / median),
            )
        )
    return rows


def _row(
    case: Case,
    candidate: _Candidate,
    size: int,
    *,
    times_us: list[float] | None = None,
    calls: int = 0,
    wrong: int | None = None,
    vs_mpi: float | None = None,
) -> Row:
    times = times_us or []
    time = float(np.median(times)) if times else None
    # nbytes / us are 10^6 bytes per second.
    algbw = case.nbytes / time / 1e3 if time and case.count else None
    factor = COLLECTIVES[case.pattern.collective].busbw_factor(size)
    return Row(
        collective=case.pattern.collective,
        nbytes=case.nbytes,
        count=case.count,
        type=case.type,
        op=case.op,
        place=case.place,
        algorithm=candidate.name,
        ran=candidate.ran,
        time_us=time,
        min_us=min(times) if times else None,
        # A sample, not a mean of two: with few samples, the largest.
        p99_us=float(np.quantile(times, 0.99, method="higher")) if times else None,
        algbw_gbps=algbw,
        busbw_gbps=None if algbw is None else algbw * factor,
        wrong=wrong,
        vs_mpi=vs_mpi,
        fresh=case.fresh,
        calls=calls,
        times_us=times,
    )

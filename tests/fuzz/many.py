"""All-reduces of several arrays on this rank."""

from typing import Any

from mpi4py import MPI

import hpccoll
from fuzz import data
from fuzz.data import Array, dtype_of
from fuzz.places import Room, place
from fuzz.steps import Many


def run_many(step: Many, comm: MPI.Intracomm) -> list[str]:
    """Run the step; return what is wrong."""
    shared = step.shared == "all" or (step.shared == "some" and comm.rank % 2 == 0)
    sources = [place(layout, shape, dtype_of(d), shared) for d, shape, layout in step.items]
    targets = sources
    if step.where == "apart" and not step.bucketer:
        targets = [place("C order", shape, dtype_of(d), shared) for d, shape, _ in step.items]
    options: dict[str, Any] = {"comm": comm, "bucket_bytes": step.bucket_bytes}
    if step.algorithm != "auto":
        options["algorithm"] = step.algorithm
    if step.segment_bytes is not None:
        options["segment_bytes"] = step.segment_bytes
    bucketer = hpccoll.Bucketer(step.op, **options) if step.bucketer else None
    wrong: list[str] = []
    for run in range(step.times):
        _fill(step, sources, targets, comm, run)
        if bucketer is not None:
            order = [(k + comm.rank * (run + 1)) % len(sources) for k in range(len(sources))]
            for k in order:
                bucketer.ready(f"array {k}", sources[k].array)
            if order:
                bucketer.wait()
            results = [room.array for room in sources]
        else:
            out = None if step.where == "new" else [room.array for room in targets]
            given = [room.array for room in sources]
            results = hpccoll.allreduce_many(given, step.op, out=out, **options)
        wrong += _complaints(step, sources, targets, results, comm.size, run)
    return wrong


def _is_new(step: Many) -> bool:
    return step.where == "new" and not step.bucketer


def _fill(
    step: Many, sources: list[Room], targets: list[Room], comm: MPI.Intracomm, run: int
) -> None:
    for k, (source, target, item) in enumerate(zip(sources, targets, step.items, strict=True)):
        dtype, shape, _ = item
        seed = step.seed + run + k
        target.clear()
        target.note()
        source.clear()
        source.array[...] = data.brought(shape, dtype, step.op, comm.rank, comm.size, seed)
        source.note()
        if not _is_new(step):
            target.expect(target.array, data.combined(shape, dtype, step.op, comm.size, seed))


def _complaints(
    step: Many, sources: list[Room], targets: list[Room], results: list[Array], size: int, run: int
) -> list[str]:
    wrong = []
    for k, (dtype, shape, _) in enumerate(step.items):
        rooms = [sources[k]] if targets is sources else [sources[k], targets[k]]
        complaints = [room.complaint() for room in rooms]
        if not _is_new(step):
            if results[k] is not targets[k].array:
                complaints.append("did not return out")
        else:
            wanted = data.combined(shape, dtype, step.op, size, step.seed + run + k)
            result = results[k]
            if result.shape != wanted.shape or result.dtype != sources[k].array.dtype:
                complaints.append(f"returned {result.dtype} of shape {result.shape}")
            elif result.astype(wanted.dtype).tobytes() != wanted.tobytes():
                complaints.append(f"{result.ravel()[:4]} instead of {wanted.ravel()[:4]}")
        wrong += [f"array {k}: {complaint}" for complaint in complaints if complaint]
    return wrong

"""Many arrays: a loop of the MPI library's calls, `hpccoll.allreduce_many`, and one flat call.

    mpiexec -n 2 python bench/fused.py

The arrays have the shapes of the parameters of ResNet-50, 161 of together 25.6 million float32, and
are written anew before each sample. In place, slowest rank, medians, milliseconds.
"""

from collections.abc import Iterator

import click
import numpy as np
from contest import Contest, Contestant, print_machine
from mpi4py import MPI

import hpccoll
from hpccoll.buckets import BUCKET_BYTES


def resnet50() -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the parameters, in the order of the layers."""

    def convolution(outputs: int, inputs: int, width: int) -> Iterator[tuple[int, ...]]:
        yield (outputs, inputs, width, width)
        yield from [(outputs,), (outputs,)]  # of the batch normalisation after it

    yield from convolution(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from convolution(width, inputs, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, inputs, 1)
            inputs = 4 * width
    yield from [(1000, 2048), (1000,)]


@click.command()
@click.option("--seconds", default=15.0, show_default=True, help="Time for all.")
@click.option("--bucket-bytes", default=BUCKET_BYTES, show_default=True)
def main(seconds: float, bucket_bytes: int) -> None:
    comm = MPI.COMM_WORLD
    ours = hpccoll.Comm(comm)
    arrays = [np.empty(shape, np.float32) for shape in resnet50()]
    flat = np.empty(sum(array.size for array in arrays), np.float32)
    fresh = np.random.default_rng(comm.rank).random(flat.size, np.float32)

    def rewrite() -> None:
        start = 0
        for array in arrays:
            array[...] = fresh[start : start + array.size].reshape(array.shape)
            start += array.size

    def rewrite_flat() -> None:
        flat[...] = fresh

    def loop(door: MPI.Intracomm) -> None:
        for array in arrays:
            door.Allreduce(MPI.IN_PLACE, array)

    def fused() -> None:
        hpccoll.allreduce_many(arrays, out=arrays, comm=ours, bucket_bytes=bucket_bytes)

    contestants = {
        "MPI, a loop": Contestant(lambda: loop(comm), rewrite),
        "MPI, flat": Contestant(lambda: comm.Allreduce(MPI.IN_PLACE, flat), rewrite_flat),
        "hpccoll, a loop": Contestant(lambda: loop(ours), rewrite),
        "allreduce_many": Contestant(fused, rewrite),
        "hpccoll, flat": Contestant(lambda: ours.Allreduce(MPI.IN_PLACE, flat), rewrite_flat),
    }
    times = Contest(comm, contestants).times(seconds)
    if comm.rank:
        return
    print_machine(comm)
    print(f"\n{len(arrays)} arrays, {flat.size} elements\n")
    print("| | ms | MPI's loop / it | flat call / it |", "|---|---:|---:|---:|", sep="\n")
    for name, time in times.items():
        ratios = times["MPI, a loop"] / time, times["hpccoll, flat"] / time
        print(f"| {name} | {time / 1e3:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()

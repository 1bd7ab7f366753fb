"""Many arrays: a loop of the MPI library's calls, `hpccoll.allreduce_many`, and one flat call.

    mpiexec -n 2 python bench/fused.py

The arrays have the shapes of the parameters of ResNet-50, 161 of together 25.6 million float32, and
are written anew before each sample. In place, slowest rank, medians, milliseconds.
"""

from collections.abc import Iterator

import click
import numpy as np
from mpi4py import MPI
from rounds import medians, print_machine

import hpccoll
from hpccoll.fused import BUCKET_BYTES


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
@click.option("--rounds", default=15, show_default=True, help="Samples of each candidate.")
@click.option("--bucket-bytes", default=BUCKET_BYTES, show_default=True)
def main(rounds: int, bucket_bytes: int) -> None:
    comm = MPI.COMM_WORLD
    ours = hpccoll.Comm(comm)
    arrays = [np.empty(shape, np.float32) for shape in resnet50()]
    flat = np.empty(sum(array.size for array in arrays), np.float32)
    fresh = np.random.default_rng(comm.rank).random(flat.size, np.float32)

    def rewrite(name: str) -> None:
        if "flat" in name:
            flat[...] = fresh
            return
        start = 0
        for array in arrays:
            array[...] = fresh[start : start + array.size].reshape(array.shape)
            start += array.size

    def loop(door: MPI.Intracomm) -> None:
        for array in arrays:
            door.Allreduce(MPI.IN_PLACE, array)

    times = medians(
        comm,
        {
            "MPI, a loop": lambda: loop(comm),
            "MPI, flat": lambda: comm.Allreduce(MPI.IN_PLACE, flat),
            "hpccoll, a loop": lambda: loop(ours),
            "allreduce_many": lambda: hpccoll.allreduce_many(
                arrays, out=arrays, comm=ours, bucket_bytes=bucket_bytes
            ),
            "hpccoll, flat": lambda: ours.Allreduce(MPI.IN_PLACE, flat),
        },
        rounds=rounds,
        before=rewrite,
    )
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

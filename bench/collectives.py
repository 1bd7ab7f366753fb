"""Sweep sizes and write a Markdown table: the MPI library's own all-reduce beside hpccoll's.

    mpiexec -n 4 python bench/collectives.py                  # to standard output
    mpiexec -n 4 python bench/collectives.py -e 4M --output table.md

The README's figures come from here. "auto" is what a user gets who chooses nothing. "best" is the
fastest algorithm of each size, chosen by the same samples that are shown, which favours it a
little. The last line has the geometric means of the ratios.
"""

import sys
from pathlib import Path
from statistics import geometric_mean

import click
from contest import human, line, microseconds
from mpi4py import MPI

from hpccoll.algorithms import AUTO
from hpccoll.benchmark.command import size
from hpccoll.benchmark.options import NATIVE, SECONDS, Options, size_range
from hpccoll.benchmark.report import Machine
from hpccoll.benchmark.sweep import Row, sweep


@click.command(context_settings={"show_default": True})
@click.option("-b", "--begin", type=size, default="8")
@click.option("-e", "--end", type=size, default="64M")
@click.option("-f", "--factor", type=click.IntRange(2), default=4)
@click.option("-d", "--type", "type_name", default="float32")
@click.option("--in-place", is_flag=True)
@click.option("--seconds", type=float, default=SECONDS, help="Time per row.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path))
def main(
    begin: int,
    end: int,
    factor: int,
    type_name: str,
    in_place: bool,
    seconds: float,
    output: Path | None,
) -> None:
    comm = MPI.COMM_WORLD
    options = Options(
        sizes=size_range(begin, end, factor),
        types=(type_name,),
        places=("in" if in_place else "out",),
        seconds=seconds,
    )
    machine = Machine(comm.size, len(set(comm.allgather(MPI.Get_processor_name()))))
    cases = []
    for rows in sweep(options, comm):
        cases.append({row.algorithm: row for row in rows})
        if comm.rank == 0:
            print(f"{rows[0].nbytes} B", file=sys.stderr, flush=True)
    if comm.rank == 0:
        head = [f"    {text}" for text in machine.header(options)]
        text = "\n".join([*head, "", *table(cases), ""])
        if output:
            output.write_text(text, encoding="utf-8")
        else:
            print(text, end="")
    if any(row.wrong for case in cases for row in case.values()):
        sys.exit("wrong elements: run `python -m hpccoll bench allreduce` to see where")


def table(cases: list[dict[str, Row]]) -> list[str]:
    """Return the lines of the Markdown table; times are medians, in microseconds."""
    lines = [
        "| size | MPI (us) | auto (us) | MPI / auto | best (us) | MPI / best | best algorithm |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    ratios = []
    for case in cases:
        native, auto = case[NATIVE], case[AUTO]
        best = min(
            (row for name, row in case.items() if name not in (NATIVE, AUTO)),
            key=lambda row: row.time_us or 0.0,
        )
        ratios.append((auto.vs_mpi or 1.0, best.vs_mpi or 1.0))
        other = "" if auto.ran == best.algorithm else f" (auto: {auto.ran})"
        cells = (
            human(native.nbytes),
            microseconds(native.time_us),
            microseconds(auto.time_us),
            f"{ratios[-1][0]:.2f}",
            microseconds(best.time_us),
            f"{ratios[-1][1]:.2f}",
            best.algorithm + other,
        )
        lines.append(line(*cells))
    means = [f"{geometric_mean(column):.2f}" for column in zip(*ratios, strict=True)]
    lines.append(f"| geometric mean | | | {means[0]} | | {means[1]} | |")
    return lines


if __name__ == "__main__":
    main()

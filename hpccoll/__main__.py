"""The command line: ``python -m hpccoll``, or ``hpccoll``.

Only what measures needs MPI; help, `algorithms`, `simulate` and `info` work without it. Under
mpiexec all ranks run the same command, and one of them prints. What `run` runs may print on all.
"""

import json as jsons
import os
import sys
import traceback
from collections.abc import Sequence

import click

from hpccoll import __version__
from hpccoll.algorithms import COLLECTIVES, COLUMNS, legend, table_rows
from hpccoll.benchmark.command import bench, size, start_mpi
from hpccoll.information import launcher_rank
from hpccoll.script import Program
from hpccoll.simulator import ALPHA, ALPHA_WITHIN, BETA, BETA_WITHIN, GAMMA
from hpccoll.simulator import simulate as run_simulation


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpccoll")
def cli() -> None:
    """MPI collectives for Python that can be seen, chosen, proved and measured."""


cli.add_command(bench)


COLLECTIVE = click.Choice(list(COLLECTIVES))


@cli.command()
@click.argument("collective", type=COLLECTIVE, default="allreduce")
def algorithms(collective: str) -> None:
    """List the algorithms of a collective, allreduce by default."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Piped, lines are as long as they need to be; on a terminal, cells wrap.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=column == "name")
    for row in table_rows(collective):
        table.add_row(*row)
    console.print(table)
    console.print(f"{legend(collective)}.", markup=False)


@cli.command(context_settings={"show_default": True})
@click.argument("algorithm")
@click.option("--size", "-p", "ranks", type=click.IntRange(1), required=True, help="Ranks.")
@click.option("--nbytes", "-b", type=size, metavar="SIZE", help="Bytes of the vector: 1M, 64K.")
@click.option("--count", type=click.IntRange(0), help="Elements of the vector, instead.")
@click.option("--collective", type=COLLECTIVE, default="allreduce", help="What it is to do.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root, of reduce and broadcast.")
@click.option("--counts", help="Elements of each rank's chunk (5,0,3), where chunks differ.")
@click.option("--itemsize", type=click.IntRange(1), default=4, help="Bytes per element.")
@click.option("--nodes", help="Ranks on each node (4,4), or a node number for each rank (0,1,0,1).")
@click.option("--alpha", type=float, default=ALPHA, help="Seconds per message.")
@click.option("--beta", type=float, default=BETA, help="Seconds per byte sent.")
@click.option("--gamma", type=float, default=GAMMA, help="Seconds per byte reduced.")
@click.option(
    "--alpha-within",
    type=float,
    help=f"Seconds per message within a node; with --nodes {ALPHA_WITHIN:g}, else as between.",
)
@click.option(
    "--beta-within",
    type=float,
    help=f"Seconds per byte sent within a node; with --nodes {BETA_WITHIN:g}, else as between.",
)
def simulate(
    algorithm: str,
    ranks: int,
    nbytes: int | None,
    count: int | None,
    collective: str,
    root: int,
    counts: str | None,
    itemsize: int,
    nodes: str | None,
    alpha: float,
    beta: float,
    gamma: float,
    alpha_within: float | None,
    beta_within: float | None,
) -> None:
    """Count what an algorithm sends on any number of ranks, and predict its time.

    ALGORITHM is a name that `hpccoll algorithms` lists.
    """
    given = [value is not None for value in (nbytes, count, counts)]
    if collective == "barrier" and any(given):
        message = "a barrier has no vector: leave out --nbytes, --count and --counts"
        raise click.UsageError(message)
    if collective != "barrier" and sum(given) != 1:
        message = "give one of --nbytes and --count, or --counts"
        raise click.UsageError(message)
    try:
        chunks = None if counts is None else _numbers(counts)
        simulation = run_simulation(
            algorithm,
            size=ranks,
            nbytes=nbytes,
            count=count,
            collective=collective,
            root=root,
            counts=chunks,
            itemsize=itemsize,
            nodes=nodes,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            alpha_within=alpha_within,
            beta_within=beta_within,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(simulation)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        message = f"--counts is {text!r}; wanted a number of elements for each rank, such as 5,0,3"
        raise click.UsageError(message)
    return [int(part) for part in parts]


@cli.command()
@click.option("--json", is_flag=True, help="As JSON.")
def info(json: bool) -> None:
    """Tell versions, the MPI library, the kernels and the machine."""
    from hpccoll import information

    why = ""
    try:
        start_mpi()
    except click.ClickException as error:
        why = error.message
    report = information.info()
    if why:
        report["mpi"]["note"] = why.removeprefix("MPI is ")
    click.echo(jsons.dumps(report, indent=1) if json else "\n".join(information.lines(report)))


@cli.command("run", context_settings={"allow_interspersed_args": False})
@click.option("-m", "kind", flag_value="module", help="PROGRAM is the name of a module.")
@click.option("-c", "kind", flag_value="code", help="PROGRAM is Python code.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_program(kind: str | None, program: str, arguments: tuple[str, ...]) -> Program:
    r"""Run a Python program on all ranks, and end all when one fails.

    As `python PROGRAM [ARGUMENTS]` does. But where a rank ends by an exception, or with another
    status than 0, its traceback is printed, with the rank, and the job is aborted: otherwise the
    other ranks would wait for it, for ever.

    \b
        mpiexec -n 4 python -m hpccoll run program.py --steps 100
        mpiexec -n 4 python -m hpccoll run -m package.module
    """
    return Program(program, kind or "file", arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.
    """
    stdout = sys.stdout
    if _rank():
        # What click prints of its own accord (help, version) and the commands that need no MPI.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    try:
        status = run(arguments)
    except Exception:
        # The other ranks may wait in a collective for one that never comes.
        module = sys.modules.get("mpi4py.MPI")
        if module is None or module.COMM_WORLD.size == 1:
            raise
        traceback.print_exc()
        sys.stderr.flush()
        module.COMM_WORLD.Abort(1)
        status = 1  # not reached where MPI ends the process itself
    if isinstance(status, Program):
        sys.stdout = stdout
        status = status.run()
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int | Program:
    """Run the command line and return its exit status, the same on all ranks, or what is to run."""
    try:
        # Without click's own handling of errors, each rank of which would print.
        status = cli.main(arguments, prog_name="hpccoll", standalone_mode=False)
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except click.Abort:
        return 1
    return status if isinstance(status, (int, Program)) else 0


def _show(error: click.ClickException) -> None:
    """Print an error on one rank. Under mpiexec, the others leave after that."""
    rank = _rank()
    if rank is None:
        error.show()
        return
    # Launchers end all ranks when one has left with an error: rank 0 must have printed by then.
    try:
        comm = start_mpi()
    except click.ClickException:
        comm = None
    if not rank:
        error.show()
        sys.stderr.flush()
    if comm is not None:
        comm.Barrier()


def _rank() -> int | None:
    """Return this process' rank, from MPI if it runs or else the launcher; None outside of both."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        return int(module.COMM_WORLD.rank)
    return launcher_rank()


if __name__ == "__main__":
    main()

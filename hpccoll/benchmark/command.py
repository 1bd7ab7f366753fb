"""The command line of the benchmark."""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.algorithms import AUTO, COLLECTIVES
from hpccoll.benchmark.options import (
    DEVICES,
    METHODS,
    NATIVE,
    PLACES,
    SECONDS,
    Options,
    candidates,
    has_elements,
    parse_size,
    size_range,
)
from hpccoll.benchmark.texts import IN_PLACE, help_text
from hpccoll.ops import OPERATIONS
from hpccoll.selection import NCCL

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.benchmark.sweep import Row

TYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, "
    "float64, complex64, complex128"
)
"""For the help text alone, which must do without what is compiled; a test compares the two."""


NCCL_HELP = f" {NCCL!r} runs with --device cuda, where each rank has a GPU of its own."

# Types of options. Functions, not subclasses of click.ParamType: that became generic between the
# versions of click that we take.


def size(value: str) -> int:
    """Read a number of bytes, with K, M or G."""
    try:
        number = parse_size(str(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if number < 1:
        message = f"{value} bytes is too little; wanted at least 1"
        raise click.BadParameter(message)
    return number


def names(what: str, choices: Callable[[], Sequence[str]]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads names out of `choices`, separated by commas, or "all"."""

    def read(value: str) -> tuple[str, ...]:
        try:
            known = tuple(choices())
        except (ImportError, ValueError) as error:  # the kernels are not compiled, or refuse
            raise click.BadParameter(str(error)) from None
        found: list[str] = []
        for name in value.split(","):
            if name not in (*known, "all"):
                message = f"unknown {what} {name!r}; choose from {', '.join(known)}, all"
                raise click.BadParameter(message)
            found += known if name == "all" else (name,)
        return tuple(found)

    return read


def _kernel_types() -> Sequence[str]:
    from hpccoll import _kernels

    types: Sequence[str] = _kernels.TYPES
    return types


def _joined(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Join what came with several options, each name once."""
    return tuple(dict.fromkeys(name for names in lists for name in names))


@dataclass(frozen=True, slots=True)
class Output:
    """Where rows go besides the table."""

    json: Path | None
    csv: Path | None
    quiet: bool


@click.group()
def bench() -> None:
    """Measure a collective, beside the MPI library's own. Run it under mpiexec."""


FILE = click.Path(dir_okay=False, path_type=Path)


def _parameters(collective: str) -> list[click.Parameter]:
    """Return the options of a collective's command: those that make sense for it."""
    one, elements = COLLECTIVES[collective], has_elements(collective)
    known = candidates(collective, DEVICES[-1])
    option = click.Option
    found: list[click.Parameter] = []
    if elements:
        found += [
            option(
                ["-b", "--begin"], type=size, metavar="SIZE", default="8", help="Smallest vector."
            ),
            option(
                ["-e", "--end"], type=size, metavar="SIZE", default="64M", help="Largest vector."
            ),
            option(
                ["-f", "--factor"], type=click.IntRange(2), default=2, help="From size to size."
            ),
            option(
                ["-d", "--type", "types"],
                type=names("type", _kernel_types),
                metavar="NAMES",
                multiple=True,
                default=("float32",),
                help=f"Element types: {TYPES}.",
            ),
        ]
    if one.reduces:
        found.append(
            option(
                ["-o", "--op", "ops"],
                type=names("op", lambda: tuple(OPERATIONS)),
                metavar="NAMES",
                multiple=True,
                default=("sum",),
                help=f"Operations: {', '.join(OPERATIONS)}.",
            )
        )
    if one.rooted:
        found.append(option(["--root"], type=click.IntRange(0), default=0, help="The root."))
    found += [
        option(
            ["-a", "--algorithm", "algorithms"],
            type=names("algorithm", lambda: known),
            metavar="NAMES",
            multiple=True,
            default=("all",),
            help=f"Algorithms: {', '.join(known)}. {NATIVE!r}, the MPI library's own "
            f"{METHODS[collective]}, always runs; {AUTO!r} is hpccoll's choice."
            f"{NCCL_HELP if NCCL in known else ''}",
        ),
        option(
            ["-n", "--iterations"],
            type=click.IntRange(1),
            help="Samples per row; a sample is a call or, see above, a batch of calls.",
        ),
        option(
            ["--seconds"],
            type=click.FloatRange(0, min_open=True),
            help=f"Time per row, unless -n is given; at least 5 samples.  [default: {SECONDS}]",
        ),
        option(
            ["-w", "--warmup"], type=click.IntRange(0), default=3, help="Untimed rounds before."
        ),
    ]
    if elements:
        found += [
            option(
                ["--check/--no-check"], default=True, help="Compare results with the exact ones."
            ),
            option(
                ["--segment-bytes"],
                type=size,
                metavar="SIZE",
                help="Upper limit of hpccoll's messages.",
            ),
            option(
                ["--device"],
                type=click.Choice(DEVICES),
                default=DEVICES[0],
                help="Where the vectors are. In GPU memory (cuda), what is compared with is a copy "
                "to the host, the MPI library's call there, and a copy back.",
            ),
        ]
    if collective not in PLACES:
        place = functools.partial(option, show_default=False)
        found += [
            place(["--in-place", "place"], flag_value="in", help=IN_PLACE[collective]),
            place(
                ["--out-of-place", "place"],
                flag_value="out",
                default="out",
                help="They are two arrays.  [default]",
            ),
            place(["--both", "place"], flag_value="both", help="Measure both."),
        ]
    if elements:
        found.append(
            option(["--warm"], is_flag=True, help="Never rewrite the input between timed calls.")
        )
    return [
        *found,
        option(["--json"], type=FILE, help="Write everything, with all samples, to this file."),
        option(["--csv"], type=FILE, help="Write the rows to this file."),
        option(["-q", "--quiet"], is_flag=True, help="No progress bar."),
    ]


def _options(collective: str, given: dict[str, Any]) -> Options:
    """Return what a command line asks for."""
    if given["iterations"] is not None and given["seconds"] is not None:
        message = "--iterations and --seconds exclude each other"
        raise click.UsageError(message)
    begin, end = given.get("begin", 1), given.get("end", 1)
    if begin > end:
        message = f"--begin is {begin} and --end is {end}; there is no size between them"
        raise click.UsageError(message)
    device = given.get("device", DEVICES[0])
    algorithms = _joined(given["algorithms"])
    known = candidates(collective, device)
    if NCCL in algorithms and NCCL not in known:
        if not set(known) <= {*algorithms}:  # or "all" was asked for
            message = f"{NCCL} runs on GPUs; add --device cuda"
            raise click.UsageError(message)
        algorithms = known
    place = given.get("place", "out")
    options = Options(
        sizes=size_range(begin, end, given.get("factor", 2)),
        types=_joined(given.get("types", ())),
        ops=_joined(given.get("ops", ())),
        algorithms=algorithms,
        places=("out", "in") if place == "both" else (place,),
        iterations=given["iterations"],
        seconds=SECONDS if given["seconds"] is None else given["seconds"],
        warmup=given["warmup"],
        check=given.get("check", True),
        segment_bytes=given.get("segment_bytes"),
        warm=given.get("warm", False),
        collective=collective,
        root=given.get("root", 0),
        device=device,
    )
    reasons = options.pairs().values()
    if all(reasons):
        raise click.UsageError("; ".join(dict.fromkeys(reasons)))
    return options


def _command(collective: str) -> click.Command:
    """Return the command that measures a collective."""

    @click.pass_context
    def callback(context: click.Context, /, **given: Any) -> None:
        options = _options(collective, given)
        rows = run(options, Output(given["json"], given["csv"], given["quiet"]))
        context.exit(1 if any(row.wrong for row in rows) else 0)

    return click.Command(
        collective,
        params=_parameters(collective),
        callback=callback,
        help=help_text(collective),
        context_settings={"max_content_width": 100, "show_default": True},
    )


for _name in COLLECTIVES:
    bench.add_command(_command(_name))


def run(options: Options, output: Output) -> "list[Row]":
    """Measure, and write what was found. Collective; all ranks get the same rows."""
    comm = start_mpi()
    from hpccoll.benchmark import report
    from hpccoll.benchmark.sweep import sweep

    if options.root >= comm.size:
        message = f"--root is {options.root}; the ranks are 0 to {comm.size - 1}"
        raise click.UsageError(message)
    _check_files(comm, output)
    if options.device == "cuda":
        _check_devices(comm)
    machine = report.Machine(comm.size, len(set(comm.allgather(_host()))))
    rows: list[Row] = []
    table: report.Table | None = None
    with ExitStack() as stack:
        if comm.rank == 0:
            total = sum(1 for _ in options.cases(comm.size))
            table = stack.enter_context(report.Table(total, progress=not output.quiet))
            table.header(machine.header(options))
        note = table.comment if table else _nothing
        for case_rows in sweep(options, comm, note):
            rows += case_rows
            if table:
                table.rows(case_rows)
        if table:
            table.comment(*report.closing(rows, checked=options.check))
    if comm.rank == 0:
        if output.json:
            with output.json.open("w", encoding="utf-8") as file:
                report.write_json(file, machine.document(options, rows))
        if output.csv:
            with output.csv.open("w", encoding="utf-8", newline="") as file:
                report.write_csv(file, rows)
    return rows


def start_mpi() -> "MPI.Intracomm":
    """Start MPI, unless it runs, and return the communicator of all ranks.

    Raises
    ------
    click.ClickException
        There is no MPI; the text says why.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        message = f"MPI is not available: {error}"
        raise click.ClickException(message) from None
    return MPI.COMM_WORLD


def _host() -> str:
    from mpi4py import MPI

    return MPI.Get_processor_name()


def _nothing(text: str) -> None:
    """Leave the writing to rank 0."""


def _check_files(comm: "MPI.Intracomm", output: Output) -> None:
    """Raise on all ranks, before anything is measured, where rank 0 cannot write a file."""
    reason = ""
    if comm.rank == 0:
        files = [path for path in (output.json, output.csv) if path]
        reason = "; ".join(filter(None, map(_why_not, files)))
    reason = comm.bcast(reason, root=0)
    if reason:
        raise click.UsageError(reason)


def _check_devices(comm: "MPI.Intracomm") -> None:
    """Raise on all ranks where one of them has no device for its vectors."""
    from hpccoll.cuda.foreign_arrays import start
    from hpccoll.errors import CudaError

    reason = ""
    try:
        if not start("what --device cuda measures").device_count():
            reason = "this process sees no CUDA device"
    except (ImportError, CudaError) as error:
        reason = str(error)
    reasons = comm.allgather(reason)
    for rank, text in enumerate(reasons):
        if text:
            message = f"--device cuda: {text} (rank {rank})"
            raise click.UsageError(message)


def _why_not(path: Path) -> str:
    """Return why a file cannot be written, or nothing; what it holds stays."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""

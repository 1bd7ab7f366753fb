"""What rank 0 writes: the table as it grows, JSON and CSV."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text

from hpccoll.algorithms import AUTO, COLLECTIVES
from hpccoll.benchmark.measure import BATCH_SECONDS, MOST_CALLS
from hpccoll.benchmark.options import FRESH_BYTES, NATIVE, NONE, Options, has_elements
from hpccoll.benchmark.sweep import Row
from hpccoll.information import environment, info, launcher_rank

SCHEMA = "hpccoll-bench/1"
"""Of the JSON file; another number when a key goes or changes its meaning."""

COLUMNS = (
    # name, unit, width
    ("size", "(B)", 11),
    ("count", "(elements)", 11),
    ("type", "", 10),
    ("redop", "", 5),
    ("place", "", 5),
    ("algorithm", "", 28),
    ("time", "(us)", 10),
    ("min", "(us)", 10),
    ("p99", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
    ("vs MPI", "(x)", 7),
)
LEFT = ("type", "redop", "place", "algorithm")
"""Columns of names; numbers stand at the right."""

ALGORITHM = 5


class Machine:
    """Where the run takes place, as far as its results depend on it.

    Parameters
    ----------
    ranks, hosts : int
        Number of ranks, and of hosts that they run on.
    """

    def __init__(self, ranks: int, hosts: int) -> None:
        self.ranks = ranks
        self.hosts = hosts
        self.info = info()
        self.environment = environment()
        self.when = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def header(self, options: Options) -> list[str]:
        """Return the lines above the table."""
        known = self.info
        collective = options.collective
        if COLLECTIVES[collective].rooted:
            collective += f", root {options.root}"
        versions, mpi, cpu = known["versions"], known["mpi"], known["cpu"]
        lines = [
            f"hpccoll {versions['hpccoll']}  {collective}  {_plural(self.ranks, 'rank')} on "
            f"{_plural(self.hosts, 'host')}  {mpi['library']} {mpi['version']}  "
            f"kernel {known['kernel']['target']}  numpy {versions['numpy']}  "
            f"mpi4py {versions['mpi4py']}",
            f"{cpu['model']}, {_plural(cpu['cores_usable'], 'core')} usable by rank 0",
            *_method(options),
        ]
        if self.environment:
            settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
            lines.append(f"environment: {settings}")
        return lines

    def document(self, options: Options, rows: Sequence[Row]) -> dict[str, Any]:
        """Return what the JSON file holds."""
        known = self.info
        return {
            "schema": SCHEMA,
            "when": self.when,
            "collective": options.collective,
            "versions": known["versions"],
            "mpi": known["mpi"],
            "kernel": known["kernel"],
            "cpu": known["cpu"],
            "gpu": _gpu() if options.device == "cuda" else None,
            "platform": known["platform"],
            "ranks": self.ranks,
            "hosts": self.hosts,
            "options": asdict(options),
            "environment": self.environment,
            "rows": [asdict(row) for row in rows],
        }


def _method(options: Options) -> list[str]:
    """Say how times are measured."""
    size = f"{FRESH_BYTES >> 10} KiB"
    batches = (
        f"up to {MOST_CALLS} calls back to back (about {BATCH_SECONDS * 1e3:g} ms) between two "
        "barriers"
    )
    if not has_elements(options.collective):
        fresh = f"a sample is {batches}"
    elif options.warm:
        fresh = f"warm: input never rewritten; {batches}, at any size"
    else:
        fresh = (
            f"fresh data: from {size} each rank rewrites its input before each call (untimed, then "
            f"a barrier); below, {batches}"
        )
    length = f"{options.seconds:g} s per row"
    if options.iterations is not None:
        length = f"{_plural(options.iterations, 'sample')} per row"
    length += f", warm-up {_plural(options.warmup, 'round')}"
    if not options.check and has_elements(options.collective):
        length += ", results not checked"
    where = []
    if options.device == "cuda":
        where = [
            f"vectors in the memory of GPUs ({_gpu()} at rank 0); {NATIVE}: copied to pinned host "
            "memory, there the MPI library's call, and copied back; all with a wait for the result"
        ]
    return [
        *where,
        "time: of the slowest rank, call by call; median, min and p99 over the samples; candidates "
        "take turns",
        fresh,
        length,
    ]


def _gpu() -> str:
    """Return what the device of rank 0 is called, the first one of its host."""
    from hpccoll.cuda.driver import get_device

    return get_device(0).name


def column_lines() -> tuple[str, str]:
    """Return the two lines that name the columns and their units."""
    names = _line([name for name, _, _ in COLUMNS])
    units = _line([unit for _, unit, _ in COLUMNS])
    return f"#{names[1:]}", f"#{units[1:]}"


def row_line(row: Row) -> str:
    """Return a row of the table; "-" is what could not be had, or what the collective has not."""
    ran = row.algorithm if row.algorithm != AUTO else f"{AUTO} ({row.ran})"
    return _line(
        [
            str(row.nbytes),
            str(row.count),
            *("-" if name == NONE else name for name in (row.type, row.op, row.place)),
            ran,
            _microseconds(row.time_us),
            _microseconds(row.min_us),
            _microseconds(row.p99_us),
            _number(row.algbw_gbps, 3),
            _number(row.busbw_gbps, 3),
            "-" if row.wrong is None else str(row.wrong),
            _number(row.vs_mpi, 2),
        ]
    )


def _line(cells: Sequence[str]) -> str:
    parts = [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for cell, (name, _, width) in zip(cells, COLUMNS, strict=True)
    ]
    return " ".join(parts).rstrip()


def _microseconds(value: float | None) -> str:
    return _number(value, 2 if value is None or value < 1000 else 0)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Table:
    """The table on standard output, and a progress bar beside it on a terminal.

    Fixed columns in place of `rich.table`, since rows appear as they are measured. Lines are never
    wrapped or cut, whatever the width of the terminal.

    Parameters
    ----------
    total : int
        Number of cases, for the bar.
    progress : bool
        Whether there is to be a bar; there is none anyway where standard error is no terminal.
    """

    def __init__(self, total: int, *, progress: bool = True) -> None:
        # Open MPI gives rank 0 a terminal of its own, whatever mpiexec's output goes to.
        plain = launcher_rank() is not None and not os.environ.get("FORCE_COLOR")
        self._console = Console(
            file=sys.stdout,
            force_terminal=False if plain else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._progress: Progress | None = None
        if progress and sys.stderr.isatty():
            self._progress = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
                auto_refresh=False,  # a thread that draws would disturb what is measured
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> "Table":
        """Show the bar."""
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def comment(self, text: str, style: str = "dim") -> None:
        """Write a line that is no row."""
        self._write([(f"# {text}", style)])

    def header(self, lines: Sequence[str]) -> None:
        """Write what stands above the rows."""
        comments = [(f"# {line}", "dim") for line in lines]
        self._write([*comments, *((line, "bold") for line in column_lines())])

    def rows(self, rows: Sequence[Row]) -> None:
        """Write the rows of a case; the fastest one stands out on a terminal."""
        if self._progress is not None:
            self._progress.advance(self._task)
        best = min((row.time_us for row in rows if row.time_us is not None), default=None)
        lines = []
        for row in rows:
            style = "dim" if row.algorithm == NATIVE else ""
            style = "green" if best is not None and row.time_us == best else style
            lines.append((row_line(row), "bold red" if row.wrong else style))
        self._write(lines)

    def _write(self, lines: Sequence[tuple[str, str]]) -> None:
        """Write lines, each with its style; the bar, on the same terminal, makes room for them."""
        if self._progress is not None:
            self._progress.stop()
        for line, style in lines:
            self._console.print(Text(line, style=style), soft_wrap=True)
        self._console.file.flush()
        if self._progress is not None:
            self._progress.start()


def write_json(file: TextIO, document: dict[str, Any]) -> None:
    """Write the JSON file, a line per row."""
    rows = document["rows"]
    head = json.dumps({**document, "rows": []}, indent=1)
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    file.write(head.removesuffix("[]\n}") + f"[\n{body}\n ]\n}}\n")


def write_csv(file: TextIO, rows: Sequence[Row]) -> None:
    """Write the rows without their raw times; what could not be had is empty."""
    names = [field.name for field in fields(Row) if field.name != "times_us"]
    writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)


def closing(rows: Sequence[Row], *, checked: bool) -> tuple[str, str]:
    """Return the last line, and its style."""
    if rows and not has_elements(rows[0].collective):
        return f"{_plural(len(rows), 'row')}, no elements to check", "dim"
    if not checked:
        return f"{_plural(len(rows), 'row')}, results not checked", "dim"
    wrong = [row for row in rows if row.wrong]
    if not wrong:
        return f"{_plural(len(rows), 'row')}, no wrong elements", "dim"
    total = sum(row.wrong or 0 for row in wrong)
    return f"WRONG: {_plural(total, 'element')} in {_plural(len(wrong), 'row')}", "bold red"

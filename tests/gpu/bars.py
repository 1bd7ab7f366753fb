"""What is to be reached on a device, and whether it was: lines that begin with "bar".

python tests/gpu/bars.py mapped mapped.json     # JSON that the benchmark has written
python tests/gpu/bars.py staged staged.json
"""

import json
import sys
from pathlib import Path
from typing import Any

NBYTES = 64 << 20

MAPPED, STAGED = 5.0, 1.5
"""How many times as fast as staging by hand: copy down, the MPI library's call, copy up."""

WAYS = {"mapped": ("mapped", MAPPED), "staged": ("host", STAGED)}
"""By the name of a run, the path that it is to go by default, and the bar."""


def verdict(what: str, reached: float | None, bar: float) -> str:
    """Return a line that says whether a bar was reached; None where it was not measured."""
    if reached is None:
        return f"bar: {what}: not measured, wanted {bar:.2f}"
    said = "met" if reached >= bar else f"missed by {bar - reached:.3f}"
    return f"bar: {what}: {reached:.3f}, wanted {bar:.2f}: {said}"


def lines_of(run: str, document: dict[str, Any]) -> list[str]:
    """Return the lines for what a run of the benchmark has found.

    Parameters
    ----------
    run : str
        "mapped" or "staged".
    document : dict
        What the benchmark has written with ``--json``.
    """
    path, bar = WAYS[run]
    rows = [
        row
        for row in document["rows"]
        if row["nbytes"] == NBYTES and row["algorithm"] == "auto" and row["type"] == "float32"
    ]
    lines = []
    for row in rows:
        place = {"in": "in place", "out": "out of place"}[row["place"]]
        what = f"{run} all-reduce of 64 MiB, {document['ranks']} ranks, {place}, over by hand"
        reached = row["vs_mpi"] if row["ran"].startswith(path) else None
        lines.append(verdict(what, reached, bar))
        if reached is None:
            lines.append(f"     it went another way: {row['ran']}")
    return lines or [verdict(f"{run} all-reduce of 64 MiB", None, bar)]


def main() -> None:
    """Read the command line, and print."""
    run, name = sys.argv[1:]
    print("\n".join(lines_of(run, json.loads(Path(name).read_text()))))


if __name__ == "__main__":
    main()

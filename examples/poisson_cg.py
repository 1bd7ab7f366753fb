"""Poisson's equation by conjugate gradients: the dot products are the global reductions.

    mpiexec -n 4 python examples/poisson_cg.py
    mpiexec -n 3 python examples/poisson_cg.py --grid 100 --tolerance 1e-10 --repeats 3

Solves -Laplace(u) = f on the unit square, u = 0 at its border, with f from a known solution. Each
rank has a block of the grid and exchanges its edges with its neighbours through mpi4py; each dot
product is an Allreduce of 8 bytes, by the MPI library and by hpccoll in turns, in three solvers:

plain       two dot products in each iteration, one after the other
fused       the method of Chronopoulos and Gear: both at one point, in one Allreduce of 16 bytes
persistent  fused, with an Allreduce that is prepared once and started in each iteration

Exits with 1 unless all converge to the known solution, up to the error of the grid, in the same
number of iterations, and all ranks see the same bytes.
"""

import hashlib
import os
from time import perf_counter
from typing import NamedTuple

# One process per core is the parallelism here; threads of NumPy's would get in its way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import numpy as np
from mpi4py import MPI
from rich import box
from rich.console import Console
from rich.table import Table

import hpccoll

MODES = ((1.0, 1, 2), (0.5, 4, 3))
"""The solution: the sum of c sin(a pi x) sin(b pi y) over these (c, a, b)."""

LEFT = 4
"""The most that a residual of 1 leaves of the error, over the number of cells along a side.

All of the error at one point, and in the direction of the least eigenvalue: the root mean square
of f over that eigenvalue. For these modes it is 3.4, on the smallest grid 3.6.
"""

SOLVERS = ("plain", "fused", "persistent")


def grid_error(n: int) -> float:
    """Return a bound of the grid's own error, which falls by 4 when n doubles.

    Each mode is an eigenvector of the five-point stencil too, so what the grid makes of it is the
    mode times the quotient of the eigenvalues.
    """
    error = 0.0
    for c, a, b in MODES:
        wanted = np.pi**2 * (a**2 + b**2)
        stencil = 4 * n**2 * (np.sin(a * np.pi / 2 / n) ** 2 + np.sin(b * np.pi / 2 / n) ** 2)
        error += abs(c) * (wanted / stencil - 1)
    return float(error)


class Domain:
    """This rank's block of the inner points of a grid of n x n cells, with its neighbours."""

    def __init__(self, comm: MPI.Intracomm, n: int) -> None:
        self.cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
        places = list(zip(self.cart.coords, self.cart.dims, strict=True))
        # Blocks differ by a row or a column where the ranks do not divide the grid.
        blocks = [slice((n - 1) * i // k, (n - 1) * (i + 1) // k) for i, k in places]
        x, y = np.ix_(*(np.arange(block.start + 1, block.stop + 1) / n for block in blocks))
        modes = [(c, a, b, np.sin(a * np.pi * x) * np.sin(b * np.pi * y)) for c, a, b in MODES]
        self.solution = sum(c * mode for c, _, _, mode in modes)
        self.right = sum(c * (a**2 + b**2) * (np.pi / n) ** 2 * mode for c, a, b, mode in modes)
        # From a guess of zero, two eigenvectors would be found in two iterations. This guess has a
        # part of all of them, and is the same for any number of ranks.
        self.guess = np.random.default_rng(0).random((n - 1, n - 1))[tuple(blocks)].copy()
        # With a frame of neighbours' points, or of the border's zeros.
        self.framed = np.zeros([length + 2 for length in self.right.shape])
        self.requests = self._edges()

    def _edges(self) -> list[MPI.Prequest]:
        """Prepare the sends of this block's outermost points and the receives into its frame."""
        requests: list[MPI.Prequest] = []
        for axis in (0, 1):
            lengths, last = list(self.right.shape), self.right.shape[axis]
            lengths[axis] = 1
            low, high = self.cart.Shift(axis, 1)
            for call, neighbour, position in (
                (self.cart.Recv_init, low, 0),
                (self.cart.Recv_init, high, last + 1),
                (self.cart.Send_init, low, 1),
                (self.cart.Send_init, high, last),
            ):
                start = [1, 1]
                start[axis] = position
                edge = MPI.DOUBLE.Create_subarray(self.framed.shape, lengths, start).Commit()
                requests.append(call([self.framed, 1, edge], neighbour))
                edge.Free()
        return requests

    def exchange(self) -> None:
        """Fill the frame."""
        MPI.Prequest.Startall(self.requests)
        MPI.Prequest.Waitall(self.requests)

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return the five-point stencil of -Laplace, times the square of a cell's side."""
        full = self.framed
        full[1:-1, 1:-1] = v
        self.exchange()
        return 4 * v - full[:-2, 1:-1] - full[2:, 1:-1] - full[1:-1, :-2] - full[1:-1, 2:]

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.cart.Free()


class Sums:
    """Sums over all ranks, a few numbers at a time: what is timed here."""

    def __init__(self, comm: MPI.Intracomm, count: int, persistent: bool) -> None:
        self.comm, self.values = comm, np.zeros(count)
        self.request = comm.Allreduce_init(MPI.IN_PLACE, self.values) if persistent else None
        self.calls, self.seconds, self.seen = 0, 0.0, hashlib.sha256()

    def __call__(self, *mine: float) -> list[float]:
        self.values[:] = mine
        began = perf_counter()
        if self.request is None:
            self.comm.Allreduce(MPI.IN_PLACE, self.values)
        else:
            self.request.Start()
            self.request.Wait()
        self.seconds += perf_counter() - began
        self.calls += 1
        self.seen.update(self.values)
        return self.values.tolist()


def plain(domain: Domain, sums: Sums, bound: float, most: int) -> tuple[np.ndarray, int]:
    """Return the solution and the number of iterations: the textbook's method."""
    x = domain.guess.copy()
    r = domain.right - domain.apply(x)
    p = r.copy()
    (rr,) = sums(np.vdot(r, r))
    iterations = 0
    while rr > bound and iterations < most:
        q = domain.apply(p)
        (pq,) = sums(np.vdot(p, q))
        x += rr / pq * p
        r -= rr / pq * q
        before, (rr,) = rr, sums(np.vdot(r, r))
        p = r + rr / before * p
        iterations += 1
    return x, iterations


def fused(domain: Domain, sums: Sums, bound: float, most: int) -> tuple[np.ndarray, int]:
    """Return the same by the method of Chronopoulos and Gear.

    `q`, the stencil of `p`, follows from `w`, that of `r`, and so does their dot product: what is
    left to sum is (r, r) and (w, r), both known at once.
    """
    x = domain.guess.copy()
    r = domain.right - domain.apply(x)
    w = domain.apply(r)
    rr, wr = sums(np.vdot(r, r), np.vdot(w, r))
    p, q, step, iterations = r.copy(), w.copy(), rr / wr, 0
    while rr > bound and iterations < most:
        x += step * p
        r -= step * q
        w = domain.apply(r)
        before, (rr, wr) = rr, sums(np.vdot(r, r), np.vdot(w, r))
        ratio = rr / before
        step = rr / (wr - ratio * rr / step)
        p = r + ratio * p
        q = w + ratio * q
        iterations += 1
    return x, iterations


class Result(NamedTuple):
    """Of one solution: the same on all ranks, times are those of the slowest."""

    iterations: int
    residual: float
    error: float
    same_bytes: bool
    calls: int
    seconds: float
    reducing: float

    def is_right(self, n: int, tolerance: float) -> bool:
        accurate = self.error <= grid_error(n) + LEFT * n * self.residual
        return self.same_bytes and self.residual <= 2 * tolerance and accurate


def solve(domain: Domain, comm: MPI.Intracomm, solver: str, tolerance: float) -> Result:
    cart = domain.cart
    size = cart.allreduce(float(np.vdot(domain.right, domain.right)))
    sums = Sums(comm, 1 if solver == "plain" else 2, solver == "persistent")
    method = plain if solver == "plain" else fused
    cart.Barrier()
    began = perf_counter()
    x, iterations = method(domain, sums, tolerance**2 * size, most=20 * sum(domain.guess.shape))
    seconds = perf_counter() - began
    if sums.request is not None:
        sums.request.Free()
    left = domain.right - domain.apply(x)
    residual = (cart.allreduce(float(np.vdot(left, left))) / size) ** 0.5
    error = cart.allreduce(float(np.abs(x - domain.solution).max()), MPI.MAX)
    same = len(set(cart.allgather(sums.seen.digest()))) == 1
    slowest = (cart.allreduce(time, MPI.MAX) for time in (seconds, sums.seconds))
    return Result(iterations, residual, error, same, sums.calls, *slowest)


def show(results: dict[tuple[str, str], list[Result]], bound: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("solver", "Allreduce"):
        table.add_column(column)
    for column in ("steps", "residual", "error", "solve ms", "calls", "their ms", "us each"):
        table.add_column(column, justify="right")
    for (solver, name), runs in results.items():
        one = runs[0]
        seconds, reducing = (np.median([run[i] for run in runs]) for i in (-2, -1))
        row = (solver, name, f"{one.iterations}", f"{one.residual:.1e}", f"{one.error:.3e}")
        times = f"{1e3 * reducing:.2f}", f"{1e6 * reducing / one.calls:.1f}"
        table.add_row(*row, f"{1e3 * seconds:.1f}", f"{one.calls}", *times)
    Console(width=120, highlight=False).print(table)
    print(f"the grid's own error is at most {bound:.3e}; times: slowest rank, median of repeats;")
    print("the time of a call includes the wait for the rank that comes last")


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n"))
@click.option("--grid", type=click.IntRange(4), default=64, help="Cells along a side.")
@click.option("--tolerance", type=click.FloatRange(1e-12, 0.1), default=1e-8, help="Residual.")
@click.option("--repeats", type=click.IntRange(1), default=5, help="Timed ones, after one more.")
@click.pass_context
def main(context: click.Context, grid: int, tolerance: float, repeats: int) -> None:
    world = MPI.COMM_WORLD
    if grid <= max(MPI.Compute_dims(world.size, 2)):
        raise click.BadParameter(f"too few cells for {world.size} ranks", param_hint="--grid")
    domain = Domain(world, grid)
    comms = {"MPI": domain.cart, "hpccoll": hpccoll.Comm(domain.cart)}
    results = {(solver, name): [] for solver in SOLVERS for name in comms}
    for _ in range(1 + repeats):
        for (solver, name), runs in results.items():
            runs.append(solve(domain, comms[name], solver, tolerance))
    domain.free()
    everything = [run for runs in results.values() for run in runs]
    counts = [run.iterations for run in everything]
    good = all(run.is_right(grid, tolerance) for run in everything)
    good = good and max(counts) - min(counts) <= 1
    if world.rank == 0:
        print(f"{world.size} ranks, {grid} x {grid} cells, tolerance {tolerance:g}")
        show({case: runs[1:] for case, runs in results.items()}, grid_error(grid))
        print("all agree" if good else "THE SOLVERS DISAGREE, or miss the solution", flush=True)
    context.exit(0 if good else 1)


if __name__ == "__main__":
    main()

"""Data-parallel training: every rank takes a share of each batch, all-reduce averages gradients.

    mpiexec -n 4 python examples/train_digits.py
    mpiexec -n 3 python examples/train_digits.py --epochs 5 --algorithm ring

A small network learns to read the 1,797 handwritten digits that scikit-learn ships. Then each
algorithm of hpccoll trains the same network for a few epochs, and rank 0 trains it alone, with
whole batches: the weights must agree up to rounding, and be the same bytes on all ranks. Exits with
1 if they are not.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

# One process per core is the parallelism here; threads of NumPy's would get in its way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

import hpccoll

TEST_IMAGES = 360
LEARNING_RATE, MOMENTUM = 0.05, 0.9
COMPARED_EPOCHS = 4

BOUND = 1e-9
"""Largest difference of a weight, relative to the largest weight, that is put down to rounding.

Double precision rounds at 1e-16, and training passes each rounding on to all later steps. A shard
that is lost or counted twice shows at 1e-3 and above.
"""


class Data(NamedTuple):
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(comm: MPI.Intracomm) -> Data | None:
    """Read the digits on rank 0 and give them to all; None, on all ranks, if that fails."""
    data = None
    if comm.rank == 0:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            print("this example needs scikit-learn: pip install scikit-learn", file=sys.stderr)
        else:
            images, labels = load_digits(return_X_y=True)
            order = np.random.default_rng(0).permutation(len(labels))
            images, labels, n = images[order] / 16.0, labels[order], TEST_IMAGES
            data = Data(images[n:], labels[n:], images[:n], labels[:n])
    return comm.bcast(data, root=0)


class Network:
    """64 pixels, a hidden layer with ReLU, 10 classes; all weights are one flat vector."""

    def __init__(self, hidden: int, seed: int, dtype: str) -> None:
        shapes = ((64, hidden), (hidden,), (hidden, 10), (10,))
        ends = np.cumsum([np.prod(shape) for shape in shapes])
        self.weights, self.gradient = np.zeros((2, ends[-1]), dtype)
        self.layers, self.gradients = (
            [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=False)]
            for flat in (self.weights, self.gradient)
        )
        random = np.random.default_rng(seed)
        for matrix in self.layers[::2]:
            matrix[:] = random.normal(scale=np.sqrt(2 / len(matrix)), size=matrix.shape)

    def forward(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the hidden layer and the logarithms of the probabilities."""
        first, first_bias, second, second_bias = self.layers
        hidden = np.maximum(images @ first + first_bias, 0)
        scores = hidden @ second + second_bias
        scores -= scores.max(axis=1, keepdims=True)
        return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def backward(self, images: np.ndarray, labels: np.ndarray, factor: float) -> float:
        """Set the gradient: the sum over the images, times `factor`. Return the sum of losses."""
        hidden, logarithms = self.forward(images)
        right = np.arange(len(labels)), labels
        error = np.exp(logarithms)
        error[right] -= 1
        error *= factor
        behind = (error @ self.layers[2].T) * (hidden > 0)
        first, first_bias, second, second_bias = self.gradients
        np.matmul(images.T, behind, out=first)
        np.sum(behind, axis=0, out=first_bias)
        np.matmul(hidden.T, error, out=second)
        np.sum(error, axis=0, out=second_bias)
        return float(-logarithms[right].sum())

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Return the share of images that are read right."""
        return float(np.mean(self.forward(images)[1].argmax(axis=1) == labels))


def train(
    comm: MPI.Intracomm,
    data: Data,
    args: argparse.Namespace,
    algorithm: str,
    epochs: int,
    dtype: str,
    show: Callable[[int, float, Network], None] = lambda epoch, loss, network: None,
) -> tuple[np.ndarray, float, float]:
    """Train on all ranks together; return weights, seconds, and seconds spent in all-reduce."""
    images = data.images.astype(dtype)
    network = Network(args.hidden, args.seed, dtype)
    gradient, velocity = network.gradient, np.zeros_like(network.weights)
    shuffle = np.random.default_rng(args.seed)  # the same on all ranks: they agree on each batch
    reducing, started = 0.0, perf_counter()
    for epoch in range(epochs):
        loss = 0.0
        order = shuffle.permutation(len(images))
        for start in range(0, len(order), args.batch):
            batch = order[start : start + args.batch]
            mine = batch[comm.rank :: comm.size]
            # Shards differ by an image where the ranks do not divide the batch, and the last batch
            # may leave ranks without any: a plain mean of the shards' mean gradients would weigh
            # the images of small shards more. So each rank puts in the *sum* over its images
            # times ranks / batch; the mean over ranks of that is the sum over the batch / batch.
            loss += network.backward(images[mine], data.labels[mine], comm.size / len(batch))
            began = perf_counter()
            hpccoll.allreduce(gradient, op="mean", out=gradient, comm=comm, algorithm=algorithm)
            reducing += perf_counter() - began
            velocity = MOMENTUM * velocity - LEARNING_RATE * gradient
            network.weights += velocity
        show(epoch, hpccoll.allreduce(loss, comm=comm) / len(order), network)
    return network.weights, perf_counter() - started, reducing


def same_on_all_ranks(comm: MPI.Intracomm, weights: np.ndarray) -> bool:
    return len(set(comm.allgather(hashlib.sha256(weights).digest()))) == 1


def arguments(argv: list[str] | None, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=96, help="images per step, of all ranks")
    parser.add_argument("--hidden", type=int, default=64, help="size of the hidden layer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithm", choices=["auto", *names], default="auto")
    args = parser.parse_args(argv)
    if min(args.epochs, args.batch, args.hidden) < 1 or args.seed < 0:
        parser.error("--epochs, --batch and --hidden are at least 1, --seed is at least 0")
    return args


def main(argv: list[str] | None = None) -> int:
    names = [algorithm.name for algorithm in hpccoll.algorithms()]
    args = arguments(argv, names)
    comm = MPI.COMM_WORLD
    data = load(comm)
    if data is None:
        return 1

    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    def show(epoch: int, loss: float, network: Network) -> None:
        accuracy = network.accuracy(data.test_images, data.test_labels)
        say(f"{epoch + 1:5}  {loss:8.4f}  {accuracy:13.1%}")

    say(f"{comm.size} ranks, {len(data.labels)} images, batches of {args.batch}, float32")
    say("epoch      loss  test accuracy")
    weights, _, _ = train(comm, data, args, args.algorithm, args.epochs, "float32", show)
    good = same_on_all_ranks(comm, weights)
    say(f"weights are {'the same bytes' if good else 'NOT THE SAME'} on all ranks\n")

    say(f"{COMPARED_EPOCHS} epochs in float64 by each algorithm, and by rank 0 alone")
    say(f"{'algorithm':18}  seconds  in all-reduce  sent per step  difference  same bytes")
    if comm.rank == 0:
        alone, _, _ = train(MPI.COMM_SELF, data, args, "auto", COMPARED_EPOCHS, "float64")
    for name in names:
        weights, seconds, reducing = train(comm, data, args, name, COMPARED_EPOCHS, "float64")
        simulation = hpccoll.simulate(name, size=comm.size, nbytes=weights.nbytes, itemsize=8)
        sent = max(rank.bytes_sent for rank in simulation.ranks)
        same = same_on_all_ranks(comm, weights)
        difference = np.abs(weights - alone).max() / np.abs(alone).max() if comm.rank == 0 else 0
        say(
            f"{name:18}  {seconds:7.3f}  {reducing / seconds:13.0%}  {sent:11,} B"
            f"  {difference:10.1e}  {'yes' if same else 'NO'}"
        )
        good = good and same and bool(difference <= BOUND)
    good = comm.bcast(good, root=0)
    say("all agree" if good else f"THE WEIGHTS DIFFER by more than {BOUND:g}, or between ranks")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Data-parallel training: every rank takes a share of each batch, all-reduce averages the gradients.

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
from typing import Any, NamedTuple

# One process per core is the parallelism here; threads of NumPy's would get in its way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

import hpccoll

Array = np.ndarray[Any, Any]

TEST_IMAGES = 360
LEARNING_RATE, MOMENTUM = 0.05, 0.9
COMPARED_EPOCHS = 4

BOUND = 1e-9
"""Largest difference of a weight, relative to the largest weight, that is put down to rounding.

Double precision rounds at 1e-16, and training passes each rounding on to all later steps. A shard
that is lost or counted twice shows at 1e-3 and above.
"""


class Data(NamedTuple):
    images: Array
    labels: Array
    test_images: Array
    test_labels: Array


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
            images, labels = images[order] / 16.0, labels[order]
            test = slice(0, TEST_IMAGES), slice(TEST_IMAGES, None)
            data = Data(images[test[1]], labels[test[1]], images[test[0]], labels[test[0]])
    return comm.bcast(data, root=0)


class Network:
    """64 pixels, a hidden layer with ReLU, 10 classes; all weights are one flat vector."""

    def __init__(self, hidden: int, seed: int, dtype: str) -> None:
        shapes = ((64, hidden), (hidden,), (hidden, 10), (10,))
        ends = np.cumsum([np.prod(shape) for shape in shapes])
        self.weights: Array = np.zeros(ends[-1], dtype)
        self.gradient = np.zeros_like(self.weights)

        def views(flat: Array) -> list[Array]:
            parts = np.split(flat, ends[:-1])
            return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

        self._weights, self._gradients = views(self.weights), views(self.gradient)
        random = np.random.default_rng(seed)
        for matrix in self._weights[::2]:
            matrix[:] = random.normal(scale=np.sqrt(2 / len(matrix)), size=matrix.shape)

    def forward(self, images: Array) -> tuple[Array, Array]:
        """Return the hidden layer and the logarithms of the probabilities."""
        first, first_bias, second, second_bias = self._weights
        hidden = np.maximum(images @ first + first_bias, 0)
        scores = hidden @ second + second_bias
        scores -= scores.max(axis=1, keepdims=True)
        return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def backward(self, images: Array, labels: Array, factor: float) -> float:
        """Set the gradient: the sum over the images, times `factor`. Return the sum of losses."""
        hidden, logarithms = self.forward(images)
        rows = np.arange(len(labels))
        error = np.exp(logarithms)
        error[rows, labels] -= 1
        error *= factor
        behind = (error @ self._weights[2].T) * (hidden > 0)
        first, first_bias, second, second_bias = self._gradients
        np.matmul(images.T, behind, out=first)
        np.sum(behind, axis=0, out=first_bias)
        np.matmul(hidden.T, error, out=second)
        np.sum(error, axis=0, out=second_bias)
        return float(-logarithms[rows, labels].sum())

    def accuracy(self, images: Array, labels: Array) -> float:
        """Return the share of images that are read right."""
        return float(np.mean(self.forward(images)[1].argmax(axis=1) == labels))


class Trained(NamedTuple):
    weights: Array
    seconds: float
    """All of the training, on this rank."""
    reducing: float
    """Seconds of it spent in all-reduce, which includes waiting for slower ranks."""


def train(
    comm: MPI.Intracomm,
    data: Data,
    args: argparse.Namespace,
    algorithm: str,
    epochs: int,
    dtype: str,
    show: Callable[[int, float, Network], None] = lambda epoch, loss, network: None,
) -> Trained:
    """Train on all ranks of a communicator together."""
    images = data.images.astype(dtype)
    network = Network(args.hidden, args.seed, dtype)
    velocity = np.zeros_like(network.weights)
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
            gradient = network.gradient
            began = perf_counter()
            hpccoll.allreduce(gradient, op="mean", out=gradient, comm=comm, algorithm=algorithm)
            reducing += perf_counter() - began
            velocity = MOMENTUM * velocity - LEARNING_RATE * gradient
            network.weights += velocity
        show(epoch, hpccoll.allreduce(loss, comm=comm) / len(order), network)
    return Trained(network.weights, perf_counter() - started, reducing)


def same_on_all_ranks(comm: MPI.Intracomm, weights: Array) -> bool:
    """Whether all ranks hold the same bytes."""
    return len(set(comm.allgather(hashlib.sha256(weights).digest()))) == 1


def main(argv: list[str] | None = None) -> int:
    names = [algorithm.name for algorithm in hpccoll.algorithms()]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=96, help="images per step, of all ranks")
    parser.add_argument("--hidden", type=int, default=64, help="size of the hidden layer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithm", choices=["auto", *names], default="auto")
    args = parser.parse_args(argv)

    comm = hpccoll.Comm(MPI.COMM_WORLD)
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
    trained = train(comm, data, args, args.algorithm, args.epochs, "float32", show)
    same = same_on_all_ranks(comm, trained.weights)
    say(f"weights are {'the same bytes' if same else 'NOT THE SAME'} on all ranks\n")
    good = same

    say(f"{COMPARED_EPOCHS} epochs in float64 by each algorithm, and by rank 0 alone")
    say(f"{'algorithm':20}  seconds  in all-reduce  sent per step  difference  same bytes")
    alone = None
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, data, args, "auto", COMPARED_EPOCHS, "float64").weights
    for name in names:
        trained = train(comm, data, args, name, COMPARED_EPOCHS, "float64")
        sent = hpccoll.simulate(name, size=comm.size, nbytes=trained.weights.nbytes, itemsize=8)
        same = same_on_all_ranks(comm, trained.weights)
        difference = 0.0
        if alone is not None:
            difference = float(np.abs(trained.weights - alone).max() / np.abs(alone).max())
        say(
            f"{name:20}  {trained.seconds:7.3f}  {trained.reducing / trained.seconds:13.0%}"
            f"  {max(rank.bytes_sent for rank in sent.ranks):11,} B  {difference:10.1e}"
            f"  {'yes' if same else 'NO'}"
        )
        good = good and same and difference <= BOUND
    good = comm.bcast(good, root=0)
    say("all agree" if good else f"THE WEIGHTS DIFFER by more than {BOUND:g}, or between ranks")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

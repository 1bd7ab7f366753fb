"""What is known of a plan's calls before they run, and the errors in which they end."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hpccoll.errors import NEW_ONE, CollectiveTimeoutError, MismatchError, join_ranks
from hpccoll.task import Task
from hpccoll.transport import Failure, Word

GIVEN_UP = -1
"""In place of the tag of a message, where its sender has given up the call."""


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What is known of a plan's calls before they run."""

    task: Task
    rank: int
    size: int
    steps: int
    scratch_bytes: int

    def fail(self, why: str) -> NoReturn:
        """Raise the error of a call that ended before its time.

        Parameters
        ----------
        why : str
            What happened.
        """
        message = (
            f"{self.task.call}: {why} (rank {self.rank} of {self.size}, {self.task.text} here). "
            f"{NEW_ONE}"
        )
        raise RuntimeError(message)

    def describe(self, number: int, what: str) -> str:
        """Return what happened in a call, for messages."""
        by = f" by {self.task.algorithm.name}" if self.task.algorithm else ""
        return (
            f"{self.task.call}: {what} (call {number} on this communicator, {self.task.text}{by}, "
            f"rank {self.rank} of {self.size})"
        )

    def warn(self, number: int, what: str) -> None:
        """Tell on stderr that this rank has waited long, and goes on."""
        text = f"hpccoll: {self.describe(number, what)}; it goes on waiting"
        print(text, file=sys.stderr, flush=True)

    def lose(self, number: int, what: str, ranks: Sequence[int] = ()) -> NoReturn:
        """Raise the error of a call that waited too long, here or on another rank.

        Parameters
        ----------
        number : int
            Of the call.
        what : str
            What was waited for, and how long.
        ranks : sequence of int
            Which gave no sign of being in the call.
        """
        error = CollectiveTimeoutError(self.describe(number, what))
        raise self.complete(error, ranks)

    def complete(
        self, error: CollectiveTimeoutError, ranks: Sequence[int]
    ) -> CollectiveTimeoutError:
        """Add to an error which ranks gave no sign of being in the call."""
        text = str(error.args[0]).partition(". No sign of ")[0].partition(f". {NEW_ONE}")[0]
        missing = f". No sign of {join_ranks(ranks)}" if ranks else ""
        error.ranks = tuple(ranks)
        error.args = (f"{text}{missing}. {NEW_ONE}",)
        return error

    def given_up(self, word: Word, expected: int, tag: int, number: int) -> NoReturn:
        """Raise the error of a rank that was told of a failure.

        Parameters
        ----------
        word : Word
            What it was told.
        expected, tag, number
            As of `mismatch` and `lose`.
        """
        if word.failure is Failure.LOST:
            self.lose(number, f"rank {word.rank} has given up the call for good")
        self.mismatch(word.rank, expected, tag, 0, GIVEN_UP)

    def elsewhere(self, peer: int) -> NoReturn:
        """Raise the error of a rank that waits in memory for one that sends messages.

        Parameters
        ----------
        peer : int
            That one.
        """
        message = (
            f"{self.task.call}: expected the part of rank {peer} in the memory of their node, got "
            f"messages of another call (rank {self.rank} of {self.size}, {self.task.text} here). "
            "Ranks passed different types or algorithms; the results of this call are not valid"
        )
        raise MismatchError(message)

    def mismatch(
        self, peer: int, expected: int, tag: int, got: int | None, got_tag: int
    ) -> NoReturn:
        """Raise the error of a rank that received another message than it expected.

        Parameters
        ----------
        peer : int
            The sender.
        expected, tag : int
            Bytes and tag that were expected.
        got, got_tag : int
            Bytes and tag that came; `got` is None where more came than there was room for. The tag
            is `GIVEN_UP` where no data came, but word that the sender has given up.
        """
        wanted = f"{expected} bytes from rank {peer}"
        if got_tag == GIVEN_UP:
            came = "word that it has given up"
        elif got is None:
            came = "more"
        elif got != expected:
            came = f"{got}"
        elif got_tag ^ tag == 1:
            came = f"{got}, and another number of messages"
        else:
            came = f"{got} of another type or for another operation"
        message = (
            f"{self.task.call}: expected {wanted}, got {came} "
            f"(rank {self.rank} of {self.size}, {self.task.text} here). Ranks passed different "
            "counts, types, operations, algorithms or segment sizes, or made different calls; the "
            "results of this call are not valid"
        )
        raise MismatchError(message)

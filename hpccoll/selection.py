"""Which algorithm runs: "auto" and what overrides it. A function of values equal on all ranks.

The thresholds come from bench/collectives.py on one node; docs/architecture.md says how to measure
them again. A user overrides them with the argument `algorithm`, or for a whole run with the
environment variable ``HPCCOLL_ALGORITHM`` (read on rank 0).
"""

import os
from dataclasses import dataclass

from hpccoll.algorithms import ALGORITHMS, AUTO, Algorithm, find
from hpccoll.algorithms.flat import by_count

VARIABLE = "HPCCOLL_ALGORITHM"

SMALL_BYTES = 32 << 10
"""Up to here the number of messages decides: whole vectors, fewest steps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a communicator or a call asks for; equal on all ranks.

    Attributes
    ----------
    algorithm : str
        A name of the registry, or "auto".
    segment_bytes : int or None
        Upper limit of one message in bytes; None for the engine's default.
    """

    algorithm: str = AUTO
    segment_bytes: int | None = None

    def check(self) -> None:
        """Raise TypeError or ValueError where a setting cannot be used."""
        if not isinstance(self.algorithm, str):
            message = (
                f"algorithm is {self.algorithm!r} of type {type(self.algorithm).__name__}; "
                f"wanted one of {', '.join([AUTO, *ALGORITHMS])}"
            )
            raise TypeError(message)
        if self.algorithm != AUTO:
            find(self.algorithm)
        if self.segment_bytes is None:
            return
        if isinstance(self.segment_bytes, bool) or not isinstance(self.segment_bytes, int):
            message = (
                f"segment_bytes is {self.segment_bytes!r} of type "
                f"{type(self.segment_bytes).__name__}; wanted a positive int or None"
            )
            raise TypeError(message)
        if self.segment_bytes <= 0:
            message = f"segment_bytes is {self.segment_bytes}; wanted a positive int or None"
            raise ValueError(message)


def requested(settings: Settings, environment: str) -> str:
    """Return the algorithm asked for: the argument, else the environment's, else "auto".

    Raises
    ------
    ValueError
        The environment names an unknown algorithm. The text lists the names.
    """
    if settings.algorithm != AUTO or environment in ("", AUTO):
        return settings.algorithm
    try:
        find(environment)
    except ValueError as error:
        message = f"environment variable {VARIABLE}: {error}"
        raise ValueError(message) from None
    return environment


def from_environment() -> str:
    """Return the value of ``HPCCOLL_ALGORITHM`` in this process, or an empty string."""
    return os.environ.get(VARIABLE, "").strip()


def select(*, size: int, nbytes: int, count: int) -> str:
    """Return the name of the algorithm that "auto" takes.

    Parameters
    ----------
    size : int
        Number of ranks.
    nbytes, count : int
        Bytes and elements of the vector.

    Returns
    -------
    str
        "recursive_doubling" where the number of messages decides; else what
        `hpccoll.algorithms.flat.by_count` says.
    """
    return "recursive_doubling" if nbytes <= SMALL_BYTES else by_count(size, count)


def choose(
    settings: Settings, environment: str, *, size: int, nbytes: int, count: int
) -> Algorithm:
    """Return the algorithm that runs a call."""
    name = requested(settings, environment)
    return find(select(size=size, nbytes=nbytes, count=count) if name == AUTO else name)

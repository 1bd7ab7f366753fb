"""Agreement: ranks compare what they call before data moves.

Each rank takes a number from the text of its call. One small all-reduce finds the largest of these
numbers, and of their complements; where both are a rank's own, all ranks have the same. Where they
are not, ranks tell each other the texts. The communicator stays in step in either case.

Calls through the memory of a node need nothing of that, as long as their headers tell all that must
be equal (`Job.headers_tell`): these are compared anyway.
"""

import os
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from hpccoll.errors import MismatchError, join_ranks

VARIABLE = "HPCCOLL_CHECK"

CHOICES = {"": False, "0": False, "1": True}


def from_environment() -> tuple[bool, str]:
    """Return whether ``HPCCOLL_CHECK`` asks for it, and why it cannot be read."""
    text = os.environ.get(VARIABLE, "").strip()
    if text in CHOICES:
        return CHOICES[text], ""
    return False, f"environment variable {VARIABLE} is {text!r}; wanted 0 or 1"


@lru_cache(maxsize=256)
def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def fingerprint(text: str, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return what is compared, by the largest of each: a number, and its complement.

    Parameters
    ----------
    text : str
        What is called.
    number : int
        Of the call.
    """
    mine = _number(text) ^ (number * 0x9E3779B97F4A7C15) % 2**64
    return np.array((mine, mine ^ 2**64 - 1), np.uint64)


def mismatch(call: str, told: list[str]) -> MismatchError:
    """Return the error of ranks that call different things, the same for all.

    Parameters
    ----------
    call : str
        For messages: the call that the user made.
    told : list of str
        By rank, what it calls.

    Examples
    --------
    >>> print(mismatch("allreduce", ["sum of 5", "sum of 6", "sum of 5"]))
    allreduce: ranks make different calls: ranks 0, 2: sum of 5; rank 1: sum of 6
    """
    holders: dict[str, list[int]] = {}
    for rank, text in enumerate(told):
        holders.setdefault(text, []).append(rank)
    parts = (f"{join_ranks(ranks)}: {text}" for text, ranks in holders.items())
    return MismatchError(f"{call}: ranks make different calls: {'; '.join(parts)}")

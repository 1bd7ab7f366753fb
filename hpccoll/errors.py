"""The exceptions of calls that went wrong on the way; arguments get Python's own."""

from collections.abc import Iterable

NEW_ONE = "The communicator cannot be used any more: make a new one with Dup"


class MismatchError(ValueError):
    """Ranks passed different counts, types, operations and the like, or made different calls.

    All ranks are told, and the communicator can be used again.
    """


class CollectiveTimeoutError(TimeoutError):
    """A rank waited longer than it was told to.

    The communicator cannot be used any more.

    Attributes
    ----------
    ranks : tuple of int
        Those that this rank has not heard from: they did not come to the call, were lost in it, or
        are done with their part of it; empty where that is not known.
    """

    ranks: tuple[int, ...] = ()


class CudaError(RuntimeError):
    """A function of the CUDA driver failed, or could not be called.

    Parameters
    ----------
    message : str
        What happened.
    code : int
        The CUresult; 0 where the function was not called.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        """Return what happened."""
        return str(self.args[0])


def join_ranks(ranks: Iterable[int], most: int = 16) -> str:
    """Return ranks as text.

    Examples
    --------
    >>> join_ranks([3]), join_ranks([0, 2]), join_ranks(range(40))[-13:]
    ('rank 3', 'ranks 0, 2', '15 and others')
    """
    numbers = [str(rank) for rank in ranks]
    text = ", ".join(numbers[:most]) + (" and others" if len(numbers) > most else "")
    return f"rank{'' if len(numbers) == 1 else 's'} {text}"

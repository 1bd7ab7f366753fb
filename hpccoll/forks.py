"""Forked children: copies of the process that MPI knows, in which MPI cannot be used."""

import os

_forked = False


def _in_forked_child() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_in_forked_child)


def is_forked() -> bool:
    """Whether this process is a forked child of the one that MPI knows."""
    return _forked


def refuse_forked(call: str) -> None:
    """Raise RuntimeError in a forked child; `call` is what the user called."""
    if _forked:
        message = (
            f"{call}: called in a forked child (process {os.getpid()}, MPI was started in its "
            f"parent, {os.getppid()}); MPI cannot be used there"
        )
        raise RuntimeError(message)

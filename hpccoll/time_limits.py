"""Time limits: how long a rank waits for the others, as the user and the environment say."""

import math
import os
from numbers import Real

VARIABLE = "HPCCOLL_TIMEOUT"

WARNING_SECONDS = 60.0
"""Seconds of a wait after which there is a warning."""

NANOSECONDS = 1e9


def nanoseconds(timeout: float | None, usual: int) -> int:
    """Return a time limit of the user's in nanoseconds; 0 for any time.

    Examples
    --------
    >>> nanoseconds(None, 7), nanoseconds(0.5, 7), nanoseconds(math.inf, 7)
    (7, 500000000, 0)
    """
    if timeout is None:
        return usual
    if math.isinf(timeout):
        return 0
    return max(1, int(timeout * NANOSECONDS))


def check_timeout(name: str, timeout: object) -> None:
    """Raise where a value is no time limit."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        message = (
            f"{name} is {timeout!r} of type {type(timeout).__name__}; wanted seconds, as a "
            "positive number, or None"
        )
        raise TypeError(message)
    if not float(timeout) > 0:
        message = f"{name} is {timeout!r}; wanted seconds, as a positive number, or None"
        raise ValueError(message)


def limit_from_environment() -> tuple[int, str]:
    """Return the time limit of ``HPCCOLL_TIMEOUT`` in nanoseconds, and why it cannot be read."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return 0, ""
    try:
        timeout = float(text)
        check_timeout(VARIABLE, timeout)
    except ValueError:
        return 0, f"environment variable {VARIABLE} is {text!r}; wanted seconds, above 0"
    return nanoseconds(timeout, 0), ""

"""What went wrong on one rank in the middle of a call, and how all ranks come to know it.

A rank that raised on its own would leave the others waiting. So it keeps its error until ranks tell
each other the next time, and then all of them raise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from hpccoll.buffers import Array
from hpccoll.channel import Channel
from hpccoll.cuda.driver import failure, get_driver
from hpccoll.errors import CudaError
from hpccoll.jobs import gathered
from hpccoll.selection import Settings

WELL = 0
"""Code of a rank where nothing went wrong; what CUDA says there has its own code, above 0."""

OTHER = -1
"""What went wrong has no code."""

NOT_OPENED = -2
"""Memory of another rank could not be opened."""

NO_ACCESS = -3
"""The GPU does not reach another rank's."""

DIFFERENT = -4
"""What one rank stored was not what another one loaded."""

MOVED = -5
"""Its vectors are on another GPU than in the first call."""

TEXTS = {
    OTHER: "something went wrong there, which it tells itself",
    NOT_OPENED: "it could not open the memory of another rank",
    NO_ACCESS: "its GPU has no access to the memory of another rank's",
    MOVED: "its vectors are on another GPU than in the first call on the communicator",
    DIFFERENT: "it did not find in memory what another rank had stored there",
}


FINAL = (RuntimeError, TimeoutError, ImportError, MemoryError)
"""Errors of one rank, after which it does not come to what the others wait for."""

AGREED = "raised on all ranks"
"""Attribute of an error."""


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks have raised, so that all can go on."""
    return AGREED in error.__dict__


@contextmanager
def telling_errors(channel: Channel) -> Iterator[None]:
    """Give the communicator up, on all ranks, where an error of this one keeps it from a call.

    Who waits for the device too long knows that this is the end, and has told nobody.

    Parameters
    ----------
    channel : Channel
        On which the others wait for this rank then.
    """
    number, was_broken = channel.clock.number + 1, channel.clock.broken
    try:
        yield
    except FINAL as error:
        if not (is_agreed(error) or was_broken):
            with channel.turn:
                channel.lose(number)
        raise


class Outcome:
    """Keeps the first error of a body, or of several: ``with outcome: ...``.

    What ends a wait goes on: it is not known whether there will be a next time.

    Attributes
    ----------
    error : Exception or None
        What was raised.
    code : int
        The same as a number for the others.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.code = WELL

    def __enter__(self) -> "Outcome":
        """Begin a body."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Keep what was raised."""
        if not isinstance(error, Exception) or isinstance(error, TimeoutError):
            return False
        self.note(error, (isinstance(error, CudaError) and error.code) or OTHER)
        return True

    def note(self, error: Exception, code: int) -> None:
        """Keep an error, if it is the first one, under a code."""
        if self.error is None:
            self.error, self.code = error, code

    def fail(self, call: str, codes: Sequence[int], ranks: Sequence[int]) -> NoReturn:
        """Raise the error of a call in which something went wrong on a rank.

        Parameters
        ----------
        call : str
            For messages: the call that the user made.
        codes, ranks : sequence of int
            Of all ranks that told each other, some of which are not well.
        """
        if self.error is not None:
            raise self.error
        rank, code = first_failed(codes, ranks)
        message = f"{call}: rank {rank} could not do its part: {describe(code)}"
        raise CudaError(message, max(code, 0))


def describe(code: int) -> str:
    """Return what a code of another rank stands for."""
    if code in TEXTS:
        return TEXTS[code]
    return str(failure(get_driver().functions, "a function of the driver", code))


def first_failed(codes: Sequence[int], ranks: Sequence[int]) -> tuple[int, int]:
    """Return rank and code of the first one that is not well."""
    return next((rank, code) for rank, code in zip(ranks, codes, strict=True) if code != WELL)


class Exchange:
    """Lets the ranks of a channel tell each other numbers, in one call of the user's.

    A context manager. Who leaves its body by an exception that the others cannot know of tells
    them, for nobody could go on; the channel cannot be used any more.

    Parameters
    ----------
    channel : Channel
        Of the ranks.
    call : str
        For messages: the call that the user made.
    settings : Settings
        Of that call.

    Attributes
    ----------
    known : bool
        The others know of what is raised next.
    """

    def __init__(self, channel: Channel, call: str, settings: Settings) -> None:
        self.channel, self.call, self.settings = channel, call, settings
        self.known = False
        # For waits on the device before the first exchange.
        channel.clock.limit = channel.limit(settings)

    def __enter__(self) -> "Exchange":
        """Begin the call."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Tell the others where they have to know."""
        if error is None:
            return
        if self.known:
            error.__dict__[AGREED] = True
        else:
            what = f"{self.call} was left in the middle, by {type(error).__name__}"
            self.channel.transport.lose(what)

    def __call__(self, numbers: list[int]) -> Array:
        """Return a row of numbers from each rank. Collective."""
        self.known = True  # what ends this, ends it on all ranks
        told = gathered(self.channel, self.call, self.settings, numbers)
        self.known = False
        return told

    def agree(self, outcome: Outcome) -> None:
        """Return when all ranks have come to this, and all is well. Collective.

        Raises
        ------
        Exception
            On all ranks, where it is not well on one of them: its own error there.
        """
        self.check(outcome, self([outcome.code])[:, 0].tolist())

    def check(self, outcome: Outcome, codes: list[int]) -> None:
        """Raise on all ranks where the codes that they have told are not all well."""
        if any(codes):
            self.known = True
            outcome.fail(self.call, codes, range(self.channel.size))

"""A time limit for one rank of an MPI run: says where the rank stands, then ends the process.

A collective that one rank never enters hangs all the others, for ever and without a word. pytest's
own ``faulthandler_timeout`` ends the first rank whose time is up, whereupon mpiexec kills the
others before they can say anything, and its dump does not tell which rank it came from. So:

* at the limit a thread writes, in one piece, which rank this is and the lines it stands at;
* half the grace later `faulthandler` does the same without the interpreter, for a rank that hangs
  inside compiled code that holds the GIL, where no Python thread can run;
* a rank that has failed and waits for the others in vain calls the run off: all ranks are told
  through memory that they share, and speak at once instead of at their limit;
* after the grace SIGALRM, whose default action needs no interpreter either, ends the process.
  Every rank has had the time to speak by then, and mpiexec ends with an error.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 2.0
"""Seconds between the moment a rank says where it stands and its end."""

PERIOD = 0.1
"""Seconds between two looks at the clock."""

MACHINERY = (*(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pytest", "pluggy")), "<frozen ")
"""Frames of these files stand between the command line and a test; they are left out."""


class Watchdog:
    """Ends this process, with an explanation, when it is still armed after its limit.

    Parameters
    ----------
    label : str
        How this process calls itself, as "[rank 1 of 3]".
    fd : int
        Where to write; the real standard error, not the one that pytest captures.
    flag : memoryview
        One byte, 0 at first, in memory that the ranks of a node share.
    """

    def __init__(self, label: str, fd: int, flag: memoryview) -> None:
        self._label = label
        self._fd = fd
        self._flag = flag
        self._main = threading.get_ident()
        self._deadline: float | None = None
        self._reason = ""
        self._what = ""
        self._waiting = ""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def arm(self, limit: float, what: str) -> None:
        """Start anew: `what`, a test's name for instance, has `limit` seconds from now on."""
        self._reason, self._what = f"time limit of {limit:g} s reached", what
        self._deadline = time.monotonic() + limit
        faulthandler.dump_traceback_later(limit + GRACE / 2, file=self._fd)
        signal.setitimer(signal.ITIMER_REAL, limit + GRACE)

    @contextmanager
    def waiting(self, done: str) -> Iterator[None]:
        """While inside, this rank has finished its part and is not the one that hangs."""
        self._waiting = done
        try:
            yield
        finally:
            self._waiting = ""

    def call_off(self) -> None:
        """End the run: have all ranks say where they stand, and then end."""
        self._flag[0] = 1

    def write(self, text: str) -> None:
        """Write in one piece, so that what several ranks say at once does not mix."""
        os.write(self._fd, f"\n{self._label} {text.rstrip()}\n".encode(errors="replace"))

    def _watch(self) -> None:
        while True:
            time.sleep(PERIOD)
            if self._deadline is None:
                continue
            if self._flag[0]:
                self._reason = "the run is called off"
                signal.setitimer(signal.ITIMER_REAL, GRACE)
            if self._flag[0] or time.monotonic() >= self._deadline:
                self._deadline = None
                faulthandler.cancel_dump_traceback_later()
                self.write(self._explanation())

    def _explanation(self) -> str:
        head = f"{self._reason}: {self._what}"
        if self._waiting:
            return f"{head}: {self._waiting}"
        frames = sys._current_frames()
        stacks = [f"{head}: this rank stands at\n{_stack(frames.pop(self._main))}"]
        frames.pop(threading.get_ident())
        stacks += [f"another of its threads stands at\n{_stack(f)}" for f in frames.values()]
        return "\n".join(stacks)


def _stack(frame: FrameType) -> str:
    summary = traceback.extract_stack(frame)
    lines = [line for line in summary if not any(part in line.filename for part in MACHINERY)]
    return "".join(traceback.format_list(lines or summary))

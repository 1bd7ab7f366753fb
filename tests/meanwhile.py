"""What happens at the same time as a call: other threads, and interrupts."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest


def in_threads(
    jobs: Iterable[Callable[[], object]], barrier: threading.Barrier | None = None
) -> None:
    """Run functions at the same time; raise what the first one raised."""
    errors: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)
            if barrier:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Interrupt the block after so many seconds, as Ctrl-C does; it must end by that."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    # The timer is that of the watchdog of tests, which ends a rank where it strikes.
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)

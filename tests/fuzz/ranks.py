"""What every rank runs: programs of one seed after the other, until the time is over or one fails.

    mpiexec -n 3 python -m fuzz.ranks --seed 1 --minutes 1      # with tests/ on PYTHONPATH

After each program the ranks tell one another what they found, on a communicator of their own. A
failure of any rank is shrunk by all. A program that hangs ends the run, with its text.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterable

from hang_watchdog import Watchdog
from mpi4py import MPI

from fuzz.generator import EPOCH, generate
from fuzz.interpreter import Outcome, Rank
from fuzz.shrinker import shrink
from fuzz.steps import End, Program, Step

LIMIT = 30.0
"""Seconds for one program."""

TRIES = 3
"""How often a program that failed is run again, to see whether it does so by itself."""

SHOWN = 6
"""How many errors are shown."""

NOTHING, STOP, NEWS = range(3)
"""What ranks say after a program: nothing new, enough, or that there is more to say."""

COMMAND = "PYTHONPATH=tests mpiexec -n {} {} -m fuzz.ranks --seed {} --programs {}"


class Session:
    """All ranks: run programs, and agree on what came of them."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.world = MPI.COMM_WORLD
        self.rank, self.size = self.world.rank, self.world.size
        self._private = self.world.Dup()
        self._limit = limit
        label = f"[rank {self.rank} of {self.size}]"
        # A rank that waits for others has a limit of its own: no byte is shared.
        self._watchdog = Watchdog(label, os.dup(2), memoryview(bytearray(1)))
        self.arm("the start")

    def arm(self, what: str, program: Program | None = None) -> None:
        """Give what comes next its time."""
        if program is not None and self.rank == 0:
            what = f"{what}\n\n{program.text()}\n"
        self._watchdog.arm(self._limit, what)

    def say(self, text: str) -> None:
        """Print, on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def agree(self, outcome: Outcome, stop: bool = False) -> tuple[list[str], bool]:
        """Return the errors of all ranks, and whether rank 0 says that it is enough."""
        mine = NEWS if outcome.errors or outcome.digests else STOP if stop else NOTHING
        codes = bytearray(self.size)
        request = self._private.Iallgather(bytearray([mine]), codes)
        done = "\n".join(["has run the program", *outcome.errors[:SHOWN]])
        with self._watchdog.waiting(done):
            while not request.Test():  # a rank that waits leaves its core to the others
                os.sched_yield()
        if NEWS not in codes:
            return [], codes[0] == STOP
        told = self._private.allgather((outcome.errors, outcome.digests, stop))
        errors = [
            f"[rank {rank} of {self.size}] {error}"
            for rank, (errors, _, _) in enumerate(told)
            for error in errors
        ]
        first: dict[str, tuple[int, bytes]] = {}
        for rank, (_, digests, _) in enumerate(told):
            for name, digest in digests.items():
                other, wanted = first.setdefault(name, (rank, digest))
                if digest != wanted:
                    errors.append(f"ranks {other} and {rank} differ in the result of step {name}")
        return errors, told[0][2]

    def try_alone(self, program: Program, what: str) -> list[str]:
        """Run a program on communicators of its own; return the errors of all ranks."""
        self.arm(what, program)
        rank = Rank(self.world, program.environment)
        errors, _ = self.agree(rank.run(program.steps))
        rank.close()
        return errors


def fuzz(session: Session, seed: int, minutes: float, programs: int | None) -> bool:
    """Run programs from a seed on; return whether none failed."""
    started = time.monotonic()
    number = calls = 0
    stop = programs == 0
    while not stop:
        first = seed + number
        rank = Rank(session.world, generate(first, session.size).environment)
        for one in range(first, (first // EPOCH + 1) * EPOCH):
            program = generate(one, session.size)
            session.arm(f"seed {one}, size {session.size}, which began at seed {first}", program)
            outcome = rank.run(program.steps)
            number += 1
            calls += outcome.calls
            over = time.monotonic() - started > 60 * minutes
            errors, stop = session.agree(outcome, number == programs if programs else over)
            if errors:
                report(session, first, one, errors)
                return False
            if stop:
                break
        session.arm("the end of an epoch")
        rank.close()
    seconds = time.monotonic() - started
    session.say(
        f"{number} programs, {calls} calls, seed {seed}, size {session.size}: no failure "
        f"({number / max(seconds, 1e-9):.0f} programs/s)"
    )
    return True


def report(session: Session, first: int, seed: int, errors: list[str]) -> None:
    """Shrink the program of a seed that failed, after those from seed `first` on; print it."""
    size = session.size
    session.say(f"\nseed {seed}, size {size}: failure")
    _show(session, errors)
    program = generate(seed, size)
    begin = seed
    if not _fails_again(session, program):
        begin = first
        earlier = (generate(one, size).steps for one in range(first, seed + 1))
        program = Program(size, program.environment, tuple(_joined(earlier)))
        if first == seed or not _fails_again(session, program):
            session.say("it did not fail again")
            begin, program = seed, generate(seed, size)
    command = COMMAND.format(size, "python", begin, seed - begin + 1)
    session.say(f"\nagain: {command}")
    session.say("\nshrinking ...")
    last = errors

    def fails(candidate: Program) -> bool:
        nonlocal last
        found = session.try_alone(candidate, f"shrinking, seed {seed}")
        last = found or last
        return bool(found)

    shorter, tries = shrink(program, fails)
    session.say(
        f"from {len(program.steps)} steps to {len(shorter.steps)} in {tries} tries. It says:"
    )
    _show(session, last)
    session.say(f"\n{shorter.text()}")
    session.arm("the end")


def _fails_again(session: Session, program: Program) -> bool:
    return any(session.try_alone(program, "running a failure again") for _ in range(TRIES))


def _joined(programs: Iterable[tuple[Step, ...]]) -> Iterable[Step]:
    """Yield the steps of programs that run one after the other."""
    for number, steps in enumerate(programs):
        if number:
            yield End()
        yield from steps


def _show(session: Session, errors: list[str]) -> None:
    for error in errors[:SHOWN]:
        session.say(f"  {error}")
    if len(errors) > SHOWN:
        session.say(f"  and {len(errors) - SHOWN} more")


def replay(program: Program, times: int = 1) -> None:
    """Run a program that was printed, and say what came of it; ends the process with 1 on error."""
    session = Session()
    if session.size != program.size:
        sys.exit(f"the program is for {program.size} ranks, and there are {session.size}")
    for _ in range(times):
        errors = session.try_alone(program, "replaying")
        if errors:
            _show(session, errors)
            sys.exit(1)
    session.say("no failure")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="fuzz.ranks", description="Fuzz on the ranks of a job.")
    parser.add_argument("--seed", type=int, help="the first one (default: random)")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--programs", type=int, help="how many, in place of minutes")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one program")
    args = parser.parse_args(arguments)
    session = Session(args.limit)
    drawn = random.SystemRandom().randrange(10**6) * EPOCH if args.seed is None else args.seed
    seed = session.world.bcast(drawn)
    session.say(f"fuzzing from seed {seed} on {session.size} ranks")
    good = fuzz(session, seed, args.minutes, args.programs)
    session.arm("the end of the process")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs programs on one rank, and checks every result.

Nothing is raised: what goes wrong is noted, and the program goes on, as it does on other ranks.
"""

import os
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from fuzz.doors import Prepared
from fuzz.many import run_many
from fuzz.refusals import refused
from fuzz.steps import (
    Call,
    End,
    Environment,
    Forget,
    Free,
    Many,
    Refused,
    Ring,
    Split,
    Start,
    Step,
    Wait,
    short,
)
from hpccoll import _kernels

VARIABLES = {
    "HPCCOLL_NODES": "nodes",
    "HPCCOLL_NODE": "node",
    "HPCCOLL_WAIT": "wait",
    "HPCCOLL_ALGORITHM": "algorithm",
}
"""Environment variables, and where an `Environment` has their values."""

BEST_KERNEL = _kernels.target()


@dataclass
class Outcome:
    """What came of a program on this rank.

    Attributes
    ----------
    errors : list of str
        What went wrong; empty if nothing did.
    digests : dict
        Results, by what they are of, that must be equal on all ranks that have them.
    calls : int
        How many calls were made.
    """

    errors: list[str] = field(default_factory=list)
    digests: dict[str, bytes] = field(default_factory=dict)
    calls: int = 0


@dataclass
class Pending:
    """A call that was begun, or prepared."""

    prepared: Prepared
    where: str
    name: str
    request: Any = None
    active: bool = True
    runs: int = 0

    @property
    def is_persistent(self) -> bool:
        """Whether it can be started again."""
        return self.prepared.call.form == "prepared"


class Rank:
    """One rank, with the communicators of an epoch.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        All ranks. Making one is collective.
    environment : Environment
        The settings.
    """

    def __init__(self, world: MPI.Intracomm, environment: Environment) -> None:
        for variable, name in VARIABLES.items():
            os.environ.pop(variable, None)
            if value := getattr(environment, name):
                os.environ[variable] = value
        _kernels.set_target(environment.kernel or BEST_KERNEL)
        self._environment = environment
        self._rank = world.rank
        self._comms: dict[int, MPI.Intracomm | None] = {0: world.Dup()}
        self._names = {0: ""}
        self._wrapped: dict[tuple[int, str, int | None], Any] = {}
        self._pending: dict[int, Pending] = {}
        self._splits: list[int] = []
        self._outcome = Outcome()

    def run(self, steps: Iterable[Step]) -> Outcome:
        """Run a program. Collective."""
        self._outcome = Outcome()
        for number, step in enumerate((*steps, End())):
            self._where = f"step {number}, {short(step)}"
            try:
                self._run(step, number)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                self._complain(f"{type(error).__name__}: {error} ({place.name}:{place.lineno})")
        return self._outcome

    def close(self) -> None:
        """Free all communicators. Collective."""
        for number in sorted(self._comms, reverse=True):
            self._free(number)

    def _complain(self, what: str) -> None:
        self._outcome.errors.append(f"{self._where}: {what}")

    def _run(self, step: Step, number: int) -> None:
        if isinstance(step, Call):
            self._call(step, number)
        elif isinstance(step, Wait):
            self._wait(step)
        elif isinstance(step, Start):
            self._start(step.number)
        elif isinstance(step, Split):
            self._split(step)
        elif isinstance(step, Free):
            if step.comm in self._splits:
                self._splits.remove(step.comm)
                self._free(step.comm)
        elif isinstance(step, Forget):
            self._forget(step.number)
        elif isinstance(step, End):
            self._end()
        else:
            comm = self._comm(step.comm)
            if comm is None:
                return
            self._outcome.calls += 1
            if isinstance(step, Many):
                wrong = "; ".join(run_many(step, comm))
            elif isinstance(step, Refused):
                wrong = refused(step.what, comm)
            else:
                wrong = _ring(step, comm)
            if wrong:
                self._complain(wrong)

    # -- communicators -----------------------------------------------------------------------------

    def _comm(self, number: int) -> MPI.Intracomm | None:
        """Return a communicator; None where this rank has no part in it."""
        number = self._known(number)
        if number not in self._comms:
            world = self._comms[0]
            assert world is not None
            color = self._color(number, world.rank)
            self._comms[number] = _part(world, color)
            self._names[number] = f"/part {number}: {color}"
        return self._comms[number]

    def _color(self, number: int, rank: int) -> int:
        colors = self._environment.parts[number - 1]
        return colors[rank % len(colors)]

    def _known(self, number: int) -> int:
        lasting = 0 < number <= len(self._environment.parts)
        return number if lasting or number in self._comms else 0

    def _split(self, step: Split) -> None:
        if step.number in self._comms:
            return
        parent = self._comm(step.comm)
        self._comms[step.number] = None
        self._splits.append(step.number)
        if parent is not None:
            color = step.colors[parent.rank % len(step.colors)]
            key = (parent.rank + step.turn) % parent.size
            self._comms[step.number] = _part(parent, color, key)
            name = self._names[self._known(step.comm)]
            self._names[step.number] = f"{name}/{step.number}: {color}"

    def _free(self, number: int) -> None:
        """Free a communicator; calls of its own object that were begun may be under way."""
        comm = self._comms.get(number)
        if comm is not None:
            own = self._with_settings(number, "auto", None)
            for key in sorted(self._pending):
                call = self._pending[key].prepared.call
                if self._known(call.comm) != number:
                    continue
                plain = (call.algorithm, call.segment_bytes) == ("auto", None)
                if call.form != "begun" or call.door == "function" or not plain:
                    self._forget(key)
            own.Free()
        self._comms.pop(number, None)
        for settings in [settings for settings in self._wrapped if settings[0] == number]:
            del self._wrapped[settings]

    def _with_settings(self, number: int, algorithm: str, segment_bytes: int | None) -> Any:
        number = self._known(number)
        key = (number, algorithm, segment_bytes)
        found = self._wrapped.get(key)
        if found is None:
            options = {"algorithm": algorithm, "segment_bytes": segment_bytes}
            found = self._wrapped[key] = hpccoll.Comm(self._comms[number], **options)
        return found

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, call: Call, number: int) -> None:
        comm = self._comm(call.comm)
        if comm is None:
            return
        wrapped = self._with_settings(call.comm, call.algorithm, call.segment_bytes)
        prepared = Prepared(call, comm, wrapped)
        name = f"{number}{self._names[self._known(call.comm)]}"
        pending = Pending(prepared, self._where, name)
        if call.form == "prepared":
            if call.number not in self._pending:
                pending.request, pending.active = prepared.prepare(), False
                self._pending[call.number] = pending
        elif call.form == "begun" and call.number not in self._pending:
            prepared.fill(0)
            pending.request = prepared.begin()
            self._outcome.calls += 1
            self._pending[call.number] = pending
        else:
            for run in range(call.times):
                prepared.fill(run)
                self._outcome.calls += 1
                self._check(prepared, prepared.blocking(), self._where, f"{name} run {run}")

    def _check(self, prepared: Prepared, result: Any, where: str, name: str) -> None:
        """Check what came of a call, whose name is equal on all ranks that made it."""
        wrong = prepared.complaint(result)
        if wrong:
            self._outcome.errors.append(f"{where}: {wrong}")
        digest = prepared.digest(result)
        if digest:
            self._outcome.digests[name] = digest

    def _start(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None or pending.active or not pending.is_persistent:
            return
        pending.prepared.fill(pending.runs)
        pending.request.Start()
        self._outcome.calls += 1
        pending.runs += 1
        pending.active = True

    def _wait(self, step: Wait) -> None:
        turn = step.turn * self._rank % len(step.numbers) if step.numbers else 0
        numbers = [
            number
            for number in (*step.numbers[turn:], *step.numbers[:turn])
            if number in self._pending and self._pending[number].active
        ]
        if step.how == "all":
            of_mpi = [n for n in numbers if isinstance(self._pending[n].request, MPI.Request)]
            requests = [self._pending[number].request for number in of_mpi]
            MPI.Request.Waitall(requests)
            # Waitall has set our objects to null: a second wait tells what the call raised.
        for number in numbers:
            if step.how == "look":
                self._look(number)
            else:
                self._complete(number, step.how == "test")

    def _look(self, number: int) -> None:
        """Test once; a request that MPI takes back then is complete."""
        pending = self._pending[number]
        if pending.prepared.call.door == "function":
            pending.request.test()
        elif pending.request.Test():
            self._completed(pending, None)

    def _complete(self, number: int, by_test: bool = False) -> None:
        pending = self._pending[number]
        function = pending.prepared.call.door == "function"
        if by_test:
            test = pending.request.test if function else pending.request.Test
            while not test():
                time.sleep(0)
        result = None
        if function:
            result = pending.request.wait()
        elif not (by_test and pending.is_persistent):
            pending.request.Wait()
        self._completed(pending, result)

    def _completed(self, pending: Pending, result: Any) -> None:
        pending.active = False
        if not pending.is_persistent:
            self._pending.pop(pending.prepared.call.number, None)
        name = f"{pending.name} run {pending.runs}"
        self._check(pending.prepared, result, pending.where, name)

    def _forget(self, number: int) -> None:
        """Complete a call, and free what was prepared."""
        pending = self._pending.get(number)
        if pending is None:
            return
        if pending.active:
            self._complete(number)
        if pending.is_persistent:
            del self._pending[number]
            pending.request.Free()

    def _end(self) -> None:
        for number in sorted(self._pending):
            self._forget(number)
        while self._splits:
            self._free(self._splits.pop())


def _part(comm: MPI.Intracomm, color: int, key: int = 0) -> MPI.Intracomm | None:
    part = comm.Split(MPI.UNDEFINED if color < 0 else color, key)
    return None if part == MPI.COMM_NULL else part


def _ring(step: Ring, comm: MPI.Intracomm) -> str:
    """Send round the ranks, by the MPI library alone."""
    rank, size = comm.rank, comm.size
    given, got = np.full(step.count, rank), np.full(step.count, -1)
    comm.Sendrecv(given, (rank + 1) % size, 5, got, (rank - 1) % size, 5)
    if (got != (rank - 1) % size).any():
        return f"a message of rank {(rank - 1) % size} is {got[:5]}"
    total = comm.allreduce(rank + 1)
    return "" if total == size * (size + 1) // 2 else f"MPI's own sum is {total}"

"""Faults between ranks that are threads: each ends in the right result or in the right error.

`FaultyTransport` makes one fault, and `Trial` tells how a call with it ended. As a program this
tries many, drawn at random, and prints how they ended:

    PYTHONPATH=tests python tests/faulty.py --minutes 5
"""

import argparse
import contextlib
import ctypes
import enum
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from ends import Ends
from local_ranks import Bound, Rank

from hpccoll import transport as transports
from hpccoll.algorithms import REGISTRY
from hpccoll.errors import CollectiveTimeoutError, MismatchError
from hpccoll.local_transport import LocalRanks, LocalRequest, LocalTransport, Route
from hpccoll.pattern import Pattern
from hpccoll.topology import Topology
from hpccoll.transport import failure_of

PATIENCE = {"PATIENCE": 0.3, "LOST_PATIENCE": 0.5, "SHORT_PATIENCE": 0.2}
"""Seconds, in place of those of `hpccoll.transport`."""

SHORT_LIMIT = 0.2
"""Seconds that a call may wait where something never comes."""

LONG_LIMIT = 10.0
"""Likewise where all comes: a call that waits so long has failed the test."""

HANGING = 20.0
"""Seconds after which a wait without a limit counts as one without an end."""

NAP = 4_000_000
"""Longest nanoseconds between two looks, as many ranks share few cores."""


class Kind(enum.Enum):
    """What goes wrong."""

    DELAYED = "message late, within the time limit"
    LATE = "message late, beyond the time limit"
    TRUNCATED = "message truncated"
    LONGER = "message longer than announced"
    DUPLICATED = "message duplicated"
    LOST = "message lost"
    RANK_LOST = "rank lost in the call"
    ABSENT = "rank never comes"


LOSSES = (Kind.LATE, Kind.LOST, Kind.RANK_LOST, Kind.ABSENT)
"""After these nobody can go on."""


@dataclass(frozen=True)
class Fault:
    """One fault, at a message that a rank starts.

    Attributes
    ----------
    kind : Kind
        What goes wrong.
    rank : int
        Whose message it is, or who is lost.
    nth : int
        Of the messages that it starts in the call, from 0.
    side : str
        "send" or "receive": which messages are counted.
    share : float
        Part of the bytes that is left of a truncated message.
    seconds : float
        How long a message is late.
    """

    kind: Kind
    rank: int
    nth: int = 0
    side: str = "send"
    share: float = 0.5
    seconds: float = 0.03


class RankLostError(Exception):
    """Ends a rank where it stands; nobody else is told."""


class Copy(LocalRequest):
    """A message with so many of the bytes of another one, and rubbish behind; nobody waits for it.

    It has memory of its own.
    """

    def __init__(self, of: LocalRequest, nbytes: int) -> None:
        self.memory = np.full(nbytes + 1, 0x3C, np.uint8)
        super().__init__(of.world, self.memory.ctypes.data, nbytes, of.route, of.tag)
        ctypes.memmove(self.address, of.address, min(nbytes, of.nbytes))
        self.active = True


class FaultyRequest(LocalRequest):
    """A message that the fault of its transport may strike when it is started."""

    def __init__(
        self, transport: "FaultyTransport", address: int, nbytes: int, route: Route, tag: int | None
    ) -> None:
        super().__init__(transport.world, address, nbytes, route, tag)
        self.transport = transport
        self.announced = address, nbytes
        self.altered: Copy | None = None

    def Start(self) -> None:  # noqa: N802 - mpi4py's name
        fault = self.transport.strike(self)
        if self.is_send:
            self.send(fault)
        else:
            if fault is not None:
                time.sleep(fault.seconds)
            super().Start()

    def send(self, fault: Fault | None) -> None:
        """Let the message leave, once or twice or not at all, as it is or altered."""
        assert not self.active, "started twice"
        kind = None if fault is None else fault.kind
        transport = self.transport
        self.started = time.monotonic()
        self.address, self.nbytes = self.announced
        if kind is Kind.LOST:
            self.active = not transport.buffered
            return
        if fault is not None and kind in (Kind.DELAYED, Kind.LATE):
            transport.hold(self.route, fault.seconds)
        if fault is not None and kind in (Kind.TRUNCATED, Kind.LONGER):
            nbytes = self.nbytes + 8
            if kind is Kind.TRUNCATED:
                nbytes = min(int(self.nbytes * fault.share), self.nbytes - 1)
            self.altered = Copy(self, nbytes)
            self.address, self.nbytes = self.altered.address, nbytes
        self.came = self.nbytes
        self.active = not transport.buffered
        leaving: list[LocalRequest] = [Copy(self, self.nbytes) if transport.buffered else self]
        if kind is Kind.DUPLICATED:
            leaving.append(Copy(self, self.nbytes))
        for message in leaving:
            transport.depart(message)


class FaultyTransport(LocalTransport):
    """Makes at most one fault.

    Parameters
    ----------
    world : LocalRanks
        The ranks.
    rank : int
        This one.
    buffered : bool
        Whether a send is complete at once, as with an MPI that buffers; else when it is received.

    Attributes
    ----------
    started : list of (str, int)
        Side and bytes of each message of the call that was started, words apart.
    struck : bool
        Whether the fault has come.
    on_strike : callable
        Called when it comes.
    told_at, listens_until : float
        When it told the last of the others that it has given up, and how long it waits for them.
    """

    def __init__(self, world: LocalRanks, rank: int, *, buffered: bool = False) -> None:
        super().__init__(world, rank)
        self.buffered = buffered
        self.nap = NAP
        self.fault: Fault | None = None
        self.started: list[tuple[str, int]] = []
        self.struck = False
        self.on_strike: Callable[[], None] = lambda: None
        self.lost = False
        self.told_at = self.listens_until = 0.0
        self.held: dict[Route, list[LocalRequest]] = {}
        self.timers: list[threading.Timer] = []

    def send_request(self, address: int, nbytes: int, peer: int, tag: int) -> FaultyRequest:
        return FaultyRequest(self, address, nbytes, (self.rank, peer), tag)

    def receive_request(self, address: int, nbytes: int, peer: int) -> FaultyRequest:
        return FaultyRequest(self, address, nbytes, (peer, self.rank), None)

    def expect(self, fault: Fault | None) -> None:
        """Count messages from here on, and strike the one that the fault names, if it is ours."""
        self.fault = fault if fault is not None and fault.rank == self.rank else None
        self.started = []

    def strike(self, request: FaultyRequest) -> Fault | None:
        """Count a message that starts; return the fault if it is the one."""
        if request.is_send and failure_of(request.tag) is not None:
            return None
        side = "send" if request.is_send else "receive"
        nth = sum(before == side for before, _ in self.started)
        self.started.append((side, request.announced[1]))
        fault = self.fault
        if fault is None or (fault.side, fault.nth) != (side, nth):
            return None
        self.fault = None
        self.struck = True
        self.on_strike()
        if fault.kind is Kind.RANK_LOST:
            self.lost = True
            self.withdraw()
            raise RankLostError
        return fault

    def withdraw(self) -> None:
        """Take back what this rank has started; messages that were buffered arrive."""
        with self.world.changed:
            ours = [queue for (_, to), queue in self.world.receives.items() if to == self.rank]
            if not self.buffered:
                ours += [queue for (by, _), queue in self.world.sends.items() if by == self.rank]
            for queue in ours:
                queue.clear()

    def give_up(
        self,
        active: list[LocalRequest],
        told_by: Collection[int],
        failure: transports.Failure,
        patience: float,
    ) -> tuple[int, ...]:
        if self.lost:
            raise RankLostError
        self.listens_until = time.monotonic() + patience
        return super().give_up(active, told_by, failure, patience)

    def depart(self, message: LocalRequest) -> None:
        """Send a message, behind those that are held back."""
        with self.world.changed:
            held = self.held.get(message.route)
            if held is None:
                self.world.start(message)
            else:
                held.append(message)
        if failure_of(message.tag) is not None:
            self.told_at = time.monotonic()

    def hold(self, route: Route, seconds: float) -> None:
        """Hold back what goes this way for some time. The order of messages stays."""
        self.held[route] = []
        timer = threading.Timer(seconds, self.release, [route])
        timer.daemon = True
        self.timers.append(timer)
        timer.start()

    def release(self, route: Route) -> None:
        with self.world.changed:
            for message in self.held.pop(route):
                self.world.start(message)


# One call with a fault ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The call that the fault comes to."""

    collective: str
    algorithm: str
    size: int
    count: int
    segment_bytes: int | None = None
    data: str = "float32 sum"
    root: int = 0
    in_place: bool = False
    buffered: bool = False

    @property
    def topology(self) -> Topology:
        """Return nodes of two ranks or three, and one that is alone where there are others."""
        each = 3 if self.size > 3 else 2 if self.size > 2 else 1
        return Topology.of_labels(rank // each for rank in range(self.size))

    @property
    def all_need_all(self) -> bool:
        """Whether no rank can be done before all others have begun."""
        everywhere = ("allreduce", "allgather", "barrier", "reduce_scatter")
        return self.collective in everywhere and (
            self.count >= self.size or self.collective == "barrier"
        )


class Ending(enum.Enum):
    """How a call ended on a rank."""

    RIGHT = "right result"
    MISMATCH = "MismatchError"
    TIMEOUT = "CollectiveTimeoutError"
    WRONG = "wrong"
    HUNG = "hung"
    GONE = "lost"


@dataclass
class Outcome:
    """How a call ended on a rank, and what is to be said of it."""

    ending: Ending
    text: str = ""
    ranks: tuple[int, ...] = ()


class Caller:
    """One rank, with the plan and the arrays of a call that it makes again and again."""

    def __init__(self, world: LocalRanks, number: int, call: Call) -> None:
        self.call = call
        self.rank = Rank(world, number)
        self.transport = FaultyTransport(world, number, buffered=call.buffered)
        self.rank.transport = self.transport  # type: ignore[assignment]
        pattern = Pattern(call.collective, call.root)
        self.ends = Ends(pattern, call.data, number, call.size, call.count, in_place=call.in_place)
        self.bound = self.bind()
        self.left: list[bytes] = []

    def bind(self) -> Bound:
        ends, call = self.ends, self.call
        arrays = (end if end is None else end.array for end in (ends.x, ends.out))
        return self.rank.collective(
            ends.pattern, call.algorithm, ends.op, call.count, *arrays,
            call.segment_bytes, call.topology,
        )  # fmt: skip

    def limit(self, seconds: float) -> None:
        """Set how long this rank may wait; 0: for any time. Also while it waits."""
        self.transport.clock.limit = int(seconds * 1e9)

    def run(self, seed: int, fault: Fault | None = None) -> Outcome:
        """Make the call, with a fault or without; say how it ended."""
        if not self.bound.plan.usable:  # as a channel does
            self.bound = self.bind()
        self.left = []
        self.ends.fill(seed)
        self.transport.expect(fault)
        return self.attempt(self.bound, lambda: self.ends.check(seed))

    def attempt(self, bound: Bound, check: Callable[[], None]) -> Outcome:
        clock = self.transport.clock
        try:
            bound.run()
        except RankLostError:
            return Outcome(Ending.GONE)
        except MismatchError as error:
            return self.raised(Ending.MISMATCH, error)
        except CollectiveTimeoutError as error:
            if not clock.broken:
                return Outcome(Ending.WRONG, f"{error!r}, and the communicator is not broken")
            return self.raised(Ending.TIMEOUT, error, error.ranks)
        except TimeoutError as error:
            return Outcome(Ending.HUNG, repr(error))
        except Exception as error:
            return Outcome(Ending.WRONG, repr(error))
        try:
            check()
        except AssertionError as error:
            return Outcome(Ending.WRONG, f"returned another result: {error}"[:300])
        return Outcome(Ending.RIGHT)

    def meet(self) -> Outcome:
        """Make a barrier, in which every rank waits for all; say how it ended."""
        nothing = np.empty(0, np.uint8)
        barrier = Pattern("barrier")
        bound = self.rank.collective(barrier, "dissemination", "", 0, None, nothing)
        return self.attempt(bound, lambda: None)

    def raised(self, ending: Ending, error: Exception, ranks: Sequence[int] = ()) -> Outcome:
        self.left = self.bytes()
        return Outcome(ending, str(error), tuple(ranks))

    def bytes(self) -> list[bytes]:
        """Return what stands in the arrays."""
        ends = (self.ends.x, self.ends.out)
        return [end.array.tobytes() for end in ends if end is not None]

    def written_later(self) -> str:
        """Say whether a call that raised has written to the arrays afterwards, or beside them."""
        try:
            for end in (self.ends.x, self.ends.out):
                if end is not None:
                    end.check()
        except AssertionError as error:
            return str(error)
        return "written after it had raised" if self.left and self.left != self.bytes() else ""


@dataclass
class Report:
    """How a fault ended.

    Attributes
    ----------
    call, fault
        What was done; no fault where the call has no message that it could strike.
    outcomes : list of Outcome
        Of each rank, in the call with the fault, or in the next one if it was told there.
    complaints : list of str
        What should not have been.
    """

    call: Call
    fault: Fault | None
    outcomes: list[Outcome]
    complaints: list[str]

    @property
    def ending(self) -> Ending:
        """The worst of all ranks."""
        endings = {outcome.ending for outcome in self.outcomes}
        if Ending.HUNG in endings:
            return Ending.HUNG
        if self.complaints or Ending.WRONG in endings:
            return Ending.WRONG
        for ending in (Ending.TIMEOUT, Ending.MISMATCH):
            if ending in endings:
                return ending
        return Ending.RIGHT

    def __str__(self) -> str:
        said = [f"rank {k}: {o.ending.value} {o.text}" for k, o in enumerate(self.outcomes)]
        return "\n  ".join([f"{self.call}, {self.fault}:", *self.complaints, *said])


class Trial:
    """The ranks of one call, and what is noticed of them.

    Attributes
    ----------
    fault : Fault or None
        What is to go wrong; None where no message is there that it could strike.
    complaints : list of str
        What should not have been.
    """

    def __init__(self, call: Call, kind: Kind, rng: random.Random) -> None:
        self.call = call
        self.kind = kind
        self.fault: Fault | None = None
        self.goes_on = rng.random() < 0.5
        world = LocalRanks(call.size, HANGING)
        self.callers = [Caller(world, number, call) for number in range(call.size)]
        self.complaints: list[str] = []

    def all(self, job: Callable[[Caller], Outcome], leave_out: Sequence[int] = ()) -> list[Outcome]:
        """Let ranks do something at the same time; those left out are gone."""
        outcomes = [Outcome(Ending.GONE) for _ in self.callers]
        start = threading.Barrier(self.call.size - len(leave_out))

        def work(number: int) -> None:
            try:
                start.wait(HANGING)
                outcomes[number] = job(self.callers[number])
            except BaseException as error:
                outcomes[number] = Outcome(Ending.WRONG, repr(error))

        threads = {}
        for number in range(self.call.size):
            if number not in leave_out:
                outcomes[number] = Outcome(Ending.HUNG)
                threads[number] = threading.Thread(target=work, args=(number,), daemon=True)
                threads[number].start()
        deadline = time.monotonic() + 2 * HANGING
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return outcomes

    def must_be_right(self, when: str, seed: int) -> None:
        self.limit(LONG_LIMIT)
        for number, outcome in enumerate(self.all(lambda caller: caller.run(seed))):
            if outcome.ending is not Ending.RIGHT:
                self.complaints.append(
                    f"{when}, rank {number}: {outcome.ending.value} {outcome.text}"
                )

    def check_memory(self) -> None:
        for number, caller in enumerate(self.callers):
            if written := caller.written_later():
                self.complaints.append(f"rank {number}: {written}")

    def run(self) -> Report:
        """Make the call with the fault, and calls after it; tell how that ended."""
        fault = self.fault
        if fault is None or self.complaints:
            return Report(self.call, None, [], self.complaints)
        if fault.kind is Kind.DELAYED:
            outcomes = self.try_delay(fault)
        elif fault.kind is Kind.DUPLICATED:
            outcomes = self.try_duplicate(fault)
        elif fault.kind in LOSSES:
            outcomes = self.try_loss(fault)
        else:
            outcomes = self.try_other_size(fault)
        if not self.struck(fault):
            self.complaints.append("the fault did not strike")
        return Report(self.call, fault, outcomes, self.complaints)

    def struck(self, fault: Fault) -> bool:
        return fault.kind is Kind.ABSENT or self.callers[fault.rank].transport.struck

    def try_delay(self, fault: Fault) -> list[Outcome]:
        self.limit(LONG_LIMIT)
        outcomes = self.all(lambda caller: caller.run(1, fault))
        if any(outcome.ending is not Ending.RIGHT for outcome in outcomes):
            self.complaints.append("a delay within the time limit was noticed")
        self.must_be_right("in the next call", 2)
        return outcomes

    def try_duplicate(self, fault: Fault) -> list[Outcome]:
        self.limit(LONG_LIMIT)
        outcomes = self.all(lambda caller: caller.run(1, fault))
        if any(outcome.ending is Ending.TIMEOUT for outcome in outcomes):
            self.complaints.append("a rank waited for what had come twice")
        self.check_memory()
        return outcomes

    def try_other_size(self, fault: Fault) -> list[Outcome]:
        """Who only sends learns of it where it has to wait. After that, calls are right again."""

        def until_told(caller: Caller) -> Outcome:
            outcome = caller.run(1, fault)
            if outcome.ending is Ending.RIGHT and self.goes_on:
                # What it sends meanwhile is taken in, for nothing.
                outcome = caller.run(2)
            return caller.meet() if outcome.ending is Ending.RIGHT else outcome

        self.limit(LONG_LIMIT)
        outcomes = self.all(until_told)
        endings = [outcome.ending for outcome in outcomes]
        if set(endings) != {Ending.MISMATCH}:
            self.complaints.append("not all ranks were told")
        self.check_memory()
        if self.complaints:
            return outcomes
        clocks = [caller.transport.clock for caller in self.callers]
        number = max(clock.number for clock in clocks)
        for clock in clocks:  # as channels agree after a failure
            clock.number = number
        self.must_be_right("in the first call after", 3)
        self.must_be_right("in the second call after", 4)
        return outcomes

    def try_loss(self, fault: Fault) -> list[Outcome]:
        absent = [fault.rank] if fault.kind is Kind.ABSENT else []
        gone = [fault.rank] if fault.kind in (Kind.ABSENT, Kind.RANK_LOST) else []
        # Until it strikes, a rank that waits does so for a message that comes, on a busy machine.
        self.callers[fault.rank].transport.on_strike = lambda: self.limit(SHORT_LIMIT)
        self.limit(SHORT_LIMIT if absent else 0)
        outcomes = self.all(lambda caller: caller.run(1, fault), absent)
        raised = {
            number
            for number, outcome in enumerate(outcomes)
            if outcome.ending in (Ending.TIMEOUT, Ending.MISMATCH)
        }
        if not self.struck(fault):
            return outcomes
        there = set(range(self.call.size)).difference(gone)
        for number in raised:
            self.check_loss(number, outcomes[number], fault, raised, gone)
        if not raised and fault.kind is Kind.LOST:
            self.complaints.append("nobody missed the message")
        if self.is_needed(fault) and raised != there:
            self.complaints.append(f"ranks {sorted(there - raised)} did not miss rank {fault.rank}")
        for timer in self.callers[fault.rank].transport.timers:
            timer.join()
        self.check_memory()
        if raised:
            # Nobody can go on. Who does not know yet is told in its next call, unless it needs
            # nobody there; without a time limit, too.
            self.limit(0)
            later = self.all(lambda caller: caller.run(2), [*raised, *gone])
            for number in there - raised:
                wanted = {Ending.RIGHT, Ending.TIMEOUT}
                if fault.kind is Kind.LOST:
                    wanted.add(Ending.MISMATCH)
                if later[number].ending not in wanted:
                    told = f"{later[number].ending.value} {later[number].text}"
                    self.complaints.append(f"in the next call, rank {number}: {told}")
            self.check_memory()
        return outcomes

    def limit(self, seconds: float) -> None:
        """Set how long all ranks may wait."""
        for caller in self.callers:
            caller.limit(seconds)

    def check_loss(
        self, number: int, outcome: Outcome, fault: Fault, raised: set[int], gone: list[int]
    ) -> None:
        """Check the error of a rank."""
        if outcome.ending is Ending.MISMATCH:
            # The order of messages, which their tags tell, shows that one is missing.
            if fault.kind is not Kind.LOST:
                self.complaints.append(f"rank {number}: {outcome.text}")
        elif fault.kind is not Kind.LATE:  # where words are late, too
            if not set(gone) <= set(outcome.ranks):
                self.complaints.append(f"rank {number} misses {outcome.ranks}, and not {gone}")
            here = self.callers[number].transport
            for other in raised & set(outcome.ranks):
                if self.callers[other].transport.told_at < here.listens_until:
                    self.complaints.append(f"rank {number} misses rank {other}, which told it")

    def is_needed(self, fault: Fault) -> bool:
        """Whether nobody can be done without a rank, which is lost before anyone heard from it."""
        if fault.kind is Kind.ABSENT or (fault.kind is Kind.RANK_LOST and fault.nth == 0):
            sent = [side for side, _ in self.callers[fault.rank].transport.started[:-1]]
            return self.call.all_need_all and "send" not in sent
        return False


POSITIONS = ("first", "middle", "last", "random")


def choose_fault(
    kind: Kind, position: str, callers: Sequence[Caller], rng: random.Random
) -> Fault | None:
    """Choose rank and message, of those that the call without a fault had."""
    size = len(callers)
    if kind is Kind.ABSENT:
        return Fault(kind, rng.randrange(size))
    side = "send"
    if kind in (Kind.DELAYED, Kind.RANK_LOST):
        side = rng.choice(("send", "receive"))
    struck = {}
    for number, caller in enumerate(callers):
        sizes = [nbytes for which, nbytes in caller.transport.started if which == side]
        # Nothing can be cut off a message without data.
        found = [k for k, nbytes in enumerate(sizes) if nbytes or kind is not Kind.TRUNCATED]
        if found:
            struck[number] = found
    if not struck:
        return None
    rank = rng.choice(list(struck))
    messages = struck[rank]
    nth = {
        "first": messages[0],
        "middle": messages[len(messages) // 2],
        "last": messages[-1],
        "random": rng.choice(messages),
    }[position]
    seconds = rng.choice((0.005, 0.02, 0.05))
    if kind is Kind.LATE:
        # While the others still listen, or when all is over.
        seconds = SHORT_LIMIT + rng.choice((0.1, PATIENCE["LOST_PATIENCE"] + 0.2))
    return Fault(kind, rank, nth, side, share=rng.choice((0.0, 0.5, 0.99)), seconds=seconds)


def prepare(call: Call, kind: Kind, position: str, seed: int) -> Trial:
    """Make a call without a fault, and choose the fault of the next one."""
    rng = random.Random(f"{call} {kind} {position} {seed}")
    trial = Trial(call, kind, rng)
    trial.must_be_right("before the fault", 0)
    trial.fault = choose_fault(kind, position, trial.callers, rng)
    return trial


# Many of them -------------------------------------------------------------------------------------

ALGORITHMS = [(collective, name) for collective, known in REGISTRY.items() for name in known]
DATA = ("float32 sum", "float16 mean", "int64 sum")


def draw_call(collective: str, name: str, size: int, segmented: bool, rng: random.Random) -> Call:
    """Return a call of an algorithm with a short vector, or with one in many segments."""
    return Call(
        collective,
        name,
        size,
        0 if collective == "barrier" else 2101 if segmented else 2 * size + 1,
        2048 if segmented else None,
        rng.choice(DATA),
        rng.randrange(size) if collective in ("reduce", "broadcast") else 0,
        in_place=rng.random() < 0.3,
        buffered=rng.random() < 0.5,
    )


@contextlib.contextmanager
def short_patience() -> Iterator[None]:
    """Let ranks wait less for those who are lost."""
    before = {name: getattr(transports, name) for name in PATIENCE}
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)  # there are many threads
    for name, seconds in PATIENCE.items():
        setattr(transports, name, seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
        for name, seconds in before.items():
            setattr(transports, name, seconds)


def try_many(todo: Sequence[tuple[Call, Kind, str, int]], at_once: int) -> Iterator[Report]:
    """Try faults, some at the same time: most of it is waiting.

    Time limits are short, so all that takes the interpreter long is done before.
    """
    with short_patience(), ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(Trial.run, [prepare(*each) for each in todo])


COLUMNS = (Ending.RIGHT, Ending.MISMATCH, Ending.TIMEOUT, Ending.WRONG, Ending.HUNG)


def table(counts: Counter[tuple[Kind, Ending]]) -> str:
    """Return how many faults of each kind ended how, as a table."""
    lines = ["| fault | injected | " + " | ".join(ending.value for ending in COLUMNS) + " |"]
    lines.append("|---|" + "---:|" * (len(COLUMNS) + 1))
    for kind in Kind:
        row = [counts[kind, ending] for ending in COLUMNS]
        lines.append(f"| {kind.value} | " + " | ".join(map(str, [sum(row), *row])) + " |")
    return "\n".join(lines)


def main() -> int:
    """Try faults until the time is over; print what should not have been, and a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--kinds", default="", help="names, with commas; all if there is none")
    arguments = parser.parse_args()
    kinds = [Kind[name.strip().upper()] for name in arguments.kinds.split(",") if name.strip()]
    rng = random.Random(arguments.seed)
    counts: Counter[tuple[Kind, Ending]] = Counter()
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        todo = []
        for _ in range(10 * arguments.at_once):
            collective, name = rng.choice(ALGORITHMS)
            call = draw_call(collective, name, rng.choice((2, 3, 4, 5)), rng.random() < 0.5, rng)
            fault = rng.choice(kinds or list(Kind)), rng.choice(POSITIONS), rng.randrange(1 << 30)
            todo.append((call, *fault))
        for (_, kind, _, _), report in zip(todo, try_many(todo, arguments.at_once), strict=True):
            if report.fault is not None or report.complaints:
                counts[kind, report.ending] += 1
            if report.complaints or report.ending in (Ending.WRONG, Ending.HUNG):
                print(report, flush=True)
    print(table(counts))
    return int(any(counts[kind, bad] for kind in Kind for bad in (Ending.WRONG, Ending.HUNG)))


if __name__ == "__main__":
    sys.exit(main())

"""One fault in a call, at each algorithm: it ends in the right result or in the right error.

Not held against hpccoll, as MPI rules it out: a message that comes twice, the second time in the
next call. Its place among the messages between two ranks is that of the first message there if a
call has one of them, or 64. So what comes after a duplicated message is tested in its call only.
"""

import random
import threading
import zlib

import pytest
from faulty import (
    ALGORITHMS,
    LOSSES,
    POSITIONS,
    Call,
    Ending,
    Fault,
    Kind,
    Trial,
    draw_call,
    short_patience,
    try_many,
)

from hpccoll.local_transport import LocalRanks, LocalTransport
from hpccoll.transport import Failure

SIZES = (2, 3, 5)
AT_ONCE = 20
"""Trials at the same time: they wait most of the time."""


def trials(kind, size):
    """List trials of each algorithm: short vectors and segmented ones, and positions in turn."""
    rng = random.Random(zlib.crc32(f"{kind.name} {size}".encode()))
    positions = rng.sample(POSITIONS, len(POSITIONS))
    for number, (collective, name) in enumerate(ALGORITHMS):
        for segmented in (False, True):
            call = draw_call(collective, name, size, segmented, rng)
            position = positions[(number + segmented) % len(positions)]
            yield call, kind, position, rng.randrange(1 << 30)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_every_fault_ends_in_the_right_result_or_the_right_error(kind, size):
    reports = list(try_many(list(trials(kind, size)), AT_ONCE))
    wrong = [
        str(report)
        for report in reports
        if report.complaints or report.ending in (Ending.WRONG, Ending.HUNG)
    ]
    assert not wrong, "\n".join(wrong)
    endings = {report.ending for report in reports if report.fault is not None}
    wanted = {
        Kind.DELAYED: {Ending.RIGHT},
        Kind.TRUNCATED: {Ending.MISMATCH},
        Kind.LONGER: {Ending.MISMATCH},
        Kind.DUPLICATED: {Ending.RIGHT, Ending.MISMATCH},
    }
    if kind in LOSSES:
        assert Ending.TIMEOUT in endings
    else:
        assert endings == wanted[kind]


def test_a_rank_that_was_told_does_not_wait_for_a_message_that_was_lost():
    # It has another one on its way, which shows the other rank that one is missing; so both give
    # the call up, and can go on, although the first send never ends.
    fault = Fault(Kind.LOST, 1)
    call = Call("allgather", "ring", 2, 3001, 1024, "int64 sum")
    trial = Trial(call, fault.kind, random.Random(0))
    with short_patience():
        outcomes = trial.all(lambda caller: caller.run(1, fault))
        assert [outcome.ending for outcome in outcomes] == [Ending.MISMATCH] * 2
        trial.must_be_right("after", 2)
    assert not trial.complaints


def test_a_word_is_heard_that_a_later_receive_has_taken():
    # Rank 0 is lost at its last message, which rank 1 waits for in vain. Rank 2 is done. In its
    # next call it waits for rank 0, without a time limit, and has a receive from rank 1 posted.
    fault = Fault(Kind.RANK_LOST, 0, 3)
    call = Call("allreduce", "circulant", 3, 7, None, "int64 sum", buffered=True)
    trial = Trial(call, fault.kind, random.Random(0))
    waiting = trial.callers[1]

    def job(caller):
        outcome = caller.run(1, fault)
        if caller.rank.rank == 2:
            waiting.limit(0.1)
        return outcome

    with short_patience():
        endings = [outcome.ending for outcome in trial.all(job)]
        assert endings == [Ending.GONE, Ending.TIMEOUT, Ending.RIGHT]
        outcome = trial.all(lambda caller: caller.run(2), leave_out=[0, 1])[2]
    assert outcome.ending is Ending.TIMEOUT
    assert outcome.text.startswith("allreduce: rank 1 has given up the call for good")


def test_who_gave_up_for_now_hears_that_another_rank_did_so_for_good():
    world = LocalRanks(2)
    transports = [LocalTransport(world, rank) for rank in range(2)]
    other = threading.Thread(target=transports[1].give_up, args=([], (), Failure.LOST, 5))
    other.start()
    assert transports[0].give_up([], (), Failure.DISAGREES, 5) == ()
    other.join()
    assert "was given up" in transports[0].clock.broken

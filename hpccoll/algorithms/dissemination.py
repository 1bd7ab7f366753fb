"""Dissemination: word that a rank has come reaches twice as many ranks with each round.

Idea
    Each rank has a token, which tells that it has come. In round k a rank sends to the one 2^k
    further on the tokens that it has and the other lacks. Who has all tokens knows that all ranks
    have come. In a barrier only the messages count: they are sent without the tokens.

Picture, 5 ranks
    What rank r sends, with ranks and tokens counted modulo 5::

        round   to    tokens
            0   r+1   r
            1   r+2   r-1 r
            2   r+4   r

Steps and bytes
    ceil(log2 p) steps, for any p, and no bytes. (As an all-gather of tokens: p-1 tokens from each
    rank.)

Cost
    With L = ceil(log2 p): L alpha

Restrictions
    None: nothing is reduced.

Scratch
    None.

Order and bits
    Nothing is worked out.

Source
    Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
    Programming 17 (1988), doi:10.1007/BF01379320.
"""

from hpccoll.chunks import around, cut
from hpccoll.schedule import Action, Schedule, ScheduleBuilder


def barrier(rank: int, size: int, count: int, counts: tuple[int, ...] | None = None) -> Schedule:
    """Return what `rank` does to have the tokens of all: chunk r of the vector is that of rank r.

    There is one token per rank, so `count` is `size`; where ranks stand for others too, `counts`
    tells how many tokens each brings.
    """
    token = cut(count, size, counts)
    steps = ScheduleBuilder(rank, size, count)
    distance = 1
    while distance < size:
        tokens = min(distance, size - distance)  # in the last round the other lacks fewer
        to, source = (rank + distance) % size, (rank - distance) % size
        mine = around(token, rank + 1 - tokens, rank + 1)
        theirs = around(token, source + 1 - tokens, source + 1)
        steps.exchange(to, mine, source, theirs, Action.COPY)
        distance *= 2
    return steps.finish()

/* What the ranks of a node see of each other: one slot per rank, in memory that all of them map.
 *
 * A rank writes to its own slot only. It tells how far it is by counters that never go back, and so
 * need no resetting; others wait for them. A call begins with its number and a description in one
 * cache line, the header, together with the vector itself where that is short. There are two headers
 * and two buffers of each kind, used in turn: whoever writes one has seen that all others have begun
 * the call, or the segment, after the one that was in it. */
#ifndef HPCCOLL_NODE_SLOTS_H
#define HPCCOLL_NODE_SLOTS_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "tree.h"
#include "waiting.h"

enum {
    /* Bits of a kind above these are those of a hierarchical call; 0 of any other. */
    LEVELS_SHIFT = 20,
    LINE = 64,
    INLINE_BYTES = 40,
    /* Counters are apart by two lines, since processors fetch lines in pairs. */
    APART = 128,
};

#define NOWHERE UINT64_MAX

/* For `wait_for_all`: a counter of a slot. */
#define MEMBER(name) offsetof(struct slot, name)

/* Where a rank's vector lies: addresses in its own process, and offsets in the arena that its peers
 * map, or NOWHERE. */
struct place {
    uint64_t input, output;
    uint64_t shared_input, shared_output;
    uint64_t shared_partial; /* of a hierarchical call: where partial values go */
};

struct header {
    alignas(LINE) counter call; /* the call that the owner has begun; the rest belongs to it */
    uint64_t nbytes;
    uint32_t kind;              /* operation and type: equal on all ranks, as nbytes is */
    uint16_t form;              /* which collective, and its root: equal, too */
    uint16_t copied;            /* whether the first segment is in the owner's slot */
    union {
        char vector[INLINE_BYTES];
        struct place place;
    };
};

_Static_assert(sizeof(struct header) == LINE, "a header is one cache line");

struct slot {
    struct header headers[2];
    alignas(APART) counter copied;   /* segments that the owner has copied in, of all calls */
    alignas(APART) counter reduced;  /* pieces that it has finished, or taken from others */
    alignas(APART) counter published; /* pieces of a slice that it has all-reduced between nodes */
    alignas(APART) counter finished; /* calls in which it has read all that it needs */
    alignas(APART) counter touched;  /* rounds of `crossing_time` */
    alignas(APART) counter by_messages; /* flat calls that it has begun */
    alignas(APART) counter given_up; /* STAYS, LEFT, DISAGREES or LOST */
    alignas(APART) char buffers[];   /* in, in, out, out: buffer_bytes each */
};

/* Whether a rank has left a call before its end: not; for good, so that nothing more can be done here;
 * as all ranks of the communicator do, since they disagree on what to do; or for good, since others did
 * not come in time. */
enum { STAYS = 0, LEFT = 1, DISAGREES = 2, LOST = 3 };

struct node {
    int rank, size;
    struct slot **slots;     /* by rank, as this process maps them */
    char **arenas;           /* by rank; NULL where there is none */
    size_t arena_bytes;
    const int *processes;    /* ids, for reading peers' memory; NULL where that is not allowed */
    struct waiting waiting;

    size_t buffer_bytes;     /* of one buffer */
    size_t segment_bytes;    /* what goes through it at once */
    size_t gather_bytes;     /* up to here every rank reads all vectors and reduces them itself */
    size_t slot_bytes;       /* up to here private vectors go through the slots */
    size_t shared_bytes;     /* from here shared vectors are reduced where they lie */

    uint64_t calls;          /* begun, among them those that this rank did not come to */
    int beginning;           /* while it is not known whether all ranks make the same call */
    uint64_t segments;       /* copied in */
    uint64_t pieces;         /* finished */
    uint64_t published;      /* pieces of hierarchical calls */
    int mixed;               /* ranks differ, and some of them make a hierarchical call */
    int culprit;             /* the rank that differs, or has given up */
    int design;              /* of the last call */

    const char **inputs;     /* room for one pointer per rank */
    char **outputs;
    char *memory;            /* MEMORY_BYTES */
    char *staging;           /* STAGING_BYTES, for what is read from peers */
};

#define DESIGNS(X) X(none) X(in_line) X(gathered) X(slotted) X(read_from_peers) X(shared)

#define DESIGN_NUMBER(name) DESIGN_##name,
enum { DESIGNS(DESIGN_NUMBER) DESIGN_COUNT };

#define DESIGN_NAME(name) #name,
static const char *const design_names[DESIGN_COUNT] = {DESIGNS(DESIGN_NAME)};

enum outcome {
    DONE = 0,
    DIFFERENT = -1,
    GIVEN_UP = -2,
    UNREADABLE = -3,
    INTERRUPTED = -4,
    ELSEWHERE = -5,
};

#define STAGING_BYTES ((size_t)512 << 10)
#define MEMORY_BYTES ((size_t)MOST_LEVELS * BLOCK_BYTES)
#define SLOT_HEAD_BYTES sizeof(struct slot)

static struct slot *own_slot(const struct node *node)
{
    return node->slots[node->rank];
}

static void announce(counter *flag, uint64_t value)
{
    atomic_store_explicit(flag, value, memory_order_release);
}

static uint64_t current(const counter *flag)
{
    return atomic_load_explicit(flag, memory_order_acquire);
}

/* A slot's buffers for copying in, and for finished pieces; `turn` counts segments. */
static char *in_buffer(const struct node *node, int rank, uint64_t turn)
{
    return node->slots[rank]->buffers + (turn % 2) * node->buffer_bytes;
}

static char *out_buffer(const struct node *node, int rank, uint64_t turn)
{
    return node->slots[rank]->buffers + (2 + turn % 2) * node->buffer_bytes;
}

/* Wait until a counter of one peer has reached a value. Who has left the call is noted by `attend`. */
static int wait_for(struct node *node, int peer, const counter *flag, uint64_t value)
{
    const int outcome = wait_until(flag, value, &node->waiting);
    if (outcome == TIME_IS_UP)
        node->culprit = peer;
    return outcome;
}

/* Wait until the counter at an offset in the slot of every other rank has reached a value. */
static int wait_for_all(struct node *node, size_t offset, uint64_t value)
{
    for (int k = 1; k < node->size; k++) {
        /* Neighbours first, so that not all look at the same rank. */
        const int peer = (node->rank + k) % node->size;
        const counter *flag = (const counter *)((const char *)node->slots[peer] + offset);
        const int outcome = wait_for(node, peer, flag, value);
        if (outcome)
            return outcome;
    }
    return DONE;
}

static int wait_on(void *context, int64_t waited)
{
    (void)context;
    (void)waited;
    return 0;
}

/* Nanoseconds until what one rank tells is seen by the others: all tell a number and wait for all, again
 * and again. The best of some rounds, since others may be interrupted. Signals wait meanwhile. */
static int64_t crossing_time(struct node *node)
{
    enum { BATCHES = 5, ROUNDS = 40 };
    int (*const attend)(void *, int64_t) = node->waiting.attend;
    int64_t best = INT64_MAX;
    uint64_t round = current(&own_slot(node)->touched);
    node->waiting.attend = wait_on;
    for (int batch = 0; batch < BATCHES; batch++) {
        const int64_t start = nanoseconds();
        for (int k = 0; k < ROUNDS; k++) {
            announce(&own_slot(node)->touched, ++round);
            wait_for_all(node, MEMBER(touched), round);
        }
        const int64_t taken = (nanoseconds() - start) / ROUNDS;
        best = taken < best ? taken : best;
    }
    node->waiting.attend = attend;
    return best;
}

/* Whether another rank has left the call for good. */
static int somebody_left(struct node *node)
{
    for (int k = 0; k < node->size; k++) {
        const uint64_t given_up = current(&node->slots[k]->given_up);
        if (given_up == LEFT || given_up == LOST) {
            node->culprit = k;
            return GIVEN_UP;
        }
    }
    return DONE;
}

/* Nanoseconds for which a rank that leaves waits for others to notice. */
#define FAREWELL ((int64_t)500000000)

/* Give those who wait for this rank time to say that they have given up, too: who does not, is not in
 * the call. */
static void hear_out(const struct node *node)
{
    const int64_t until = nanoseconds() + FAREWELL;
    for (int k = 0; k < node->size; k++)
        while (current(&node->slots[k]->given_up) == STAYS && nanoseconds() < until)
            sleep_after(0);
}

/* Whether all others have begun the call that this rank is beginning, as it leaves and has told so. If
 * not, none will store to its vector: who sees the last rank begin sees as well that this one has left. */
static int begun_by_all(const struct node *node)
{
    /* To tell before looking takes more than a release. */
    atomic_fetch_add(&own_slot(node)->given_up, 0);
    for (int k = 0; k < node->size; k++)
        if (current(&node->slots[k]->headers[node->calls % 2].call) < node->calls)
            return 0;
    return 1;
}

/* A rank leaves a call in which others may be writing to its vector: give them time to notice. */
static void linger(struct node *node)
{
    const int64_t until = nanoseconds() + FAREWELL;
    if (node->beginning ? !begun_by_all(node)
                        : node->design != DESIGN_shared && node->design != DESIGN_read_from_peers)
        return;
    for (int k = 0; k < node->size; k++)
        while (k != node->rank && current(&node->slots[k]->finished) < node->calls
               && current(&node->slots[k]->given_up) == STAYS && nanoseconds() < until)
            sleep_after(0);
}

#endif

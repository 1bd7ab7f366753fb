/* What the collectives of a node have in common: the parts of the vector that a rank gives and
 * wants, and how a call begins and ends.
 *
 * Of what an earlier call left in buffers, nothing is read any more once a call has begun on all
 * ranks. Only the first segment, number t, is copied in before that. So every way through the slots
 * keeps this promise: when a rank leaves, nobody reads segment t - 2 from its buffers any more. */
#ifndef HPCCOLL_NODE_CALL_H
#define HPCCOLL_NODE_CALL_H

#include <errno.h>
#include <sys/uio.h>

#include "node_slots.h"

#define COLLECTIVES(X) X(allreduce) X(reduce_scatter) X(reduce) X(allgather) X(broadcast) \
    X(gather) X(scatter) X(barrier)

#define COLLECTIVE_NUMBER(name) COLLECTIVE_##name,
enum { COLLECTIVES(COLLECTIVE_NUMBER) COLLECTIVE_COUNT };

#define COLLECTIVE_NAME(name) #name,
static const char *const collective_names[COLLECTIVE_COUNT] = {COLLECTIVES(COLLECTIVE_NAME)};

enum { EVERYONE = -1 };

struct collective {
    int which;
    int root;             /* its number on the node, or EVERYONE */
    size_t count;         /* elements of the whole vector */
    const size_t *starts; /* chunk k is [starts[k], starts[k + 1]); NULL where no rank has one */
};

struct range {
    size_t start, stop;
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t length(struct range range)
{
    return range.stop - range.start;
}

/* An empty one starts in `a`, too. */
static struct range common(struct range a, struct range b)
{
    const size_t start = a.start > b.start ? smaller(a.start, a.stop) : smaller(b.start, a.stop);
    const size_t stop = smaller(a.stop, b.stop);
    return (struct range){start, stop > start ? stop : start};
}

static struct range chunk(const struct collective *collective, int rank)
{
    return (struct range){collective->starts[rank], collective->starts[rank + 1]};
}

static struct range all_or_nothing(const struct collective *collective, int all)
{
    return (struct range){0, all ? collective->count : 0};
}

/* The elements that a rank has at first, where they only move. */
static struct range given(const struct collective *collective, int rank)
{
    if (collective->which == COLLECTIVE_allgather || collective->which == COLLECTIVE_gather)
        return chunk(collective, rank);
    return all_or_nothing(collective, rank == collective->root);
}

/* The elements that it has in the end. */
static struct range wanted(const struct collective *collective, int rank)
{
    switch (collective->which) {
    case COLLECTIVE_reduce_scatter:
    case COLLECTIVE_scatter:
        return chunk(collective, rank);
    case COLLECTIVE_reduce:
    case COLLECTIVE_gather:
        return all_or_nothing(collective, rank == collective->root);
    default:
        return all_or_nothing(collective, 1);
    }
}

/* Where part `index` of `size` begins, when ranks share work: parts end at cache lines, so that no
 * two ranks write to one. */
static size_t chunk_start(size_t count, size_t itemsize, int size, int index)
{
    const size_t line = itemsize < LINE ? LINE / itemsize : 1;
    const size_t per_rank = (count + (size_t)size - 1) / (size_t)size;
    const size_t rounded = (per_rank + line - 1) / line * line;
    return smaller(count, rounded * (size_t)index);
}

static struct header *header_of(const struct node *node, int rank)
{
    return &node->slots[rank]->headers[node->calls % 2];
}

/* Describe the next call in the own header; what else is there is up to the caller. */
static struct header *describe_call(struct node *node, int which, int root, size_t nbytes,
                                    uint32_t kind)
{
    node->calls++;
    struct header *mine = header_of(node, node->rank);
    mine->nbytes = nbytes;
    mine->kind = kind;
    mine->form = (uint16_t)(which + COLLECTIVE_COUNT * (root + 1));
    mine->copied = 0;
    return mine;
}

/* Tell the call, and learn whether all ranks make the same one. */
static int begin_call(struct node *node, struct header *mine)
{
    const uint64_t call = node->calls;
    int outcome = DONE;
    node->beginning = 1;
    node->mixed = 0;
    announce(&mine->call, call);
    for (int k = 1; k < node->size; k++) {
        const int peer = (node->rank + k) % node->size;
        const struct header *theirs = header_of(node, peer);
        const int ended = wait_for(node, peer, &theirs->call, call);
        if (ended)
            return ended;
        if (theirs->nbytes != mine->nbytes || theirs->kind != mine->kind
            || theirs->form != mine->form) {
            node->culprit = peer;
            node->mixed |= (theirs->kind | mine->kind) >> LEVELS_SHIFT != 0;
            outcome = DIFFERENT;
        }
    }
    node->beginning = 0;
    /* Who has left does not hear that ranks differ. */
    return outcome == DIFFERENT && somebody_left(node) ? GIVEN_UP : outcome;
}

/* For whoever lets others read its memory, or store to it. */
static int end_call(struct node *node)
{
    announce(&own_slot(node)->finished, node->calls);
    const int outcome = wait_for_all(node, MEMBER(finished), node->calls);
    if (outcome)
        return outcome;
    /* Whoever was interrupted in here may have changed its vector while this rank still read it. */
    return somebody_left(node);
}

static int all_shared(const struct node *node)
{
    for (int k = 0; k < node->size; k++) {
        const struct place *place = &header_of(node, k)->place;
        if (place->shared_input == NOWHERE || place->shared_output == NOWHERE)
            return 0;
    }
    return 1;
}

/* Whether the first segment of all ranks is in, as their headers tell. Those whose vectors are
 * shared left them where they are. */
static int all_copied(const struct node *node)
{
    for (int k = 0; k < node->size; k++)
        if (!header_of(node, k)->copied)
            return 0;
    return 1;
}

static uint64_t offset_in_arena(const struct node *node, const char *address, size_t nbytes)
{
    const char *arena = node->arenas[node->rank];
    if (!arena || address < arena || address + nbytes > arena + node->arena_bytes)
        return NOWHERE;
    return (uint64_t)(address - arena);
}

/* process_vm_readv or process_vm_writev. */
typedef ssize_t transfer(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                         unsigned long, unsigned long);

static int transfer_all(transfer *move, int process, char *here, uint64_t there, size_t nbytes)
{
    while (nbytes) {
        const struct iovec local = {here, nbytes}, remote = {(void *)(uintptr_t)there, nbytes};
        const ssize_t moved = move(process, &local, 1, &remote, 1, 0);
        if (moved <= 0) {
            if (moved < 0 && errno == EINTR)
                continue;
            return UNREADABLE;
        }
        here += moved;
        there += (uint64_t)moved;
        nbytes -= (size_t)moved;
    }
    return DONE;
}

static int read_peer(const struct node *node, int peer, char *to, uint64_t from, size_t nbytes)
{
    return transfer_all(process_vm_readv, node->processes[peer], to, from, nbytes);
}

static int write_peer(const struct node *node, int peer, const char *from, uint64_t to,
                      size_t nbytes)
{
    return transfer_all(process_vm_writev, node->processes[peer], (char *)from, to, nbytes);
}

/* Whether another process' memory can be read, and is what is expected. */
static int reads_like(int process, const void *there, const void *here, size_t nbytes)
{
    char read[64];
    const struct iovec local = {read, nbytes}, remote = {(void *)there, nbytes};
    if (nbytes > sizeof read)
        return 0;
    return process_vm_readv(process, &local, 1, &remote, 1, 0) == (ssize_t)nbytes
           && memcmp(read, here, nbytes) == 0;
}

/* Copy a segment but for [from, to), which nobody else needs. */
static void copy_around(char *buffer, const char *x, size_t nbytes, size_t from, size_t to)
{
    memcpy(buffer, x, from);
    memcpy(buffer + to, x + to, nbytes - to);
}

#endif

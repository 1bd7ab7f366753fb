/* All-reduce among the ranks of a node, through memory that they share.
 *
 *     in_line          a short vector lies in the header: one flag, and everyone reduces
 *     gathered         every rank copies its vector to its slot; everyone reads all and reduces
 *     slotted          segment by segment: copy in, reduce one piece each, gather the others
 *     read_from_peers  each rank reduces a chunk, reading the peers' private memory, then reads
 *                      the other chunks from them
 *     shared           vectors in arenas: each rank reduces its tiles and stores them to all outputs
 *
 * All evaluate the expression of tree.h. Which one runs follows from the size, and from what the
 * headers say of all ranks. */
#ifndef HPCCOLL_NODE_ALLREDUCE_H
#define HPCCOLL_NODE_ALLREDUCE_H

#include <errno.h>
#include <sys/uio.h>

#include "node_slots.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where chunk `index` of `size` begins: chunks end at cache lines, so that no two ranks write to one. */
static size_t chunk_start(size_t count, size_t itemsize, int size, int index)
{
    const size_t line = itemsize < LINE ? LINE / itemsize : 1;
    const size_t per_rank = (count + (size_t)size - 1) / (size_t)size;
    const size_t rounded = (per_rank + line - 1) / line * line;
    return smaller(count, rounded * (size_t)index);
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
        const struct header *theirs = &node->slots[peer]->headers[call % 2];
        const int ended = wait_for(node, peer, &theirs->call, call);
        if (ended)
            return ended;
        if (theirs->nbytes != mine->nbytes || theirs->kind != mine->kind) {
            node->culprit = peer;
            node->mixed |= (theirs->kind | mine->kind) >> LEVELS_SHIFT != 0;
            outcome = DIFFERENT;
        }
    }
    node->beginning = 0;
    return outcome;
}

static int all_shared(const struct node *node)
{
    for (int k = 0; k < node->size; k++) {
        const struct place *place = &node->slots[k]->headers[node->calls % 2].place;
        if (place->shared_input == NOWHERE || place->shared_output == NOWHERE)
            return 0;
    }
    return 1;
}

static int reduce_in_line(struct node *node, const struct loops *loops, size_t count, char *y)
{
    for (int k = 0; k < node->size; k++)
        node->inputs[k] = node->slots[k]->headers[node->calls % 2].vector;
    reduce_range(loops, node->inputs, node->size, 0, count, &y, 1, node->memory);
    return DONE;
}

/* Copy the next segment in, and tell so. */
static void copy_in(const struct node *node, const char *x, size_t nbytes, uint64_t turn)
{
    memcpy(in_buffer(node, node->rank, turn), x, nbytes);
    announce(&own_slot(node)->copied, turn + 1);
}

/* `told`: whether all ranks copied the first segment in before they began the call, so that their
 * headers told of it. */
static int reduce_gathered(struct node *node, const struct loops *loops, const char *x, char *y,
                           size_t count, int told)
{
    const size_t segment = node->segment_bytes / loops->itemsize;
    for (size_t start = 0; start < count; start += segment) {
        const size_t n = smaller(segment, count - start), offset = start * loops->itemsize;
        const uint64_t turn = node->segments;
        if (start || !told) {
            copy_in(node, x + offset, n * loops->itemsize, turn);
            const int outcome = wait_for_all(node, MEMBER(copied), turn + 1);
            if (outcome)
                return outcome;
        }
        for (int k = 0; k < node->size; k++)
            node->inputs[k] = k == node->rank ? x + offset : in_buffer(node, k, turn);
        char *out = y + offset;
        reduce_range(loops, node->inputs, node->size, 0, n, &out, 1, node->memory);
        node->segments++;
    }
    return DONE;
}

/* Copy in what others need of the next segment: all but the piece that this rank reduces itself. */
static void copy_in_for_others(const struct node *node, const char *x, size_t n, size_t itemsize,
                               uint64_t turn)
{
    const size_t from = chunk_start(n, itemsize, node->size, node->rank) * itemsize;
    const size_t to = chunk_start(n, itemsize, node->size, node->rank + 1) * itemsize;
    char *buffer = in_buffer(node, node->rank, turn);
    memcpy(buffer, x, from);
    memcpy(buffer + to, x + to, n * itemsize - to);
}

/* Segment by segment; while others finish their pieces the next segment is copied in. */
static int reduce_slotted(struct node *node, const struct loops *loops, const char *x, char *y,
                          size_t count, int told)
{
    const size_t itemsize = loops->itemsize, segment = node->segment_bytes / itemsize;
    if (!told) {
        copy_in_for_others(node, x, smaller(segment, count), itemsize, node->segments);
        announce(&own_slot(node)->copied, node->segments + 1);
    }
    for (size_t start = 0; start < count; start += segment) {
        const size_t n = smaller(segment, count - start);
        const uint64_t turn = node->segments++;
        int outcome = start || !told ? wait_for_all(node, MEMBER(copied), turn + 1) : DONE;
        if (outcome)
            return outcome;
        for (int k = 0; k < node->size; k++)
            node->inputs[k] = k == node->rank ? x + start * itemsize : in_buffer(node, k, turn);
        char *outputs[2] = {y + start * itemsize, out_buffer(node, node->rank, turn)};
        reduce_range(loops, node->inputs, node->size,
                     chunk_start(n, itemsize, node->size, node->rank),
                     chunk_start(n, itemsize, node->size, node->rank + 1), outputs, 2,
                     node->memory);
        announce(&own_slot(node)->reduced, ++node->pieces);
        if (start + segment < count) {
            copy_in_for_others(node, x + (start + segment) * itemsize,
                               smaller(segment, count - start - segment), itemsize, turn + 1);
            announce(&own_slot(node)->copied, turn + 2);
        }
        for (int k = 1; k < node->size; k++) {
            const int peer = (node->rank + k) % node->size;
            const size_t from = chunk_start(n, itemsize, node->size, peer) * itemsize;
            const size_t to = chunk_start(n, itemsize, node->size, peer + 1) * itemsize;
            outcome = wait_for(node, peer, &node->slots[peer]->reduced, node->pieces);
            if (outcome)
                return outcome;
            memcpy(y + start * itemsize + from, out_buffer(node, peer, turn) + from, to - from);
        }
    }
    return DONE;
}

static int read_peer(const struct node *node, int peer, char *to, uint64_t from, size_t nbytes)
{
    while (nbytes) {
        const struct iovec local = {to, nbytes}, remote = {(void *)(uintptr_t)from, nbytes};
        const ssize_t got = process_vm_readv(node->processes[peer], &local, 1, &remote, 1, 0);
        if (got <= 0) {
            if (got < 0 && errno == EINTR)
                continue;
            return UNREADABLE;
        }
        to += got;
        from += (uint64_t)got;
        nbytes -= (size_t)got;
    }
    return DONE;
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

static int end_call(struct node *node)
{
    announce(&own_slot(node)->finished, node->calls);
    const int outcome = wait_for_all(node, MEMBER(finished), node->calls);
    if (outcome)
        return outcome;
    /* Whoever was interrupted in here may have changed its vector while this rank still read it. */
    return somebody_left(node);
}

/* A piece of a chunk at a time, so that what is read stays in the second-level cache. */
static int reduce_from_peers(struct node *node, const struct loops *loops, const char *x, char *y,
                             size_t count)
{
    const size_t itemsize = loops->itemsize;
    const struct slot *const *slots = (const struct slot *const *)node->slots;
    const size_t piece_bytes = smaller((size_t)128 << 10, STAGING_BYTES / (size_t)node->size)
                               / LINE * LINE;
    const size_t piece = piece_bytes / itemsize;
    const uint64_t before = node->pieces;
    const size_t begin = chunk_start(count, itemsize, node->size, node->rank);
    const size_t end = chunk_start(count, itemsize, node->size, node->rank + 1);
    for (size_t start = begin; start < end; start += piece) {
        const size_t n = smaller(piece, end - start);
        for (int k = 0; k < node->size; k++) {
            if (k == node->rank) {
                node->inputs[k] = x + start * itemsize;
                continue;
            }
            char *room = node->staging + (size_t)k * piece_bytes;
            const uint64_t from = slots[k]->headers[node->calls % 2].place.input;
            if (read_peer(node, k, room, from + start * itemsize, n * itemsize))
                return UNREADABLE;
            node->inputs[k] = room;
        }
        char *out = y + start * itemsize;
        reduce_range(loops, node->inputs, node->size, 0, n, &out, 1, node->memory);
        announce(&own_slot(node)->reduced, before + (start - begin) / piece + 1);
    }
    /* The same number of pieces on all ranks: the first chunk is the longest. */
    const size_t longest = chunk_start(count, itemsize, node->size, 1);
    node->pieces = before + (longest + piece - 1) / piece;
    announce(&own_slot(node)->reduced, node->pieces);
    for (int k = 1; k < node->size; k++) {
        const int peer = (node->rank + k) % node->size;
        const size_t from = chunk_start(count, itemsize, node->size, peer);
        const size_t to = chunk_start(count, itemsize, node->size, peer + 1);
        const uint64_t output = slots[peer]->headers[node->calls % 2].place.output;
        for (size_t start = from; start < to; start += piece) {
            const int outcome = wait_for(node, peer, &slots[peer]->reduced,
                                         before + (start - from) / piece + 1);
            if (outcome)
                return outcome;
            if (read_peer(node, peer, y + start * itemsize, output + start * itemsize,
                          smaller(piece, to - start) * itemsize))
                return UNREADABLE;
        }
    }
    return end_call(node);
}

#define TILE_BYTES ((size_t)256 << 10)

static int reduce_shared(struct node *node, const struct loops *loops, size_t count)
{
    for (int k = 0; k < node->size; k++) {
        const struct place *place = &node->slots[k]->headers[node->calls % 2].place;
        node->inputs[k] = node->arenas[k] + place->shared_input;
        /* The own output first, the others in turn, so that not all write to the same rank. */
        const int turn = (k - node->rank + node->size) % node->size;
        node->outputs[turn] = node->arenas[k] + place->shared_output;
    }
    /* Tiles are dealt out to ranks in turn, the last one first: whoever wrote a vector just now has its
     * end in cache, and so all ranks have a share of that. */
    const size_t tile = smaller(chunk_start(count, loops->itemsize, node->size, 1),
                                TILE_BYTES / loops->itemsize);
    for (size_t index = (count + tile - 1) / tile; index-- > 0;) {
        if (index % (size_t)node->size != (size_t)node->rank)
            continue;
        /* Its owner may take a vector back when it has left. */
        const int outcome = somebody_left(node);
        if (outcome)
            return outcome;
        reduce_range(loops, node->inputs, node->size, index * tile,
                     smaller(count, (index + 1) * tile), node->outputs, node->size, node->memory);
    }
    return end_call(node);
}

static uint64_t offset_in_arena(const struct node *node, const char *address, size_t nbytes)
{
    const char *arena = node->arenas[node->rank];
    if (!arena || address < arena || address + nbytes > arena + node->arena_bytes)
        return NOWHERE;
    return (uint64_t)(address - arena);
}

/* All-reduce `count` elements at `x` into `y`, which is the same memory or apart. */
static int node_allreduce(struct node *node, const struct loops *loops, uint32_t kind,
                          const char *x, char *y, size_t count)
{
    const size_t nbytes = count * loops->itemsize;
    struct header *mine = &own_slot(node)->headers[++node->calls % 2];
    mine->nbytes = nbytes;
    mine->kind = kind;
    if (nbytes <= INLINE_BYTES) {
        memcpy(mine->vector, x, nbytes);
        node->design = DESIGN_in_line;
        const int outcome = begin_call(node, mine);
        return outcome ? outcome : reduce_in_line(node, loops, count, y);
    }
    struct place place = {(uintptr_t)x, (uintptr_t)y, NOWHERE, NOWHERE};
    if (nbytes >= node->shared_bytes) {
        place.shared_input = offset_in_arena(node, x, nbytes);
        place.shared_output = offset_in_arena(node, y, nbytes);
    }
    mine->place = place;
    const int through_slots = nbytes <= node->slot_bytes || !node->processes;
    const int copied = through_slots
                       && (place.shared_input == NOWHERE || place.shared_output == NOWHERE);
    mine->copied = copied;
    if (copied) {
        const size_t n = smaller(count, node->segment_bytes / loops->itemsize);
        if (nbytes <= node->gather_bytes)
            memcpy(in_buffer(node, node->rank, node->segments), x, n * loops->itemsize);
        else
            copy_in_for_others(node, x, n, loops->itemsize, node->segments);
    }
    const int outcome = begin_call(node, mine);
    if (outcome)
        return outcome;
    if (nbytes >= node->shared_bytes && all_shared(node)) {
        node->design = DESIGN_shared;
        return reduce_shared(node, loops, count);
    }
    if (!through_slots) {
        node->design = DESIGN_read_from_peers;
        return reduce_from_peers(node, loops, x, y, count);
    }
    /* Those whose vectors are shared left them where they are, but some others' are not. */
    int told = 1;
    for (int k = 0; k < node->size; k++)
        told &= (int)node->slots[k]->headers[node->calls % 2].copied;
    if (nbytes <= node->gather_bytes) {
        node->design = DESIGN_gathered;
        return reduce_gathered(node, loops, x, y, count, told);
    }
    node->design = DESIGN_slotted;
    return reduce_slotted(node, loops, x, y, count, told);
}

#endif

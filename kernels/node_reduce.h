/* All-reduce, reduce and reduce-scatter among the ranks of a node: which design runs, and what
 * those of node_allreduce.h do not do for the other two. */
#ifndef HPCCOLL_NODE_REDUCE_H
#define HPCCOLL_NODE_REDUCE_H

#include "node_allreduce.h"

/* Of reduce-scatter: elements of every chunk that one segment holds, in a room for each. */
static size_t chunk_room(const struct node *node, size_t itemsize)
{
    const size_t room = node->segment_bytes / (size_t)node->size;
    return (room < LINE ? room : room / LINE * LINE) / itemsize;
}

/* The part of a chunk that lies `done` elements behind its start, at most `n` of them. */
static struct range part_of(struct range chunk, size_t done, size_t n)
{
    const size_t start = smaller(chunk.start + done, chunk.stop);
    return (struct range){start, smaller(start + n, chunk.stop)};
}

/* Copy in what others need of the next segment: the next part of every other rank's chunk. */
static void copy_parts_in(const struct node *node, const struct collective *collective,
                          const char *x, size_t itemsize, size_t done, uint64_t turn)
{
    const size_t room = chunk_room(node, itemsize);
    char *buffer = in_buffer(node, node->rank, turn);
    for (int k = 0; k < node->size; k++) {
        const struct range part = part_of(chunk(collective, k), done, room);
        if (k != node->rank && length(part))
            memcpy(buffer + (size_t)k * room * itemsize, x + part.start * itemsize,
                   length(part) * itemsize);
    }
}

static size_t longest_chunk(const struct node *node, const struct collective *collective)
{
    size_t longest = 0;
    for (int k = 0; k < node->size; k++)
        if (length(chunk(collective, k)) > longest)
            longest = length(chunk(collective, k));
    return longest;
}

/* As `reduce_slotted`, but what a rank reduces is its own: nothing is to be gathered. Who has
 * copied segment t in has read all that it wants of t - 1. */
static int scatter_slotted(struct node *node, const struct loops *loops,
                           const struct collective *collective, const char *x, char *y, int told)
{
    const size_t itemsize = loops->itemsize, room = chunk_room(node, itemsize);
    const size_t longest = longest_chunk(node, collective);
    if (!told) {
        copy_parts_in(node, collective, x, itemsize, 0, node->segments);
        announce(&own_slot(node)->copied, node->segments + 1);
    }
    for (size_t done = 0; done < longest; done += room) {
        const uint64_t turn = node->segments++;
        const int outcome = done || !told ? wait_for_all(node, MEMBER(copied), turn + 1) : DONE;
        if (outcome)
            return outcome;
        const struct range part = part_of(chunk(collective, node->rank), done, room);
        for (int k = 0; k < node->size; k++)
            node->inputs[k] = k == node->rank
                                  ? x + part.start * itemsize
                                  : in_buffer(node, k, turn) + (size_t)node->rank * room * itemsize;
        if (length(part)) {
            char *out = y + done * itemsize;
            reduce_range(loops, node->inputs, node->size, 0, length(part), &out, 1, node->memory);
        }
        if (done + room < longest) {
            copy_parts_in(node, collective, x, itemsize, done + room, turn + 1);
            announce(&own_slot(node)->copied, turn + 2);
        }
    }
    return DONE;
}

/* Every rank reduces what it wants, and nothing else. */
static int reduce_wanted(struct node *node, const struct loops *loops, const char *x, char *y,
                         struct range want)
{
    const size_t itemsize = loops->itemsize, piece = staged_bytes(node) / itemsize;
    for (size_t start = want.start; start < want.stop; start += piece)
        if (reduce_piece(node, loops, x, start, smaller(piece, want.stop - start),
                         y + (start - want.start) * itemsize))
            return UNREADABLE;
    return end_call(node);
}

/* Every rank reduces a chunk, piece by piece, and the root collects the pieces. It tells by
 * `reduced` what it has collected, the others what they have reduced: two pieces more at most, as
 * out-buffers are used in turn. In place, the root stores where the only reader has read. */
static int reduce_to_root(struct node *node, const struct loops *loops, const char *x, char *y,
                          size_t count, int root)
{
    const size_t itemsize = loops->itemsize;
    const size_t piece = smaller(staged_bytes(node), node->segment_bytes) / itemsize;
    const size_t longest = chunk_start(count, itemsize, node->size, 1);
    const int collects = node->rank == root;
    for (size_t done = 0; done < longest; done += piece) {
        const uint64_t turn = node->pieces++;
        for (int k = 0; k < (collects ? node->size : 1); k++) {
            const int peer = (node->rank + k) % node->size;
            const struct range chunk = {chunk_start(count, itemsize, node->size, peer),
                                        chunk_start(count, itemsize, node->size, peer + 1)};
            const struct range part = part_of(chunk, done, piece);
            char *buffer = out_buffer(node, peer, turn);
            int outcome = DONE;
            if (peer != node->rank) {
                outcome = wait_for(node, peer, &node->slots[peer]->reduced, turn + 1);
                if (!outcome)
                    memcpy(y + part.start * itemsize, buffer, length(part) * itemsize);
            } else {
                if (!collects && done >= 2 * piece)
                    outcome = wait_for(node, root, &node->slots[root]->reduced, turn - 1);
                if (!outcome && length(part))
                    outcome = reduce_piece(node, loops, x, part.start, length(part),
                                           collects ? y + part.start * itemsize : buffer);
            }
            if (outcome)
                return outcome;
        }
        announce(&own_slot(node)->reduced, turn + 1);
    }
    return end_call(node);
}

static int scatter_shared(struct node *node, const struct loops *loops, struct range want, char *y)
{
    for (int k = 0; k < node->size; k++)
        node->inputs[k] = node->arenas[k] + header_of(node, k)->place.shared_input
                          + want.start * loops->itemsize;
    reduce_range(loops, node->inputs, node->size, 0, length(want), &y, 1, node->memory);
    return end_call(node);
}

/* Reduce the vectors at `x`; what this rank wants of the result comes to `y`. Which design runs
 * follows from the size, and from what the headers say of all ranks. */
static int node_reduce(struct node *node, const struct loops *loops,
                       const struct collective *collective, uint32_t kind, const char *x, char *y)
{
    const size_t itemsize = loops->itemsize, count = collective->count, nbytes = count * itemsize;
    const int root = collective->root, scatters = collective->which == COLLECTIVE_reduce_scatter;
    const struct range want = wanted(collective, node->rank);
    struct header *mine = describe_call(node, collective->which, root, nbytes, kind);
    if (nbytes <= INLINE_BYTES) {
        if (nbytes)
            memcpy(mine->vector, x, nbytes);
        node->design = DESIGN_in_line;
        const int outcome = begin_call(node, mine);
        return outcome ? outcome : reduce_in_line(node, loops, want, y);
    }
    struct place place = {(uintptr_t)x, (uintptr_t)y, NOWHERE, NOWHERE, NOWHERE};
    if (nbytes >= node->shared_bytes) {
        place.shared_input = offset_in_arena(node, x, nbytes);
        /* Where no other rank stores anything, no matter. */
        place.shared_output = scatters || !takes(root, node->rank)
                                  ? 0 : offset_in_arena(node, y, nbytes);
    }
    mine->place = place;
    const int through_slots = nbytes <= node->slot_bytes || !node->processes;
    const int gathers = nbytes <= node->gather_bytes || (scatters && !chunk_room(node, itemsize));
    mine->copied = through_slots
                   && (place.shared_input == NOWHERE || place.shared_output == NOWHERE);
    if (mine->copied) {
        const size_t n = smaller(count, node->segment_bytes / itemsize);
        if (gathers)
            memcpy(in_buffer(node, node->rank, node->segments), x, n * itemsize);
        else if (scatters)
            copy_parts_in(node, collective, x, itemsize, 0, node->segments);
        else
            copy_in_for_others(node, x, n, itemsize, node->segments);
    }
    const int outcome = begin_call(node, mine);
    if (outcome)
        return outcome;
    if (nbytes >= node->shared_bytes && all_shared(node)) {
        node->design = DESIGN_shared;
        return scatters ? scatter_shared(node, loops, want, y)
                        : reduce_shared(node, loops, count, root);
    }
    if (!through_slots) {
        node->design = DESIGN_read_from_peers;
        if (collective->which == COLLECTIVE_allreduce)
            return reduce_from_peers(node, loops, x, y, count);
        /* Beside the root, a single other rank would not have the result faster. */
        return scatters || node->size <= 2 ? reduce_wanted(node, loops, x, y, want)
                                           : reduce_to_root(node, loops, x, y, count, root);
    }
    const int told = all_copied(node);
    node->design = gathers ? DESIGN_gathered : DESIGN_slotted;
    if (gathers)
        return reduce_gathered(node, loops, x, y, count, want, told);
    return scatters ? scatter_slotted(node, loops, collective, x, y, told)
                    : reduce_slotted(node, loops, x, y, count, root, told);
}

#endif

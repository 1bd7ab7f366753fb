/* Whole vectors reduced among the ranks of a node, through memory that they share.
 *
 *     in_line          a short vector lies in the header: one flag, and everyone reduces
 *     gathered         every rank copies its vector to its slot; everyone reads all and reduces
 *     slotted          segment by segment: copy in, reduce one piece each, gather the others
 *     read_from_peers  each rank reduces a chunk, reading the peers' private memory, then reads
 *                      the other chunks from them
 *     shared           vectors in arenas: each rank reduces its tiles and stores them to all outputs
 *
 * All evaluate the expression of tree.h. Who does not want the result, or wants a part of it only,
 * takes what it wants: reduce and reduce-scatter run by these designs, too (node_reduce.h). */
#ifndef HPCCOLL_NODE_ALLREDUCE_H
#define HPCCOLL_NODE_ALLREDUCE_H

#include "node_call.h"

static int takes(int root, int rank)
{
    return root == EVERYONE || root == rank;
}

static int reduce_in_line(struct node *node, const struct loops *loops, struct range want, char *y)
{
    for (int k = 0; k < node->size; k++)
        node->inputs[k] = header_of(node, k)->vector + want.start * loops->itemsize;
    reduce_range(loops, node->inputs, node->size, 0, length(want), &y, 1, node->memory);
    return DONE;
}

/* Copy the next segment in, and tell so. */
static void copy_in(const struct node *node, const char *x, size_t nbytes, uint64_t turn)
{
    memcpy(in_buffer(node, node->rank, turn), x, nbytes);
    announce(&own_slot(node)->copied, turn + 1);
}

/* `told`: whether all ranks copied the first segment in before they began the call, so that their
 * headers told of it. Who wants nothing of a segment waits all the same: then it knows that the
 * others have read the segment before. */
static int reduce_gathered(struct node *node, const struct loops *loops, const char *x, char *y,
                           size_t count, struct range want, int told)
{
    const size_t itemsize = loops->itemsize, segment = node->segment_bytes / itemsize;
    for (size_t start = 0; start < count; start += segment) {
        const size_t n = smaller(segment, count - start);
        const struct range part = common((struct range){start, start + n}, want);
        const uint64_t turn = node->segments;
        if (start || !told) {
            copy_in(node, x + start * itemsize, n * itemsize, turn);
            const int outcome = wait_for_all(node, MEMBER(copied), turn + 1);
            if (outcome)
                return outcome;
        }
        for (int k = 0; k < node->size; k++) {
            const char *from = k == node->rank ? x + start * itemsize : in_buffer(node, k, turn);
            node->inputs[k] = from + (part.start - start) * itemsize;
        }
        if (length(part)) {
            char *out = y + (part.start - want.start) * itemsize;
            reduce_range(loops, node->inputs, node->size, 0, length(part), &out, 1, node->memory);
        }
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
    copy_around(in_buffer(node, node->rank, turn), x, n * itemsize, from, to);
}

/* Segment by segment; while others finish their pieces the next segment is copied in.
 *
 * Who has copied segment t in has reduced its piece of t - 1, and gathered those of t - 2. When all
 * have, nobody needs in-buffers of t - 1 or out-buffers of t - 2, and this rank can fill those of
 * t + 1 and t: also one that gathers nothing itself, as its root's `copied` tells the same. It may
 * leave while the root still gathers the last two, as out-buffers are not filled before the next
 * call has begun. */
static int reduce_slotted(struct node *node, const struct loops *loops, const char *x, char *y,
                          size_t count, int root, int told)
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
        char *outputs[2];
        int output_count = 0;
        if (takes(root, node->rank))
            outputs[output_count++] = y + start * itemsize;
        if (root != node->rank)
            outputs[output_count++] = out_buffer(node, node->rank, turn);
        reduce_range(loops, node->inputs, node->size,
                     chunk_start(n, itemsize, node->size, node->rank),
                     chunk_start(n, itemsize, node->size, node->rank + 1), outputs, output_count,
                     node->memory);
        announce(&own_slot(node)->reduced, ++node->pieces);
        if (start + segment < count) {
            copy_in_for_others(node, x + (start + segment) * itemsize,
                               smaller(segment, count - start - segment), itemsize, turn + 1);
            announce(&own_slot(node)->copied, turn + 2);
        }
        for (int k = 1; k < node->size && takes(root, node->rank); k++) {
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

/* What is read from one peer at once, so that all of it stays in the second-level cache. */
static size_t staged_bytes(const struct node *node)
{
    return smaller((size_t)128 << 10, STAGING_BYTES / (size_t)node->size) / LINE * LINE;
}

/* Reduce `n` elements from `start` on, reading those of the peers from their private memory. */
static int reduce_piece(struct node *node, const struct loops *loops, const char *x, size_t start,
                        size_t n, char *out)
{
    const size_t offset = start * loops->itemsize;
    for (int k = 0; k < node->size; k++) {
        if (k == node->rank) {
            node->inputs[k] = x + offset;
            continue;
        }
        char *room = node->staging + (size_t)k * staged_bytes(node);
        if (read_peer(node, k, room, header_of(node, k)->place.input + offset,
                      n * loops->itemsize))
            return UNREADABLE;
        node->inputs[k] = room;
    }
    reduce_range(loops, node->inputs, node->size, 0, n, &out, 1, node->memory);
    return DONE;
}

static int reduce_from_peers(struct node *node, const struct loops *loops, const char *x, char *y,
                             size_t count)
{
    const size_t itemsize = loops->itemsize, piece = staged_bytes(node) / itemsize;
    const uint64_t before = node->pieces;
    const size_t begin = chunk_start(count, itemsize, node->size, node->rank);
    const size_t end = chunk_start(count, itemsize, node->size, node->rank + 1);
    for (size_t start = begin; start < end; start += piece) {
        if (reduce_piece(node, loops, x, start, smaller(piece, end - start), y + start * itemsize))
            return UNREADABLE;
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
        const uint64_t output = header_of(node, peer)->place.output;
        for (size_t start = from; start < to; start += piece) {
            const int outcome = wait_for(node, peer, &node->slots[peer]->reduced,
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

static int reduce_shared(struct node *node, const struct loops *loops, size_t count, int root)
{
    int output_count = 0;
    for (int k = 0; k < node->size; k++) {
        /* The own output first, the others in turn, so that not all write to the same rank. */
        const int peer = (node->rank + k) % node->size;
        const struct place *place = &header_of(node, peer)->place;
        node->inputs[peer] = node->arenas[peer] + place->shared_input;
        if (takes(root, peer))
            node->outputs[output_count++] = node->arenas[peer] + place->shared_output;
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
                     smaller(count, (index + 1) * tile), node->outputs, output_count,
                     node->memory);
    }
    return end_call(node);
}

#endif

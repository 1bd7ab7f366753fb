/* All-gather, broadcast, gather and scatter among the ranks of a node: each rank gives a range of
 * the vector, wants a range, and takes from every other what the two have in common.
 *
 *     in_line          what is given lies in the header
 *     slotted          segment by segment: givers copy in, takers copy out
 *     read_from_peers  ranks read and write each other's private memory
 *     shared           what is given lies in arenas, and takers copy it from there
 *
 * Ranges are in bytes here, so that no size of an element is too large for a segment. */
#ifndef HPCCOLL_NODE_MOVE_H
#define HPCCOLL_NODE_MOVE_H

#include "node_call.h"

struct move {
    const struct collective *collective;
    size_t itemsize;
    const char *x;           /* what this rank gives */
    char *y;                 /* where what it wants comes to */
    struct range want;
    int gives;               /* whether others want something of it */
};

static struct range in_bytes(struct range range, size_t itemsize)
{
    return (struct range){range.start * itemsize, range.stop * itemsize};
}

static struct range given_bytes(const struct move *move, int rank)
{
    return in_bytes(given(move->collective, rank), move->itemsize);
}

/* Store a part of the vector that lies at `from`. */
static void take(const struct move *move, struct range part, const char *from)
{
    char *to = move->y + (part.start - move->want.start);
    if (to != from)
        memcpy(to, from, length(part));
}

/* Nothing is reduced in a slot's buffers here: they only cost a second copy. From bench/family.py. */
#define MOST_IN_SLOTS ((size_t)1 << 20)

/* How much is pushed at once: what is read once and goes to several ranks stays in cache. */
#define PUSH_BYTES ((size_t)512 << 10)

/* The first bytes of what `giver` has for `taker`, which it writes to the taker's memory; the taker
 * reads the others. Where all give, or the root takes all, every rank is as busy as the others if
 * givers write; the root of a broadcast takes its share of the work that way. */
static struct range pushed(const struct node *node, const struct move *move, int giver, int taker)
{
    const int which = move->collective->which;
    struct range part = common(given_bytes(move, giver),
                               in_bytes(wanted(move->collective, taker), move->itemsize));
    if (length(part) && which != COLLECTIVE_allgather && which != COLLECTIVE_gather)
        part.stop = part.start + length(part) / (size_t)node->size / LINE * LINE;
    return part;
}

static int push(struct node *node, const struct move *move)
{
    const struct range give = given_bytes(move, node->rank);
    for (size_t start = give.start; start < give.stop; start += PUSH_BYTES) {
        const struct range piece = {start, smaller(start + PUSH_BYTES, give.stop)};
        const struct range own = common(piece, move->want);
        /* The owner of the memory may take it back when it has left. */
        const int outcome = somebody_left(node);
        if (outcome)
            return outcome;
        if (length(own))
            take(move, own, move->x + (own.start - give.start));
        for (int k = 1; k < node->size; k++) {
            const int peer = (node->rank + k) % node->size;
            const struct range part = common(piece, pushed(node, move, node->rank, peer));
            const struct range theirs = in_bytes(wanted(move->collective, peer), move->itemsize);
            if (length(part) && write_peer(node, peer, move->x + (part.start - give.start),
                                           header_of(node, peer)->place.output
                                               + (part.start - theirs.start),
                                           length(part)))
                return UNREADABLE;
        }
    }
    return DONE;
}

static int move_private(struct node *node, const struct move *move)
{
    const int outcome = push(node, move);
    if (outcome)
        return outcome;
    for (int k = 1; k < node->size; k++) {
        const int peer = (node->rank + k) % node->size;
        const struct range give = given_bytes(move, peer);
        struct range part = common(give, move->want);
        if (length(part))
            part.start = pushed(node, move, peer, node->rank).stop;
        if (length(part) && read_peer(node, peer, move->y + (part.start - move->want.start),
                                      header_of(node, peer)->place.input
                                          + (part.start - give.start),
                                      length(part)))
            return UNREADABLE;
    }
    return end_call(node);
}

/* Everything is where takers can have it when the call has begun. */
static int move_at_once(struct node *node, const struct move *move)
{
    for (int k = 1; k <= node->size; k++) {
        /* Neighbours first, so that not all read from the same rank; the own memory last. */
        const int peer = (node->rank + k) % node->size;
        const struct header *theirs = header_of(node, peer);
        const struct range give = given_bytes(move, peer), part = common(give, move->want);
        const size_t offset = part.start - give.start;
        if (!length(part))
            continue;
        if (peer == node->rank)
            take(move, part, move->x + offset);
        else if (node->design == DESIGN_in_line)
            take(move, part, theirs->vector + offset);
        else
            take(move, part, node->arenas[peer] + theirs->place.shared_input + offset);
    }
    return node->design == DESIGN_in_line ? DONE : end_call(node);
}

/* The part of a range that goes through a buffer when `done` bytes of it have. */
static struct range segment_of(const struct node *node, struct range give, size_t done)
{
    const size_t start = smaller(give.start + done, give.stop);
    return (struct range){start, smaller(start + node->segment_bytes, give.stop)};
}

/* A scattering root keeps its own chunk to itself. */
static void give_segment(const struct node *node, const struct move *move, size_t done,
                         uint64_t turn)
{
    const int scatters = move->collective->which == COLLECTIVE_scatter;
    const struct range give = given_bytes(move, node->rank);
    const struct range segment = segment_of(node, give, done);
    const struct range kept = common(segment, scatters ? move->want : (struct range){0, 0});
    if (length(segment))
        copy_around(in_buffer(node, node->rank, turn), move->x + (segment.start - give.start),
                    length(segment), kept.start - segment.start, kept.stop - segment.start);
}

static int wait_for_takers(struct node *node, const struct collective *collective, uint64_t pieces)
{
    if (collective->which != COLLECTIVE_gather)
        return wait_for_all(node, MEMBER(reduced), pieces);
    return wait_for(node, collective->root, &node->slots[collective->root]->reduced, pieces);
}

/* A taker tells by `reduced` how many segments it has taken, whether it wanted something of them or
 * not. A giver fills a buffer with segment t + 1 when all have taken t - 1, which was in it; those
 * of the call's first two segments are free, as the call has begun. It waits like that in the last
 * turn, too, though it fills no more: the next call's first segment takes the place of that t - 1.
 * Who gives nothing need not wait, as nobody reads from its buffers.
 *
 * Nobody waits for ever: who waits in turn t waits for what others do in turn t - 1 or before. */
static int move_slotted(struct node *node, const struct move *move, size_t longest, int told)
{
    if (!told && move->gives) {
        give_segment(node, move, 0, node->segments);
        announce(&own_slot(node)->copied, node->segments + 1);
    }
    for (size_t done = 0; done < longest; done += node->segment_bytes) {
        const uint64_t turn = node->segments++;
        int outcome = DONE;
        if (move->gives && done)
            outcome = wait_for_takers(node, move->collective, node->pieces);
        if (outcome)
            return outcome;
        if (move->gives && done + node->segment_bytes < longest) {
            give_segment(node, move, done + node->segment_bytes, turn + 1);
            announce(&own_slot(node)->copied, turn + 2);
        }
        for (int k = 1; k <= node->size; k++) {
            const int peer = (node->rank + k) % node->size;
            const struct range give = given_bytes(move, peer);
            const struct range segment = segment_of(node, give, done);
            const struct range part = common(segment, move->want);
            if (!length(part))
                continue;
            if (peer == node->rank) {
                take(move, part, move->x + (part.start - give.start));
                continue;
            }
            if (done || !told)
                outcome = wait_for(node, peer, &node->slots[peer]->copied, turn + 1);
            if (outcome)
                return outcome;
            take(move, part, in_buffer(node, peer, turn) + (part.start - segment.start));
        }
        announce(&own_slot(node)->reduced, ++node->pieces);
    }
    return DONE;
}

/* Move what lies at `x` on those who give something to `y` on those who want it. One may be a part
 * of the other: the same elements of the vector. */
static int node_move(struct node *node, const struct collective *collective, size_t itemsize,
                     uint32_t kind, const char *x, char *y)
{
    const size_t nbytes = collective->count * itemsize;
    const int keeps = collective->which == COLLECTIVE_gather && collective->root == node->rank;
    struct move move = {collective, itemsize, x, y,
                        in_bytes(wanted(collective, node->rank), itemsize), 0};
    const size_t mine_bytes = length(given_bytes(&move, node->rank));
    move.gives = mine_bytes && !keeps;
    size_t longest = 0;
    for (int k = 0; k < node->size; k++)
        if (length(given_bytes(&move, k)) > longest)
            longest = length(given_bytes(&move, k));
    struct header *mine = describe_call(node, collective->which, collective->root, nbytes, kind);
    const int in_line = longest <= INLINE_BYTES;
    const int through_slots = nbytes <= smaller(node->slot_bytes, MOST_IN_SLOTS)
                              || !node->processes;
    if (in_line) {
        if (move.gives)
            memcpy(mine->vector, x, mine_bytes);
    } else {
        /* What gives nothing is no reason against any design. */
        mine->place = (struct place){.input = (uintptr_t)x, .output = (uintptr_t)y};
        if (move.gives)
            mine->place.shared_input = nbytes < node->shared_bytes
                                           ? NOWHERE : offset_in_arena(node, x, mine_bytes);
        mine->copied = through_slots && (!move.gives || mine->place.shared_input == NOWHERE);
        if (mine->copied && move.gives)
            give_segment(node, &move, 0, node->segments);
    }
    const int outcome = begin_call(node, mine);
    if (outcome)
        return outcome;
    const int shared = !in_line && nbytes >= node->shared_bytes && all_shared(node);
    node->design = in_line ? DESIGN_in_line : shared ? DESIGN_shared
                   : through_slots ? DESIGN_slotted : DESIGN_read_from_peers;
    if (node->design == DESIGN_slotted)
        return move_slotted(node, &move, longest, all_copied(node));
    if (node->design == DESIGN_read_from_peers)
        return move_private(node, &move);
    return move_at_once(node, &move);
}

#endif

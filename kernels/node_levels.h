/* What a hierarchical all-reduce does inside its nodes, piece by piece, so that the network is busy
 * with one piece while memory works on another.
 *
 * The vector is cut into slices, one per leader, and each slice into pieces; piece j of the vector is
 * piece j of every slice. For each piece every rank
 *
 *     copies its own part in, where peers can read it,
 *     reduces a share of it over the node into the memory of the slice's leader,
 *     collects it from the leaders, when they have all-reduced it between nodes.
 *
 * The expression is that of tree.h. */
#ifndef HPCCOLL_NODE_LEVELS_H
#define HPCCOLL_NODE_LEVELS_H

#include "node_call.h"

struct levels {
    struct node *node;
    struct loops loops;      /* to partial values: without narrow and divide */
    size_t count;
    int leaders;
    const int *leader_ranks; /* by slice: number of its leader on this node */
    int slice;               /* which one this rank leads, or -1 */
    int pieces;
    /* In the own arena; the last two of the slice that this rank leads. */
    char *input, *partial, *output;
    const char *source;      /* of the call that runs */
    char *target;
    uint64_t segments_before, pieces_before, published_before;
    int collected;
};

/* hpccoll.chunks.chunks: where part `index` of `parts` of a range begins. */
static size_t part_start(size_t start, size_t stop, int parts, int index)
{
    const size_t count = stop - start, base = count / (size_t)parts, longer = count % (size_t)parts;
    return start + (size_t)index * base + smaller((size_t)index, longer);
}

static struct range slice_of(const struct levels *levels, int slice)
{
    return (struct range){part_start(0, levels->count, levels->leaders, slice),
                          part_start(0, levels->count, levels->leaders, slice + 1)};
}

static struct range piece_of(const struct levels *levels, int slice, int piece)
{
    const struct range all = slice_of(levels, slice);
    return (struct range){part_start(all.start, all.stop, levels->pieces, piece),
                          part_start(all.start, all.stop, levels->pieces, piece + 1)};
}

static void copy_piece_in(struct levels *levels, int piece)
{
    const size_t itemsize = levels->loops.itemsize;
    for (int slice = 0; slice < levels->leaders; slice++) {
        const struct range part = piece_of(levels, slice, piece);
        if (part.stop > part.start)
            memcpy(levels->input + part.start * itemsize, levels->source + part.start * itemsize,
                   (part.stop - part.start) * itemsize);
    }
    announce(&own_slot(levels->node)->copied, levels->segments_before + (uint64_t)piece + 1);
}

/* Begin a call: tell peers where things lie, and learn the same of them. */
static int levels_begin(struct levels *levels, uint32_t kind, const char *source, char *target)
{
    struct node *node = levels->node;
    struct header *mine = describe_call(node, COLLECTIVE_allreduce, EVERYONE,
                                        levels->count * levels->loops.itemsize, kind);
    const char *arena = node->arenas[node->rank];
    node->design = DESIGN_shared; /* for `linger`: peers store to a leader's memory */
    levels->source = source;
    levels->target = target;
    levels->collected = 0;
    levels->segments_before = node->segments;
    levels->pieces_before = node->pieces;
    levels->published_before = node->published;
    mine->place.shared_input = (uint64_t)(levels->input - arena);
    mine->place.shared_output = (uint64_t)(levels->output - arena);
    mine->place.shared_partial = (uint64_t)(levels->partial - arena);
    copy_piece_in(levels, 0);
    const int outcome = begin_call(node, mine);
    if (outcome)
        return outcome;
    node->segments += (uint64_t)levels->pieces;
    node->pieces += (uint64_t)levels->pieces;
    node->published += (uint64_t)levels->pieces;
    return DONE;
}

/* Reduce this rank's share of a piece; a leader then has its whole piece of its slice. */
static int levels_reduce(struct levels *levels, int piece)
{
    struct node *node = levels->node;
    const uint64_t turn = (uint64_t)piece + 1;
    const int slice = node->rank % levels->leaders;
    const int share = node->rank / levels->leaders;
    const int shares = (node->size - slice + levels->leaders - 1) / levels->leaders;
    if (piece + 1 < levels->pieces)
        copy_piece_in(levels, piece + 1);
    int outcome = wait_for_all(node, MEMBER(copied), levels->segments_before + turn);
    if (outcome)
        return outcome;
    /* A leader may take its memory back when it has left. */
    outcome = somebody_left(node);
    if (outcome)
        return outcome;
    const int leader = levels->leader_ranks[slice];
    const struct range part = piece_of(levels, slice, piece), all = slice_of(levels, slice);
    const size_t n = part.stop - part.start, itemsize = levels->loops.itemsize;
    const size_t begin = part.start + chunk_start(n, itemsize, shares, share);
    const size_t end = part.start + chunk_start(n, itemsize, shares, share + 1);
    for (int k = 0; k < node->size; k++) {
        const struct place *place = &header_of(node, k)->place;
        node->inputs[k] = node->arenas[k] + place->shared_input + begin * itemsize;
    }
    const struct place *place = &header_of(node, leader)->place;
    char *out = node->arenas[leader] + place->shared_partial
                + (begin - all.start) * levels->loops.partial_itemsize;
    reduce_range(&levels->loops, node->inputs, node->size, 0, end - begin, &out, 1, node->memory);
    announce(&own_slot(node)->reduced, levels->pieces_before + turn);
    return levels->slice < 0 ? DONE
                             : wait_for_all(node, MEMBER(reduced), levels->pieces_before + turn);
}

/* Copy what is finished of a piece from its leaders. */
static int collect(struct levels *levels, int piece)
{
    struct node *node = levels->node;
    const size_t itemsize = levels->loops.itemsize;
    for (int slice = 0; slice < levels->leaders; slice++) {
        const int leader = levels->leader_ranks[slice];
        const int outcome = wait_for(node, leader, &node->slots[leader]->published,
                                     levels->published_before + (uint64_t)piece + 1);
        if (outcome)
            return outcome;
        const struct place *place = &header_of(node, leader)->place;
        const struct range part = piece_of(levels, slice, piece), all = slice_of(levels, slice);
        if (part.stop > part.start)
            memcpy(levels->target + part.start * itemsize,
                   node->arenas[leader] + place->shared_output
                       + (part.start - all.start) * itemsize,
                   (part.stop - part.start) * itemsize);
    }
    return DONE;
}

static int published_by_all(const struct levels *levels, int piece)
{
    for (int slice = 0; slice < levels->leaders; slice++) {
        const struct slot *theirs = levels->node->slots[levels->leader_ranks[slice]];
        if (current(&theirs->published) < levels->published_before + (uint64_t)piece + 1)
            return 0;
    }
    return 1;
}

/* Tell that a piece of the own slice is finished, and collect what others have finished so far. */
static int levels_publish(struct levels *levels, int piece)
{
    announce(&own_slot(levels->node)->published, levels->published_before + (uint64_t)piece + 1);
    while (levels->collected < piece && published_by_all(levels, levels->collected)) {
        const int outcome = collect(levels, levels->collected++);
        if (outcome)
            return outcome;
    }
    return DONE;
}

/* Collect the rest, and let nobody go before all have. */
static int levels_end(struct levels *levels)
{
    announce(&own_slot(levels->node)->published,
             levels->published_before + (uint64_t)levels->pieces);
    while (levels->collected < levels->pieces) {
        const int outcome = collect(levels, levels->collected++);
        if (outcome)
            return outcome;
    }
    return end_call(levels->node);
}

#endif

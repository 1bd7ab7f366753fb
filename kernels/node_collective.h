/* One collective among the ranks of a node, by its description. */
#ifndef HPCCOLL_NODE_COLLECTIVE_H
#define HPCCOLL_NODE_COLLECTIVE_H

#include "node_move.h"
#include "node_reduce.h"

static int node_collective(struct node *node, const struct loops *loops,
                           const struct collective *collective, uint32_t kind, const char *x,
                           char *y)
{
    switch (collective->which) {
    case COLLECTIVE_allreduce:
    case COLLECTIVE_reduce_scatter:
    case COLLECTIVE_reduce:
        return node_reduce(node, loops, collective, kind, x, y);
    case COLLECTIVE_barrier:
        node->design = DESIGN_in_line;
        return begin_call(node, describe_call(node, collective->which, EVERYONE, 0, kind));
    default:
        return node_move(node, collective, loops->itemsize, kind, x, y);
    }
}

#endif

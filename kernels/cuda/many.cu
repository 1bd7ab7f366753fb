/* One vector per rank, reduced by the expression of tree.h, which says the order of the operands:
 * compiled with OPERATION and TYPE, as operations.h names them, with PARTIAL, the type of partial
 * values (float32 for sums and products of half types, otherwise TYPE), and with OUT, the type of
 * the result (TYPE, or PARTIAL where it is to be reduced further). */
#include "arguments.h"
#include "elements.h"

#define NAME(action) JOIN(action, JOIN(OPERATION, JOIN(TYPE, OUT)))

/* Leaves of the tree that a thread reads at a time, and subtrees of so many that wait for their
 * partner: log2(MOST_ARRAYS / MANY_LEAVES). */
#define MANY_LEAVES 4
#define MANY_WAITING 3

enum { NAME(LANES) = JOIN(LANES, TYPE), NAME(PACKETS) = (int)JOIN(LANES, TYPE) / JOIN(LANES, PARTIAL) };

/* Partial values of the elements of a packet. */
typedef struct { struct packet packets[NAME(PACKETS)]; } NAME(partial);

ALWAYS_INLINE NAME(partial) NAME(partial_of)(struct packet in, int whole)
{
    NAME(partial) x;
    UNROLL
    for (int p = 0; p < NAME(PACKETS); p++) {
        if (NAME(PACKETS) == 1) {
            x.packets[p] = in;
            continue;
        }
        struct packet out = {{0, 0, 0, 0}};
        UNROLL
        for (int k = 0; k < (whole ? NAME(LANES) / NAME(PACKETS) : 1); k++)
            JOIN(set_lane, PARTIAL)(&out, k, JOIN(lane, TYPE)(&in, p * JOIN(LANES, PARTIAL) + k));
        x.packets[p] = out;
    }
    return x;
}

ALWAYS_INLINE NAME(partial) NAME(combined)(NAME(partial) left, NAME(partial) right, int whole)
{
    NAME(partial) x;
    UNROLL
    for (int p = 0; p < (whole ? NAME(PACKETS) : 1); p++) {
        struct packet out = {{0, 0, 0, 0}};
        UNROLL
        for (int k = 0; k < (whole ? JOIN(LANES, PARTIAL) : 1); k++)
            JOIN(set_result, PARTIAL)(&out, k, JOIN(OPERATION, PARTIAL)(
                JOIN(operand, PARTIAL)(&left.packets[p], k),
                JOIN(operand, PARTIAL)(&right.packets[p], k)));
        x.packets[p] = out;
    }
    return x;
}

ALWAYS_INLINE NAME(partial) NAME(tree)(const struct many_arguments *x, uint64_t i, int whole)
{
    NAME(partial) result, waiting[MANY_WAITING];
    uint32_t power = 1;
    while (2 * power <= x->source_count)
        power *= 2;
    const uint32_t extras = x->source_count - power;
    for (uint32_t leaf = 0; leaf < power; leaf += MANY_LEAVES) {
        struct packet first[MANY_LEAVES], second[MANY_LEAVES];
        NAME(partial) leaves[MANY_LEAVES];
        UNROLL
        for (uint32_t k = 0; k < MANY_LEAVES; k++) {
            /* The first leaves are pairs of sources. */
            const uint32_t source = leaf + k + (leaf + k < extras ? leaf + k : extras);
            if (leaf + k < power)
                first[k] = JOIN(load_packet, TYPE)(x->sources[source], i, whole);
            if (leaf + k < extras)
                second[k] = JOIN(load_packet, TYPE)(x->sources[source + 1], i, whole);
        }
        UNROLL
        for (uint32_t k = 0; k < MANY_LEAVES; k++)
            if (leaf + k < power) {
                leaves[k] = NAME(partial_of)(first[k], whole);
                if (leaf + k < extras)
                    leaves[k] = NAME(combined)(leaves[k], NAME(partial_of)(second[k], whole), whole);
            }
        result = leaves[0];
        if (power > 1)
            result = NAME(combined)(result, leaves[1], whole);
        if (power > 2)
            result = NAME(combined)(result, NAME(combined)(leaves[2], leaves[3], whole), whole);
        /* As a binary counter carries: where a partner waits, combine and go on. Without `break`,
         * after which the compiler would index an array in memory. */
        int carries = 1;
        UNROLL
        for (int level = 0; level < MANY_WAITING; level++) {
            const int waits = leaf / MANY_LEAVES >> level & 1;
            if (carries && waits)
                result = NAME(combined)(waiting[level], result, whole);
            else if (carries)
                waiting[level] = result;
            carries &= waits;
        }
    }
    return result;
}

ALWAYS_INLINE void NAME(store_result)(const struct many_arguments *x, NAME(partial) result,
                                      uint64_t i, int whole)
{
    const int packets = (int)JOIN(LANES, TYPE) / JOIN(LANES, OUT);
    if (x->divisor != 0) {
        UNROLL
        for (int p = 0; p < (whole ? NAME(PACKETS) : 1); p++) {
            struct packet out = {{0, 0, 0, 0}};
            UNROLL
            for (int k = 0; k < (whole ? JOIN(LANES, PARTIAL) : 1); k++)
                JOIN(set_lane, PARTIAL)(&out, k, JOIN(quotient, PARTIAL)(
                    JOIN(lane, PARTIAL)(&result.packets[p], k), x->divisor));
            result.packets[p] = out;
        }
    }
    UNROLL
    for (int q = 0; q < (whole ? packets : 1); q++) {
        struct packet out = result.packets[q];
        if (packets != NAME(PACKETS)) {
            const struct packet zeros = {{0, 0, 0, 0}};
            out = zeros;
            UNROLL
            for (int k = 0; k < (whole ? JOIN(LANES, OUT) : 1); k++)
                JOIN(set_lane, OUT)(&out, k, JOIN(lane, PARTIAL)(
                    &result.packets[k / JOIN(LANES, PARTIAL)], k % JOIN(LANES, PARTIAL)));
        }
        for (uint32_t target = 0; target < x->target_count; target++)
            JOIN(store_packet, OUT)(x->targets[target], i + q * JOIN(LANES, OUT), whole, out);
    }
}

ALWAYS_INLINE void NAME(many_units)(const struct many_arguments *x, struct split split, int whole)
{
    const uint64_t units = whole ? split.packets : split.rest;
    for (uint64_t unit = thread_number(); unit < units; unit += thread_count()) {
        const uint64_t i = start_of(split, unit, NAME(LANES), whole);
        NAME(store_result)(x, NAME(tree)(x, i, whole), i, whole);
    }
}

KERNEL(NAME(many), many_arguments)
{
    const struct split packets = split_by(arguments.sources[0], arguments.n, JOIN(ITEMSIZE, TYPE));
    int all_fit = 1;
    for (uint32_t k = 0; k < arguments.source_count; k++)
        all_fit &= fits(packets, arguments.sources[k], JOIN(ITEMSIZE, TYPE));
    for (uint32_t k = 0; k < arguments.target_count; k++)
        all_fit &= fits(packets, arguments.targets[k], JOIN(ITEMSIZE, OUT));
    const struct split split = split_if(all_fit, packets, arguments.n);
    NAME(many_units)(&arguments, split, 1);
    NAME(many_units)(&arguments, split, 0);
}

#undef NAME
#undef MANY_LEAVES
#undef MANY_WAITING

/* out = left op right, element by element. Compiled with OPERATION and TYPE, as operations.h names
 * them. */
#include "arguments.h"
#include "elements.h"

#define NAME(action) JOIN(action, JOIN(OPERATION, TYPE))

/* Packets of either operand that a thread has under way at a time. */
#define PAIR_BATCH 4

ALWAYS_INLINE struct packet NAME(pair_packets)(struct packet left, struct packet right, int whole)
{
    struct packet out = {{0, 0, 0, 0}};
    UNROLL
    for (int i = 0; i < (whole ? JOIN(LANES, TYPE) : 1); i++)
        JOIN(set_result, TYPE)(&out, i, JOIN(OPERATION, TYPE)(JOIN(operand, TYPE)(&left, i),
                                                              JOIN(operand, TYPE)(&right, i)));
    return out;
}

ALWAYS_INLINE void NAME(pair_units)(const struct pair_arguments *x, struct split split, int whole)
{
    const uint64_t step = thread_count(), units = whole ? split.packets : split.rest;
    for (uint64_t first = thread_number(); first < units; first += PAIR_BATCH * step) {
        struct packet left[PAIR_BATCH], right[PAIR_BATCH];
        UNROLL
        for (int k = 0; k < PAIR_BATCH; k++)
            if (first + k * step < units) {
                const uint64_t i = start_of(split, first + k * step, JOIN(LANES, TYPE), whole);
                left[k] = JOIN(load_packet, TYPE)(x->left, i, whole);
                right[k] = JOIN(load_packet, TYPE)(x->right, i, whole);
            }
        UNROLL
        for (int k = 0; k < PAIR_BATCH; k++)
            if (first + k * step < units) {
                const uint64_t i = start_of(split, first + k * step, JOIN(LANES, TYPE), whole);
                JOIN(store_packet, TYPE)(x->out, i, whole, NAME(pair_packets)(left[k], right[k], whole));
            }
    }
}

KERNEL(NAME(pair), pair_arguments)
{
    const int itemsize = JOIN(ITEMSIZE, TYPE);
    const struct split packets = split_by(arguments.out, arguments.n, itemsize);
    const int all_fit = fits(packets, arguments.out, itemsize)
                        && fits(packets, arguments.left, itemsize)
                        && fits(packets, arguments.right, itemsize);
    const struct split split = split_if(all_fit, packets, arguments.n);
    NAME(pair_units)(&arguments, split, 1);
    NAME(pair_units)(&arguments, split, 0);
}

#undef NAME
#undef PAIR_BATCH

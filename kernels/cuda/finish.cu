/* out = in / divisor, in the type that is computed in, converted. Compiled with IN and OUT, which
 * are one type, or a half type and float32. */
#include "arguments.h"
#include "elements.h"

#define NAME(action) JOIN(action, JOIN(IN, OUT))

enum {
    /* Elements of a unit, so that it fills packets on either side. */
    NAME(UNIT) = (int)JOIN(LANES, IN) > (int)JOIN(LANES, OUT) ? JOIN(LANES, IN) : JOIN(LANES, OUT),
    NAME(PACKETS_IN) = NAME(UNIT) / JOIN(LANES, IN),
    NAME(PACKETS_OUT) = NAME(UNIT) / JOIN(LANES, OUT),
    NAME(BATCH) = 4 / NAME(PACKETS_IN),
};

ALWAYS_INLINE void NAME(finish_unit)(const struct finish_arguments *x, uint64_t start, int whole,
                                     const struct packet *in, int divides)
{
    UNROLL
    for (int q = 0; q < (whole ? NAME(PACKETS_OUT) : 1); q++) {
        struct packet out = {{0, 0, 0, 0}};
        UNROLL
        for (int k = 0; k < (whole ? JOIN(LANES, OUT) : 1); k++) {
            const int i = q * JOIN(LANES, OUT) + k;
            JOIN(IN, value) value = JOIN(lane, IN)(&in[i / JOIN(LANES, IN)], i % JOIN(LANES, IN));
            if (divides)
                value = JOIN(quotient, IN)(value, x->divisor);
            JOIN(set_lane, OUT)(&out, k, value);
        }
        JOIN(store_packet, OUT)(x->out, start + q * JOIN(LANES, OUT), whole, out);
    }
}

ALWAYS_INLINE void NAME(finish_units)(const struct finish_arguments *x, struct split split, int whole)
{
    const uint64_t step = thread_count(), units = whole ? split.packets : split.rest;
    for (uint64_t first = thread_number(); first < units; first += NAME(BATCH) * step) {
        struct packet in[NAME(BATCH)][NAME(PACKETS_IN)];
        UNROLL
        for (int k = 0; k < NAME(BATCH); k++)
            if (first + k * step < units) {
                const uint64_t i = start_of(split, first + k * step, NAME(UNIT), whole);
                UNROLL
                for (int p = 0; p < (whole ? NAME(PACKETS_IN) : 1); p++)
                    in[k][p] = JOIN(load_packet, IN)(x->in, i + p * JOIN(LANES, IN), whole);
            }
        UNROLL
        for (int k = 0; k < NAME(BATCH); k++)
            if (first + k * step < units) {
                const uint64_t i = start_of(split, first + k * step, NAME(UNIT), whole);
                if (x->divisor != 0)
                    NAME(finish_unit)(x, i, whole, in[k], 1);
                else
                    NAME(finish_unit)(x, i, whole, in[k], 0);
            }
    }
}

KERNEL(NAME(finish), finish_arguments)
{
    const int in_size = JOIN(ITEMSIZE, IN), out_size = JOIN(ITEMSIZE, OUT);
    const struct split packets = in_size < out_size ? split_by(arguments.in, arguments.n, in_size)
                                                    : split_by(arguments.out, arguments.n, out_size);
    const int all_fit = fits(packets, arguments.in, in_size)
                        && fits(packets, arguments.out, out_size);
    const struct split split = split_if(all_fit, packets, arguments.n);
    NAME(finish_units)(&arguments, split, 1);
    NAME(finish_units)(&arguments, split, 0);
}

#undef NAME

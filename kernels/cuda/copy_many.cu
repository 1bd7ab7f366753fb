/* The bytes of the first source to every target, by the largest words whose places fit. */
#include "arguments.h"
#include "elements.h"

#define COPY_BATCH 4

#define DEFINE_COPY(word) \
    ALWAYS_INLINE void copy_by_##word(const struct many_arguments *x, uint64_t start, uint64_t stop) \
    { \
        const uint64_t words = (stop - start) / sizeof(word), step = thread_count(); \
        const word *in = (const word *)((const char *)x->sources[0] + start); \
        for (uint64_t first = thread_number(); first < words; first += COPY_BATCH * step) { \
            word loaded[COPY_BATCH]; \
            UNROLL \
            for (int k = 0; k < COPY_BATCH; k++) \
                if (first + k * step < words) \
                    loaded[k] = in[first + k * step]; \
            for (uint32_t target = 0; target < x->target_count; target++) { \
                word *out = (word *)((char *)x->targets[target] + start); \
                UNROLL \
                for (int k = 0; k < COPY_BATCH; k++) \
                    if (first + k * step < words) \
                        out[first + k * step] = loaded[k]; \
            } \
        } \
    }

typedef struct packet packet_memory;
DEFINE_COPY(packet_memory)
DEFINE_COPY(uint32_memory)
DEFINE_COPY(uint8_memory)

KERNEL(copy_many, many_arguments)
{
    const uint64_t address = (uint64_t)arguments.sources[0];
    uint64_t apart = 0;
    for (uint32_t k = 0; k < arguments.target_count; k++)
        apart |= (uint64_t)arguments.targets[k] ^ address;
    const uint64_t word = apart % PACKET_BYTES == 0 ? PACKET_BYTES : apart % 4 == 0 ? 4 : 1;
    const uint64_t before = -address % word;
    const uint64_t start = before < arguments.n ? before : arguments.n;
    const uint64_t stop = start + (arguments.n - start) / word * word;
    copy_by_uint8_memory(&arguments, 0, start);
    if (word == PACKET_BYTES)
        copy_by_packet_memory(&arguments, start, stop);
    else if (word == 4)
        copy_by_uint32_memory(&arguments, start, stop);
    else
        copy_by_uint8_memory(&arguments, start, stop);
    copy_by_uint8_memory(&arguments, stop, arguments.n);
}

/* Elements from an array of any strides to another, their bytes reversed where they are of the
 * other byte order. Compiled with ITEMSIZE: 1, 2, 4, 8 or 16. */
#include "arguments.h"
#include "elements.h"

/* 16 bytes as two words: no type that long is one number. */
#if ITEMSIZE == 16
#define WIDTH 64
#define WORDS 2
#elif ITEMSIZE == 8
#define WIDTH 64
#define WORDS 1
#elif ITEMSIZE == 4
#define WIDTH 32
#define WORDS 1
#elif ITEMSIZE == 2
#define WIDTH 16
#define WORDS 1
#else
#define WIDTH 8
#define WORDS 1
#endif

#define NAME(action) JOIN(action, ITEMSIZE)
#define OF_WIDTH(action) PASTE(action, WIDTH)
#define PASTE(a, b) PASTE_AFTER_EXPANSION(a, b)
#define PASTE_AFTER_EXPANSION(a, b) a##b

/* The bytes of each number of `swap` bytes in a word, in the other order: those of each pair change
 * places, then the pairs, then the halves. */
ALWAYS_INLINE uint64_t NAME(reversed)(uint64_t word, uint32_t swap)
{
    if (swap >= 2)
        word = (word >> 8 & 0x00ff00ff00ff00ff) | (word & 0x00ff00ff00ff00ff) << 8;
    if (swap >= 4)
        word = (word >> 16 & 0x0000ffff0000ffff) | (word & 0x0000ffff0000ffff) << 16;
    if (swap >= 8)
        word = word >> 32 | word << 32;
    return word;
}

ALWAYS_INLINE void NAME(copy_element)(const struct view_arguments *x, uint64_t i, int is_small)
{
    const char *in = (const char *)x->in;
    char *out = (char *)x->out;
    UNROLL
    for (int d = MOST_DIMENSIONS - 1; d >= 0; d--)
        if (d < (int)x->dimensions) {
            const uint64_t length = (uint64_t)x->shape[d];
            /* Division of 64 bits is slow on a GPU. */
            const uint64_t rest = is_small ? (uint32_t)i / (uint32_t)length : i / length;
            const int64_t index = (int64_t)(i - rest * length);
            in += index * x->in_strides[d];
            out += index * x->out_strides[d];
            i = rest;
        }
    UNROLL
    for (int k = 0; k < WORDS; k++) {
        const uint64_t word = OF_WIDTH(read)(in + 8 * k);
        OF_WIDTH(write)(out + 8 * k, (OF_WIDTH(bits))NAME(reversed)(word, x->swap));
    }
}

KERNEL(NAME(view), view_arguments)
{
    if (arguments.n <= 0xffffffff)
        for (uint64_t i = thread_number(); i < arguments.n; i += thread_count())
            NAME(copy_element)(&arguments, i, 1);
    else
        for (uint64_t i = thread_number(); i < arguments.n; i += thread_count())
            NAME(copy_element)(&arguments, i, 0);
}

#undef WIDTH
#undef WORDS
#undef NAME
#undef OF_WIDTH
#undef PASTE
#undef PASTE_AFTER_EXPANSION

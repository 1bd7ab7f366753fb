/* How the threads of a launch share the elements of arrays. */
#ifndef HPCCOLL_CUDA_THREADS_H
#define HPCCOLL_CUDA_THREADS_H

#include "../portable.h"

/* Most threads of a block; hpccoll/cuda/kernels.py launches as many. */
#define BLOCK_THREADS 256

/* Tests, which run these files on the CPU, have a KERNEL of their own. */
#ifndef KERNEL
#define KERNEL(name, arguments_type) \
    extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) \
    name(const __grid_constant__ struct arguments_type arguments)
#endif

#define JOIN_AFTER_EXPANSION(a, b) a##_##b
#define JOIN(a, b) JOIN_AFTER_EXPANSION(a, b)

ALWAYS_INLINE uint64_t thread_number(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

ALWAYS_INLINE uint64_t thread_count(void)
{
    return (uint64_t)gridDim.x * blockDim.x;
}

/* An array as elements before an address that packets may start at, packets, and elements behind
 * the last whole one. The elements outside of packets are counted through. */
struct split {
    uint64_t head, packets, rest;
};

enum { PACKET_BYTES = 16 };

/* By one array, the one with the smallest elements if they differ. */
ALWAYS_INLINE struct split split_by(const void *array, uint64_t n, int itemsize)
{
    const uint64_t before = -(uint64_t)array % PACKET_BYTES;
    struct split split = {before / itemsize, 0, n};
    if (before % itemsize == 0 && split.head <= n) {
        split.packets = (n - split.head) * itemsize / PACKET_BYTES;
        split.rest = n - split.packets * PACKET_BYTES / itemsize;
    }
    return split;
}

/* Whether packets may start there in another array too. */
ALWAYS_INLINE int fits(struct split split, const void *array, int itemsize)
{
    return ((uint64_t)array + split.head * itemsize) % PACKET_BYTES == 0;
}

/* Element by element where they may not. */
ALWAYS_INLINE struct split split_if(int all_fit, struct split split, uint64_t n)
{
    const struct split elements = {0, 0, n};
    return all_fit ? split : elements;
}

/* Where unit number `unit` starts: of the packets of that many elements, or of the other elements. */
ALWAYS_INLINE uint64_t start_of(struct split split, uint64_t unit, int lanes, int whole)
{
    if (whole)
        return split.head + unit * lanes;
    return unit < split.head ? unit : unit + split.packets * lanes;
}

#endif

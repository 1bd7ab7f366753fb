/* What the GPU kernels are called with: each takes one of these by value, as its only parameter.
 * hpccoll/cuda/kernel_arguments.py has the same in Python. */
#ifndef HPCCOLL_CUDA_ARGUMENTS_H
#define HPCCOLL_CUDA_ARGUMENTS_H

#include "../portable.h"

enum { MOST_ARRAYS = 32, MOST_DIMENSIONS = 8 };

/* out[i] = left[i] op right[i]; `out` may be `left`, or `right`, or apart from both. */
struct pair_arguments {
    void *out;
    const void *left, *right;
    uint64_t n;
};

/* out[i] = in[i] / divisor, converted; 0 for no division. `out` may be `in` where both are of one
 * type. */
struct finish_arguments {
    void *out;
    const void *in;
    uint64_t n;
    double divisor;
};

/* The expression of tree.h over the sources, divided, to every target. A target may be a source of
 * its type. */
struct many_arguments {
    const void *sources[MOST_ARRAYS];
    void *targets[MOST_ARRAYS];
    uint64_t n;
    double divisor;
    uint32_t source_count, target_count;
};

/* Elements between arrays of one shape, of any strides (in bytes). `swap`: bytes per number, where
 * their order is to be reversed; 0 where it is not. */
struct view_arguments {
    void *out;
    const void *in;
    uint64_t n;
    int64_t shape[MOST_DIMENSIONS], out_strides[MOST_DIMENSIONS], in_strides[MOST_DIMENSIONS];
    uint32_t dimensions, swap;
};

#endif

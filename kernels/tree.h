/* The sum (or whatever the operation is) of one vector per rank, block by block: every input is read
 * once, and what is not finished stays in the first-level cache.
 *
 * The expression is that of recursive doubling: with 2^m the largest power of two that is not above
 * the number of inputs, the first inputs pair up until 2^m operands remain, and these are combined in
 * a balanced tree, neighbours first. It is the same for all sizes and all ways through a node, so
 * that no choice between them changes a bit. hpccoll.schedule.Fold says the same in Python. */
#ifndef HPCCOLL_TREE_H
#define HPCCOLL_TREE_H

#include <stddef.h>
#include <string.h>

/* The loops of one operation on one type; what is NULL is not needed. */
struct loops {
    void (*reduce)(void *out, const void *left, const void *right, size_t n);
    void (*divide)(void *x, double divisor, size_t n);
    void (*widen)(void *out, const void *x, size_t n);
    void (*narrow)(void *out, const void *x, size_t n);
    double divisor;
    size_t itemsize;
    size_t partial_itemsize;
};

/* Bytes per element of the result: without `narrow`, what was widened stays so. */
static size_t result_itemsize(const struct loops *loops)
{
    return loops->narrow ? loops->itemsize : loops->partial_itemsize;
}

enum {
    BLOCK_BYTES = 8192,
    /* Operands that wait for their partner, at most one per level of the tree, and one more. */
    MOST_LEVELS = 24,
};

/* Reduce `n` elements, a block at most, from `start` on. `out` may be one of the inputs. `memory`
 * has room for MOST_LEVELS blocks. */
static void reduce_block(const struct loops *loops, const char *const *inputs, int size,
                         size_t start, size_t n, char *out, char *memory)
{
    const size_t offset = start * loops->itemsize;
    const char *stack[MOST_LEVELS];
    int height = 0, power = 1, input = 0;
    while (2 * power <= size)
        power *= 2;
    const int extras = size - power;
    for (int leaf = 0; leaf < power; leaf++) {
        /* A leaf is one input, or a pair of them; each further one combines two operands. */
        int pending = leaf < extras ? 2 : 1;
        for (; pending; pending--) {
            const char *operand = inputs[input++] + offset;
            if (loops->widen) {
                char *wide = memory + (size_t)height * BLOCK_BYTES;
                loops->widen(wide, operand, n);
                operand = wide;
            }
            stack[height++] = operand;
        }
        int merges = leaf < extras;
        for (int bits = leaf; bits & 1; bits >>= 1)
            merges++;
        for (; merges; merges--) {
            height--;
            const int last = input == size && height == 1;
            char *result = last && !loops->narrow ? out
                           : memory + (size_t)(height - 1) * BLOCK_BYTES;
            loops->reduce(result, stack[height - 1], stack[height], n);
            stack[height - 1] = result;
        }
    }
    char *result = (char *)stack[0];
    if (size == 1 && !loops->narrow) {
        if (result != out)
            memmove(out, result, n * result_itemsize(loops));
        result = out;
    }
    if (loops->divide)
        loops->divide(result, loops->divisor, n);
    if (loops->narrow)
        loops->narrow(out, result, n);
}

/* Reduce the elements [start, stop) of the inputs into those of the outputs: the first output gets the
 * result, the others a copy while it is in cache. An output may be an input. */
static void reduce_range(const struct loops *loops, const char *const *inputs, int size,
                         size_t start, size_t stop, char *const *outputs, int output_count,
                         char *memory)
{
    const size_t block = BLOCK_BYTES / loops->partial_itemsize;
    for (; start < stop; start += block) {
        const size_t n = stop - start < block ? stop - start : block;
        const size_t offset = start * result_itemsize(loops);
        reduce_block(loops, inputs, size, start, n, outputs[0] + offset, memory);
        for (int k = 1; k < output_count; k++)
            memcpy(outputs[k] + offset, outputs[0] + offset, n * result_itemsize(loops));
    }
}

#endif

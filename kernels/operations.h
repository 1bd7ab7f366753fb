/* What there is to reduce: the operations, the element types, and what each operation does to two
 * elements, `a` (left) and `b` (right). Loops, CPU targets, GPU kernels, tables and the names that
 * Python sees follow from the lists in this file. */
#ifndef HPCCOLL_OPERATIONS_H
#define HPCCOLL_OPERATIONS_H

#include "half.h"
#include "portable.h"

/* X(operation), in the order of hpccoll._kernels.OPERATIONS. */
#define OPERATIONS(X) \
    X(sum) X(prod) X(min) X(max) X(fmin) X(fmax) X(land) X(lor) X(lxor) X(band) X(bor) X(bxor)

/* X(type, NumPy's name of the dtype, bytes per element), in the order of hpccoll._kernels.TYPES.
 * `boolean` is spelled out because stdbool.h makes `bool` a macro. */
#define TYPES(X) \
    X(boolean, "bool", 1) \
    X(int8, "int8", 1) X(int16, "int16", 2) X(int32, "int32", 4) X(int64, "int64", 8) \
    X(uint8, "uint8", 1) X(uint16, "uint16", 2) X(uint32, "uint32", 4) X(uint64, "uint64", 8) \
    X(float16, "float16", 2) X(bfloat16, "bfloat16", 2) \
    X(float32, "float32", 4) X(float64, "float64", 8) \
    X(complex64, "complex64", 8) X(complex128, "complex128", 16)

/* X(layout, type, operation, result from a and b): every reduction there is. The layout says how
 * elements lie in memory, and so which shape of loop_shapes.h the loop has. float32 comes before
 * the types that are built on it. */
#define REDUCTIONS(X) \
    BOOLEAN_REDUCTIONS(X, boolean, boolean) \
    INTEGER_REDUCTIONS(X, plain, int8) \
    INTEGER_REDUCTIONS(X, plain, int16) \
    INTEGER_REDUCTIONS(X, plain, int32) \
    INTEGER_REDUCTIONS(X, plain, int64) \
    INTEGER_REDUCTIONS(X, plain, uint8) \
    INTEGER_REDUCTIONS(X, plain, uint16) \
    INTEGER_REDUCTIONS(X, plain, uint32) \
    INTEGER_REDUCTIONS(X, plain, uint64) \
    FLOAT_REDUCTIONS(X, plain, grouped, float32, float32) \
    FLOAT_REDUCTIONS(X, plain, grouped, float64, float64) \
    FLOAT_REDUCTIONS(X, half, half, float16, float32) \
    FLOAT_REDUCTIONS(X, two_halves, two_halves, bfloat16, float32) \
    COMPLEX_REDUCTIONS(X, complex, complex64, float32) \
    COMPLEX_REDUCTIONS(X, complex, complex128, float64)

/* A boolean is loaded as 0 or 1, so bits and truth are one. */
#define BOOLEAN_REDUCTIONS(X, layout, type) \
    X(layout, type, min, a & b) \
    X(layout, type, max, a | b) \
    X(layout, type, fmin, a & b) \
    X(layout, type, fmax, a | b) \
    X(layout, type, land, a & b) \
    X(layout, type, lor, a | b) \
    X(layout, type, lxor, a ^ b) \
    X(layout, type, band, a & b) \
    X(layout, type, bor, a | b) \
    X(layout, type, bxor, a ^ b)

/* Sums and products wrap: computed unsigned, since signed overflow is undefined in C. The compiler
 * narrows the arithmetic to the width of the type. */
#define INTEGER_REDUCTIONS(X, layout, type) \
    X(layout, type, sum, (uint64_t)a + (uint64_t)b) \
    X(layout, type, prod, (uint64_t)a * (uint64_t)b) \
    X(layout, type, min, a < b ? a : b) \
    X(layout, type, max, a > b ? a : b) \
    X(layout, type, fmin, a < b ? a : b) \
    X(layout, type, fmax, a > b ? a : b) \
    X(layout, type, land, (a != 0) & (b != 0)) \
    X(layout, type, lor, (a != 0) | (b != 0)) \
    X(layout, type, lxor, (a != 0) ^ (b != 0)) \
    X(layout, type, band, a & b) \
    X(layout, type, bor, a | b) \
    X(layout, type, bxor, a ^ b)

/* `real` is the type computed in. NaN counts as true. */
#define FLOAT_REDUCTIONS(X, layout, arithmetic_layout, type, real) \
    X(arithmetic_layout, type, sum, one_nan_##real(a + b)) \
    X(arithmetic_layout, type, prod, one_nan_##real(a * b)) \
    X(layout, type, min, min_of_##real(a, b)) \
    X(layout, type, max, max_of_##real(a, b)) \
    X(layout, type, fmin, min_of_##real(unless_nan_##real(a, b), unless_nan_##real(b, a))) \
    X(layout, type, fmax, max_of_##real(unless_nan_##real(a, b), unless_nan_##real(b, a))) \
    X(layout, type, land, (a != 0) & (b != 0)) \
    X(layout, type, lor, (a != 0) | (b != 0)) \
    X(layout, type, lxor, (a != 0) ^ (b != 0))

/* The sum of the parts is that of twice as many real numbers. */
#define COMPLEX_REDUCTIONS(X, layout, type, real) \
    X(pair_of_##real, type, sum, ) \
    X(layout, type, prod, complex_of_##real(one_nan_##real(a.re * b.re - a.im * b.im), \
                                         one_nan_##real(a.re * b.im + a.im * b.re))) \
    X(layout, type, land, complex_of_##real(IS_TRUE(a) & IS_TRUE(b), 0)) \
    X(layout, type, lor, complex_of_##real(IS_TRUE(a) | IS_TRUE(b), 0)) \
    X(layout, type, lxor, complex_of_##real(IS_TRUE(a) ^ IS_TRUE(b), 0))

#define IS_TRUE(z) (((z).re != 0) | ((z).im != 0))

/* Elements. TYPE_memory is what lies in an array, TYPE_value what is computed with. */
#define DEFINE_TYPE(type, in_memory, value) \
    typedef value type##_value; \
    typedef in_memory type##_memory IN_MEMORY;

#define DEFINE_PAIR(pair, type, real) \
    typedef struct { real re, im; } pair; \
    ALWAYS_INLINE pair complex_of_##type(real re, real im) \
    { \
        const pair z = {re, im}; \
        return z; \
    }

DEFINE_PAIR(float_pair, float32, float)
DEFINE_PAIR(double_pair, float64, double)

DEFINE_TYPE(boolean, uint8_t, uint8_t)
DEFINE_TYPE(int8, int8_t, int8_t)
DEFINE_TYPE(int16, int16_t, int16_t)
DEFINE_TYPE(int32, int32_t, int32_t)
DEFINE_TYPE(int64, int64_t, int64_t)
DEFINE_TYPE(uint8, uint8_t, uint8_t)
DEFINE_TYPE(uint16, uint16_t, uint16_t)
DEFINE_TYPE(uint32, uint32_t, uint32_t)
DEFINE_TYPE(uint64, uint64_t, uint64_t)
DEFINE_TYPE(float16, uint16_t, float)
DEFINE_TYPE(bfloat16, uint16_t, float)
DEFINE_TYPE(float32, float, float)
DEFINE_TYPE(float64, double, double)
DEFINE_TYPE(complex64, float, float_pair)
DEFINE_TYPE(complex128, double, double_pair)

/* Any byte but 0 is true; what is stored is 0 or 1. */
#define load_boolean(array, i) ((array)[i] != 0)
#define store_boolean(array, i, value) (array)[i] = (value)

#define load_plain(array, i) (array)[i]
#define store_plain(array, i, value) (array)[i] = (value)
#define load_grouped load_plain
#define store_grouped store_plain

#define load_complex(array, i) {(array)[2 * (i)], (array)[2 * (i) + 1]}
#define store_complex(array, i, value) \
    ((array)[2 * (i)] = (value).re, (array)[2 * (i) + 1] = (value).im)

/* A result that is not a number is always the same NaN, NumPy's. Otherwise it would be up to the
 * compiler which operand's NaN comes out of a + b: it swaps the operands as it likes, in one loop
 * this way and in the next the other. Ranks must not differ in that either.
 *
 * min and max are symmetric to the last bit, so the order in which ranks meet does not matter: any
 * NaN among the operands gives that NaN, and -0 counts as less than +0. The latter takes no look at
 * zeros: the greater of two numbers is negative where both are, the lesser where either is.
 *
 * More than one choice is made with masks, since the branches that `?:` may become then stop
 * vectorization, or blow up what it gives. */
#define DEFINE_FLOAT_HELPERS(type, real, width) \
    ALWAYS_INLINE real pick_##type(int condition, type##_bits yes, type##_bits no) \
    { \
        const uint##width##_t mask = -(uint##width##_t)condition; \
        return type##_of_bits((yes.bits & mask) | (no.bits & ~mask)); \
    } \
    ALWAYS_INLINE real unless_nan_##type(real x, real instead) \
    { \
        const type##_bits yes = {instead}, no = {x}; \
        return pick_##type(IS_NAN(x), yes, no); \
    } \
    ALWAYS_INLINE real one_nan_##type(real x) \
    { \
        return IS_NAN(x) ? (real)NAN : x; \
    } \
    ALWAYS_INLINE real min_of_##type(real a, real b) \
    { \
        const type##_bits left = {a}, sign = {-(real)0}, nan = {NAN}; \
        type##_bits lesser = {a < b ? a : b}; \
        lesser.bits |= left.bits & sign.bits; \
        return pick_##type(ARE_UNORDERED(a, b), nan, lesser); \
    } \
    ALWAYS_INLINE real max_of_##type(real a, real b) \
    { \
        const type##_bits left = {a}, sign = {-(real)0}, nan = {NAN}; \
        type##_bits greater = {a > b ? a : b}; \
        greater.bits &= left.bits | ~sign.bits; \
        return pick_##type(ARE_UNORDERED(a, b), nan, greater); \
    }

DEFINE_FLOAT_HELPERS(float32, float, 32)
DEFINE_FLOAT_HELPERS(float64, double, 64)

#endif

/* float16 and bfloat16 to and from float32, one element at a time, in arithmetic that compilers
 * turn into vector instructions: no branch, no table. Rounding is to nearest, ties to even. A NaN
 * stays a NaN of the same sign, and a float16 NaN and whatever is narrowed becomes a quiet one. For
 * float16 the results equal those of the F16C instructions, bit for bit. */
#ifndef HPCCOLL_HALF_H
#define HPCCOLL_HALF_H

#include "portable.h"

/* `yes` or `no`, without the branch that `?:` may become, which stops vectorization. */
ALWAYS_INLINE uint32_t pick(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

/* Both formats are sign, exponent, fraction; the exponent of float16 counts from -15, that of
 * float32 from -127. A float16 moved up by 13 bits lines up with a float32. */
#define EXPONENT(power) ((uint32_t)(127 + (power)) << 23)
#define REBIAS ((uint32_t)(127 - 15) << 23)

ALWAYS_INLINE float float32_of_float16(uint16_t half)
{
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    /* Subnormal: fraction * 2^-24, without the hidden 1 of normal numbers. Read it with one, as
     * 2^-14 + fraction * 2^-24, and take the 2^-14 away, which is exact. */
    const float smallest_normal = float32_of_bits(EXPONENT(-14));
    const float subnormal = float32_of_bits(EXPONENT(-14) + magnitude) - smallest_normal;
    const uint32_t finite = pick(magnitude < 0x400 << 13, bits_of_float32(subnormal),
                                 magnitude + REBIAS);
    const uint32_t quiet = pick(magnitude > 0x7c00 << 13, 0x400000, 0);
    const uint32_t special = 0x7f800000 | magnitude | quiet;
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    return float32_of_bits(sign | pick(magnitude >= 0x7c00 << 13, special, finite));
}

ALWAYS_INLINE uint16_t float16_of_float32(float x)
{
    const uint32_t bits = bits_of_float32(x);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    /* Compared as signed numbers, which all instruction sets can. */
    const int32_t size = (int32_t)magnitude;
    /* Below 2^-14 a float16 counts in steps of 2^-24. So does a float32 between 0.5 and 1: adding
     * 0.5 rounds to such a step. */
    const float stepped = float32_of_bits(magnitude) + 0.5f;
    const uint32_t subnormal = bits_of_float32(stepped) - bits_of_float32(0.5f);
    /* Add just under half of the last place, and a little more where that place is odd: what needs
     * rounding up carries. From 65520 upwards the carry leads to infinity. */
    const uint32_t odd = magnitude >> 13 & 1;
    const uint32_t normal = (magnitude - REBIAS + 0xfff + odd) >> 13;
    const uint32_t finite = pick(size < (int32_t)EXPONENT(-14), subnormal, normal);
    const uint32_t not_a_number = 0x7e00 | (magnitude >> 13 & 0x3ff);
    const uint32_t special = pick(size > 0x7f800000, not_a_number, 0x7c00);
    return (uint16_t)(sign | pick(size >= (int32_t)EXPONENT(16), special, finite));
}

ALWAYS_INLINE float float32_of_bfloat16(uint16_t half)
{
    return float32_of_bits((uint32_t)half << 16);
}

ALWAYS_INLINE uint16_t bfloat16_of_float32(float x)
{
    const uint32_t bits = bits_of_float32(x);
    const uint32_t odd = bits >> 16 & 1;
    const uint32_t rounded = (bits + 0x7fff + odd) >> 16;
    const uint32_t not_a_number = (bits >> 16 & 0x8000) | 0x7fc0;
    return (uint16_t)pick(x != x, not_a_number, rounded);
}

/* Two bfloat16 in one word, wherever each lies: one is the upper half as it stands, the other the
 * lower half moved up. So a loop over words needs no packing and unpacking. */
ALWAYS_INLINE float upper_bfloat16(uint32_t word)
{
    return float32_of_bits(word & 0xffff0000);
}

ALWAYS_INLINE float lower_bfloat16(uint32_t word)
{
    return float32_of_bits(word << 16);
}

/* As the upper half of a word, the lower half cleared; `x` is no NaN but NumPy's, whose lower half
 * is 0, so that rounding leaves it alone. */
ALWAYS_INLINE uint32_t rounded_to_upper(float x)
{
    const uint32_t bits = bits_of_float32(x);
    const uint32_t odd = bits >> 16 & 1;
    return (bits + 0x7fff + odd) & 0xffff0000;
}

#endif

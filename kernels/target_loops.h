/* All loops for one CPU target, and the table of them. reduce_loops.h includes this file once per
 * target, with
 *
 *     TARGET               the target's name, part of the name of every function
 *     TARGET_ATTRIBUTE     tells the compiler which instructions it may use
 *     TARGET_GROUP_LOOP    the shape of sums and products of float32 and float64
 *     TARGET_HAS_F16C      1 where they include those that convert float16 */

WIDEN_LOOP(bfloat16)
NARROW_LOOP(bfloat16)

#if TARGET_HAS_F16C

FUNCTION NAME(widen, float16)(void *out, const void *in, size_t n)
{
    float32_memory *o = out;
    const float16_memory *x = in;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(x + i));
        _mm256_storeu_ps((float *)(o + i), _mm256_cvtph_ps(halves));
    }
    for (; i < n; i++)
        o[i] = float32_of_float16(x[i]);
}

FUNCTION NAME(narrow, float16)(void *out, const void *in, size_t n)
{
    float16_memory *o = out;
    const float32_memory *x = in;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 values = _mm256_loadu_ps((const float *)(x + i));
        _mm_storeu_si128((__m128i *)(o + i), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++)
        o[i] = float16_of_float32(x[i]);
}

#else

WIDEN_LOOP(float16)
NARROW_LOOP(float16)

#endif

REDUCTIONS(LOOP)

DIVIDE_LOOP(float32)
DIVIDE_LOOP(float64)
DIVIDE_PARTS_LOOP(complex64)
DIVIDE_PARTS_LOOP(complex128)
DIVIDE_BLOCK_LOOP(float16)
DIVIDE_BLOCK_LOOP(bfloat16)

static const struct target_loops JOIN(loops, of, TARGET) = {
    .reduce = {REDUCTIONS(REDUCE_ENTRY)},
    .divide = {ENTRY(divide, float16), ENTRY(divide, bfloat16), ENTRY(divide, float32),
               ENTRY(divide, float64), ENTRY(divide, complex64), ENTRY(divide, complex128)},
    .widen = {ENTRY(widen, float16), ENTRY(widen, bfloat16)},
    .narrow = {ENTRY(narrow, float16), ENTRY(narrow, bfloat16)},
};

/* Free for the next target. */
#undef TARGET
#undef TARGET_ATTRIBUTE
#undef TARGET_GROUP_LOOP
#undef TARGET_HAS_F16C

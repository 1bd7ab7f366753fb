/* All loops for one CPU target. reduce_loops.h includes this file once per target, with
 *
 *     TARGET               the target's name, part of the name of every function
 *     TARGET_ATTRIBUTE     tells the compiler which instructions it may use
 *     TARGET_HAS_F16C      1 where the conversion instructions for float16 are among them
 *     TARGET_GROUPS_SUMS   1 where sums go by groups of AVX vectors, see below
 *
 * In every loop `out` may be exactly one of the operands, or both, or apart from them: element i of
 * the result depends on element i of the operands only. INDEPENDENT tells the compiler so; without
 * it loops run one element at a time where `out` is an operand. */

#define NAME(operation, type) JOIN(operation, type, TARGET)
#define FUNCTION TARGET_ATTRIBUTE static void

#define ELEMENT_LOOP(layout, type, operation, result) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        type##_memory *o = out; \
        const type##_memory *l = left, *r = right; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) { \
            const type##_value a = load_##layout(l, i); \
            const type##_value b = load_##layout(r, i); \
            const type##_value c = result; \
            store_##layout(o, i, c); \
        } \
    }

/* bfloat16, two elements at a time. */
#define PAIR_LOOP(layout, type, operation, result) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        uint32_memory *o = out; \
        const uint32_memory *l = left, *r = right; \
        INDEPENDENT \
        for (size_t i = 0; i < n / 2; i++) { \
            const uint32_t left_word = l[i], right_word = r[i]; \
            uint32_t upper, lower; \
            { \
                const float a = upper_##type(left_word), b = upper_##type(right_word); \
                upper = rounded_to_upper(result); \
            } \
            { \
                const float a = lower_##type(left_word), b = lower_##type(right_word); \
                lower = rounded_to_upper(result); \
            } \
            o[i] = upper | lower >> 16; \
        } \
        if (n % 2) { \
            type##_memory *last = (type##_memory *)out + n - 1; \
            const float a = load_##type((const type##_memory *)left, n - 1); \
            const float b = load_##type((const type##_memory *)right, n - 1); \
            *last = rounded_to_upper(result) >> 16; \
        } \
    }

#define WIDEN_LOOP(type) \
    FUNCTION NAME(widen, type)(void *out, const void *in, size_t n) \
    { \
        float32_memory *o = out; \
        const type##_memory *x = in; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) \
            o[i] = load_##type(x, i); \
    }

#define NARROW_LOOP(type) \
    FUNCTION NAME(narrow, type)(void *out, const void *in, size_t n) \
    { \
        type##_memory *o = out; \
        const float32_memory *x = in; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) \
            store_##type(o, i, x[i]); \
    }

#define DIVIDE_LOOP(layout, type, real) \
    FUNCTION NAME(divide, type)(void *in_place, double divisor, size_t n) \
    { \
        type##_memory *x = in_place; \
        const real##_value d = (real##_value)divisor; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) { \
            const type##_value a = load_##layout(x, i); \
            store_##layout(x, i, one_nan_##real(a / d)); \
        } \
    }

#define DIVIDE_COMPLEX_LOOP(type, real) \
    FUNCTION NAME(divide, type)(void *in_place, double divisor, size_t n) \
    { \
        NAME(divide, real)(in_place, divisor, 2 * n); \
    }

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

/* The conversion instructions take whole vectors, and compilers do not fit them into a loop over
 * elements. So: widen a block that stays in the first-level cache, treat it as float32, narrow. */
#define HALF_BLOCK ((size_t)512)

#define BLOCK_LOOP(type, operation) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        float a[HALF_BLOCK], b[HALF_BLOCK]; \
        type##_memory *o = out; \
        const type##_memory *l = left, *r = right; \
        for (size_t start = 0; start < n; start += HALF_BLOCK) { \
            const size_t count = n - start < HALF_BLOCK ? n - start : HALF_BLOCK; \
            NAME(widen, type)(a, l + start, count); \
            NAME(widen, type)(b, r + start, count); \
            NAME(operation, float32)(a, a, b, count); \
            NAME(narrow, type)(o + start, a, count); \
        } \
    }

#define DIVIDE_BLOCK_LOOP(type) \
    FUNCTION NAME(divide, type)(void *in_place, double divisor, size_t n) \
    { \
        float a[HALF_BLOCK]; \
        type##_memory *x = in_place; \
        for (size_t start = 0; start < n; start += HALF_BLOCK) { \
            const size_t count = n - start < HALF_BLOCK ? n - start : HALF_BLOCK; \
            NAME(widen, type)(a, x + start, count); \
            NAME(divide, float32)(a, divisor, count); \
            NAME(narrow, type)(x + start, a, count); \
        } \
    }

#define LOOP_float16(layout, type, operation, result) BLOCK_LOOP(type, operation)
#define DIVIDE_FLOAT16_LOOP DIVIDE_BLOCK_LOOP(float16)

#else

WIDEN_LOOP(float16)
NARROW_LOOP(float16)
#define LOOP_float16 ELEMENT_LOOP
#define DIVIDE_FLOAT16_LOOP DIVIDE_LOOP(float16, float16, float32)

#endif

#if TARGET_GROUPS_SUMS

/* Sums of float32 and float64 are what most calls are for, and looking at each for NaN costs 5 % of
 * their time. So look at a group of vectors at once, and go by elements where there is a NaN. */
#define GROUPED_SUM(type, vector, kind) \
    ELEMENT_LOOP(plain, type, sum_by_element, one_nan_##type(a + b)) \
    FUNCTION NAME(sum, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        enum { LANES = sizeof(vector) / sizeof(type##_value), GROUP = 8 * LANES }; \
        type##_value *o = out; \
        const type##_value *l = left, *r = right; \
        size_t i = 0; \
        for (; i + GROUP <= n; i += GROUP) { \
            vector sum[8], nan = _mm256_setzero_##kind(); \
            for (int k = 0; k < 8; k++) \
                sum[k] = _mm256_add_##kind(_mm256_loadu_##kind(l + i + k * LANES), \
                                           _mm256_loadu_##kind(r + i + k * LANES)); \
            for (int k = 0; k < 8; k += 2) \
                nan = _mm256_or_##kind(nan, _mm256_cmp_##kind(sum[k], sum[k + 1], _CMP_UNORD_Q)); \
            if (_mm256_movemask_##kind(nan)) { \
                NAME(sum_by_element, type)(o + i, l + i, r + i, GROUP); \
                continue; \
            } \
            for (int k = 0; k < 8; k++) \
                _mm256_storeu_##kind(o + i + k * LANES, sum[k]); \
        } \
        NAME(sum_by_element, type)(o + i, l + i, r + i, n - i); \
    }
#define LOOP_float32_sum(layout, type, operation, result) GROUPED_SUM(float32, __m256, ps)
#define LOOP_float64_sum(layout, type, operation, result) GROUPED_SUM(float64, __m256d, pd)

#else
#define LOOP_float32_sum ELEMENT_LOOP
#define LOOP_float64_sum ELEMENT_LOOP
#endif

#define PARTS_LOOP(real, type, operation) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        NAME(operation, real)(out, left, right, 2 * n); \
    }
#define LOOP_pair_of_float32(layout, type, operation, result) PARTS_LOOP(float32, type, operation)
#define LOOP_pair_of_float64(layout, type, operation, result) PARTS_LOOP(float64, type, operation)

#define LOOP_boolean ELEMENT_LOOP
#define LOOP_plain ELEMENT_LOOP
#define LOOP_bfloat16 PAIR_LOOP
#define LOOP_complex ELEMENT_LOOP
#define LOOP(layout, type, operation, result) LOOP_##layout(layout, type, operation, result)
REDUCTIONS(LOOP)

DIVIDE_LOOP(plain, float32, float32)
DIVIDE_LOOP(plain, float64, float64)
DIVIDE_FLOAT16_LOOP
DIVIDE_LOOP(bfloat16, bfloat16, float32)
DIVIDE_COMPLEX_LOOP(complex64, float32)
DIVIDE_COMPLEX_LOOP(complex128, float64)

#define REDUCE_ENTRY(layout, type, operation, result) \
    [OPERATION_##operation][TYPE_##type] = NAME(operation, type),
#define ENTRY(action, type) [TYPE_##type] = NAME(action, type)

static const struct target_loops JOIN(loops, of, TARGET) = {
    .reduce = {REDUCTIONS(REDUCE_ENTRY)},
    .divide = {ENTRY(divide, float16), ENTRY(divide, bfloat16), ENTRY(divide, float32),
               ENTRY(divide, float64), ENTRY(divide, complex64), ENTRY(divide, complex128)},
    .widen = {ENTRY(widen, float16), ENTRY(widen, bfloat16)},
    .narrow = {ENTRY(narrow, float16), ENTRY(narrow, bfloat16)},
};

/* Free for the next target. */
#undef NAME
#undef FUNCTION
#undef ELEMENT_LOOP
#undef PAIR_LOOP
#undef WIDEN_LOOP
#undef NARROW_LOOP
#undef DIVIDE_LOOP
#undef DIVIDE_COMPLEX_LOOP
#undef HALF_BLOCK
#undef BLOCK_LOOP
#undef DIVIDE_BLOCK_LOOP
#undef LOOP_float16
#undef DIVIDE_FLOAT16_LOOP
#undef LOOP_boolean
#undef LOOP_plain
#undef LOOP_bfloat16
#undef LOOP_complex
#undef LOOP
#undef REDUCE_ENTRY
#undef ENTRY
#undef TARGET
#undef TARGET_ATTRIBUTE
#undef TARGET_HAS_F16C

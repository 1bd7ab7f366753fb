/* The shapes of loops, as macros that write one function for the CPU target at hand: TARGET and
 * TARGET_ATTRIBUTE are looked up where a macro is used, in target_loops.h.
 *
 * In every reduction `out` may be exactly one of the operands, or both, or apart from them: element
 * i of the result depends on element i of the operands only. INDEPENDENT tells the compiler so;
 * without it loops go one element at a time where `out` is an operand. */
#ifndef HPCCOLL_LOOP_SHAPES_H
#define HPCCOLL_LOOP_SHAPES_H

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define JOIN_AFTER_EXPANSION(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_AFTER_EXPANSION(a, b, c)
#define NAME(operation, type) JOIN(operation, type, TARGET)
#define FUNCTION TARGET_ATTRIBUTE static void

/* Which shape belongs to which layout in the lists of operations.h. */
#define LOOP(layout, type, operation, result) LOOP_##layout(layout, type, operation, result)
#define LOOP_boolean ELEMENT_LOOP
#define LOOP_plain ELEMENT_LOOP
#define LOOP_complex ELEMENT_LOOP
#define LOOP_grouped TARGET_GROUP_LOOP
#define LOOP_pair_of_float32 PARTS_LOOP
#define LOOP_pair_of_float64 PARTS_LOOP
#define LOOP_half BLOCK_LOOP
#define LOOP_two_halves WORD_LOOP

/* Element by element. */
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

/* Complex numbers as twice as many real ones. */
#define PARTS_LOOP(layout, type, operation, result) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        NAME(operation, PART_OF_##type)(out, left, right, 2 * n); \
    }
#define PART_OF_complex64 float32
#define PART_OF_complex128 float64

/* Sums and products of float32 and float64, which most calls are for. To look at each result for
 * NaN would cost 7 % of the time in cache: this looks at eight vectors at once, and again at their
 * elements where there is a NaN. One operand is fetched ahead of the processor's own foresight.
 * Measured on Zen 1: in cache to fetch the one to keep pays (5 %), the one to overwrite costs; from
 * memory it is the other way round (10 %; nothing in huge pages), and to fetch both costs up to
 * 15 %. */
#define FETCH_AHEAD 768
#define FROM_MEMORY ((size_t)4 << 20)

#define GROUP_LOOP(layout, type, operation, result) \
    FUNCTION NAME(operation##_one_nan, type)(type##_memory *x, size_t n) \
    { \
        for (size_t i = 0; i < n; i++) \
            x[i] = one_nan_##type(x[i]); \
    } \
    ELEMENT_LOOP(plain, type, operation##_by_element, result) \
    FUNCTION NAME(operation, type)(void *out, const void *left, const void *right, size_t n) \
    { \
        enum { LANES = 32 / sizeof(type##_value), GROUP = 8 * LANES }; \
        type##_memory *o = out; \
        const type##_memory *l = left, *r = right; \
        const int from_memory = n * sizeof(type##_value) >= FROM_MEMORY; \
        const type##_memory *fetched = from_memory == (out == right) ? right : left; \
        size_t i = 0; \
        for (; i + GROUP <= n; i += GROUP) { \
            avx_##type results[8], nan = AVX(setzero, type)(); \
            for (int k = 0; k < GROUP; k += 64 / sizeof(type##_value)) \
                _mm_prefetch((const char *)(fetched + i + k) + FETCH_AHEAD, _MM_HINT_T0); \
            for (int k = 0; k < 8; k++) { \
                const avx_##type a = AVX(loadu, type)((const type##_value *)(l + i + k * LANES)); \
                const avx_##type b = AVX(loadu, type)((const type##_value *)(r + i + k * LANES)); \
                results[k] = AVX(AVX_##operation, type)(a, b); \
                AVX(storeu, type)((type##_value *)(o + i + k * LANES), results[k]); \
            } \
            for (int k = 0; k < 8; k += 2) \
                nan = AVX(or, type)( \
                    nan, AVX(cmp, type)(results[k], results[k + 1], _CMP_UNORD_Q)); \
            if (AVX(movemask, type)(nan)) \
                NAME(operation##_one_nan, type)(o + i, GROUP); \
        } \
        NAME(operation##_by_element, type)(o + i, l + i, r + i, n - i); \
    }
#define AVX(action, type) AVX_##type(action)
#define AVX_float32(action) AVX_NAME(action, ps)
#define AVX_float64(action) AVX_NAME(action, pd)
#define AVX_NAME(action, kind) _mm256_##action##_##kind
#define AVX_sum add
#define AVX_prod mul

/* Halves by way of float32: widen a block that stays in the first-level cache, reduce, narrow. The
 * conversion instructions take whole vectors, which no compiler fits into a loop over elements. */
#define HALF_BLOCK ((size_t)512)

#define BLOCK_LOOP(layout, type, operation, result) \
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

/* Two bfloat16 in a word at a time. */
#define WORD_LOOP(layout, type, operation, result) \
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
            const float a = float32_of_##type(((const type##_memory *)left)[n - 1]); \
            const float b = float32_of_##type(((const type##_memory *)right)[n - 1]); \
            ((type##_memory *)out)[n - 1] = (uint16_t)(rounded_to_upper(result) >> 16); \
        } \
    }

#define WIDEN_LOOP(type) \
    FUNCTION NAME(widen, type)(void *out, const void *in, size_t n) \
    { \
        float32_memory *o = out; \
        const type##_memory *x = in; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) \
            o[i] = float32_of_##type(x[i]); \
    }

#define NARROW_LOOP(type) \
    FUNCTION NAME(narrow, type)(void *out, const void *in, size_t n) \
    { \
        type##_memory *o = out; \
        const float32_memory *x = in; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) \
            o[i] = type##_of_float32(x[i]); \
    }

#define DIVIDE_LOOP(type) \
    FUNCTION NAME(divide, type)(void *in_place, double divisor, size_t n) \
    { \
        type##_memory *x = in_place; \
        const type##_value d = (type##_value)divisor; \
        INDEPENDENT \
        for (size_t i = 0; i < n; i++) \
            x[i] = one_nan_##type(x[i] / d); \
    }

#define DIVIDE_PARTS_LOOP(type) \
    FUNCTION NAME(divide, type)(void *in_place, double divisor, size_t n) \
    { \
        NAME(divide, PART_OF_##type)(in_place, divisor, 2 * n); \
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

#endif

/* Elements in device memory, alone and in packets of 16 bytes, which a thread loads and stores at
 * once. A packet stays what was loaded, as words: the compiler would keep sixteen bytes in sixteen
 * registers. */
#ifndef HPCCOLL_CUDA_ELEMENTS_H
#define HPCCOLL_CUDA_ELEMENTS_H

#include "../operations.h"
#include "threads.h"

#if defined(__CUDACC__)
struct __align__(16) packet { uint32_t words[4]; };
#else
struct packet { uint32_t words[4]; } __attribute__((aligned(16), may_alias));
#endif

/* Bits of one width in a packet, and at an address. Arrays are aligned to their elements, nearly
 * always; a GPU faults on what is not. `put` is for a packet of zeros. */
#define DEFINE_ACCESS(width) \
    ALWAYS_INLINE uint##width##_t take##width(const struct packet *x, int i) \
    { \
        return (uint##width##_t)(x->words[i * width / 32] >> i * width % 32); \
    } \
    ALWAYS_INLINE void put##width(struct packet *x, int i, uint##width##_t bits) \
    { \
        x->words[i * width / 32] |= (uint32_t)bits << i * width % 32; \
    } \
    DEFINE_MEMORY_ACCESS(width)

#define DEFINE_MEMORY_ACCESS(width) \
    typedef uint##width##_t bits##width; \
    ALWAYS_INLINE uint##width##_t read##width(const char *at) \
    { \
        if ((uint64_t)at % (width / 8) == 0) \
            return *(const uint##width##_memory *)at; \
        uint##width##_t bits = 0; \
        UNROLL \
        for (int k = 0; k < width / 8; k++) \
            bits |= (uint##width##_t)((uint##width##_t)((const uint8_memory *)at)[k] << 8 * k); \
        return bits; \
    } \
    ALWAYS_INLINE void write##width(char *at, uint##width##_t bits) \
    { \
        if ((uint64_t)at % (width / 8) == 0) { \
            *(uint##width##_memory *)at = bits; \
            return; \
        } \
        UNROLL \
        for (int k = 0; k < width / 8; k++) \
            ((uint8_memory *)at)[k] = (uint8_t)(bits >> 8 * k); \
    }

DEFINE_ACCESS(8)
DEFINE_ACCESS(16)
DEFINE_ACCESS(32)

ALWAYS_INLINE uint64_t take64(const struct packet *x, int i)
{
    return x->words[2 * i] | (uint64_t)x->words[2 * i + 1] << 32;
}

ALWAYS_INLINE void put64(struct packet *x, int i, uint64_t bits)
{
    x->words[2 * i] = (uint32_t)bits;
    x->words[2 * i + 1] = (uint32_t)(bits >> 32);
}

DEFINE_MEMORY_ACCESS(64)

/* float16 by the instructions of the GPU. They give one NaN for all, and not NumPy's; half.h keeps
 * sign and bits. */
#if defined(__CUDACC__)

ALWAYS_INLINE float widened(uint16_t half)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

ALWAYS_INLINE uint16_t narrowed(float x)
{
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

#else

#define widened float32_of_float16
#define narrowed float16_of_float32

#endif

ALWAYS_INLINE float value_of_float16(uint16_t half)
{
    const uint32_t nan = (uint32_t)(half & 0x8000) << 16 | 0x7fc00000 | (uint32_t)(half & 0x3ff) << 13;
    return (half & 0x7fff) > 0x7c00 ? float32_of_bits(nan) : widened(half);
}

ALWAYS_INLINE uint16_t bits_of_float16(float x)
{
    const uint32_t bits = bits_of_float32(x);
    const uint32_t nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
    return IS_NAN(x) ? (uint16_t)nan : narrowed(x);
}

/* The same as a result, whose NaN is NumPy's. */
ALWAYS_INLINE uint16_t result_of_float16(float x)
{
    return IS_NAN(x) ? 0x7e00 : narrowed(x);
}

/* Values of a type, from bits and back: a lane, which NaN included is what lies there, an operand,
 * of which no more is asked than whether it is a NaN, and a result. */
#define IS_SET(bits) ((bits) != 0)
#define ITSELF(bits) (bits)

#define DEFINE_ELEMENTS(type, width, value_of, bits_of) \
    DEFINE_ELEMENTS_OF(type, width, value_of, bits_of, value_of, bits_of)

#define DEFINE_ELEMENTS_OF(type, width, value_of, bits_of, operand_of, result_of) \
    enum { ITEMSIZE_##type = width / 8, LANES_##type = 128 / width }; \
    ALWAYS_INLINE type##_value operand_##type(const struct packet *x, int i) \
    { \
        return (type##_value)operand_of(take##width(x, i)); \
    } \
    ALWAYS_INLINE void set_result_##type(struct packet *x, int i, type##_value value) \
    { \
        put##width(x, i, (uint##width##_t)result_of(value)); \
    } \
    ALWAYS_INLINE type##_value lane_##type(const struct packet *x, int i) \
    { \
        return (type##_value)value_of(take##width(x, i)); \
    } \
    ALWAYS_INLINE void set_lane_##type(struct packet *x, int i, type##_value value) \
    { \
        put##width(x, i, (uint##width##_t)bits_of(value)); \
    } \
    ALWAYS_INLINE void load_element_##type(struct packet *x, const char *at) \
    { \
        put##width(x, 0, read##width(at)); \
    } \
    ALWAYS_INLINE void store_element_##type(char *at, const struct packet *x) \
    { \
        write##width(at, take##width(x, 0)); \
    } \
    DEFINE_TRANSFERS(type)

#define DEFINE_COMPLEX_ELEMENTS(type, part, width) \
    enum { ITEMSIZE_##type = width / 4, LANES_##type = 64 / width }; \
    ALWAYS_INLINE type##_value lane_##type(const struct packet *x, int i) \
    { \
        return complex_of_##part(lane_##part(x, 2 * i), lane_##part(x, 2 * i + 1)); \
    } \
    ALWAYS_INLINE void set_lane_##type(struct packet *x, int i, type##_value value) \
    { \
        set_lane_##part(x, 2 * i, value.re); \
        set_lane_##part(x, 2 * i + 1, value.im); \
    } \
    ALWAYS_INLINE void load_element_##type(struct packet *x, const char *at) \
    { \
        put##width(x, 0, read##width(at)); \
        put##width(x, 1, read##width(at + width / 8)); \
    } \
    ALWAYS_INLINE void store_element_##type(char *at, const struct packet *x) \
    { \
        write##width(at, take##width(x, 0)); \
        write##width(at + width / 8, take##width(x, 1)); \
    } \
    DEFINE_TRANSFERS(type)

/* A whole packet, or one element as its first lane. */
#define DEFINE_TRANSFERS(type) \
    ALWAYS_INLINE struct packet load_packet_##type(const void *array, uint64_t i, int whole) \
    { \
        const char *at = (const char *)array + i * ITEMSIZE_##type; \
        if (whole) \
            return *(const struct packet *)at; \
        struct packet x = {{0, 0, 0, 0}}; \
        load_element_##type(&x, at); \
        return x; \
    } \
    ALWAYS_INLINE void store_packet_##type(void *array, uint64_t i, int whole, struct packet x) \
    { \
        char *at = (char *)array + i * ITEMSIZE_##type; \
        if (whole) \
            *(struct packet *)at = x; \
        else \
            store_element_##type(at, &x); \
    }

DEFINE_ELEMENTS(boolean, 8, IS_SET, ITSELF)
DEFINE_ELEMENTS(int8, 8, ITSELF, ITSELF)
DEFINE_ELEMENTS(int16, 16, ITSELF, ITSELF)
DEFINE_ELEMENTS(int32, 32, ITSELF, ITSELF)
DEFINE_ELEMENTS(int64, 64, ITSELF, ITSELF)
DEFINE_ELEMENTS(uint8, 8, ITSELF, ITSELF)
DEFINE_ELEMENTS(uint16, 16, ITSELF, ITSELF)
DEFINE_ELEMENTS(uint32, 32, ITSELF, ITSELF)
DEFINE_ELEMENTS(uint64, 64, ITSELF, ITSELF)
DEFINE_ELEMENTS_OF(float16, 16, value_of_float16, bits_of_float16, widened, result_of_float16)
DEFINE_ELEMENTS(bfloat16, 16, float32_of_bfloat16, bfloat16_of_float32)
DEFINE_ELEMENTS(float32, 32, float32_of_bits, bits_of_float32)
DEFINE_ELEMENTS(float64, 64, float64_of_bits, bits_of_float64)
#define operand_complex64 lane_complex64
#define operand_complex128 lane_complex128
#define set_result_complex64 set_lane_complex64
#define set_result_complex128 set_lane_complex128
DEFINE_COMPLEX_ELEMENTS(complex64, float32, 32)
DEFINE_COMPLEX_ELEMENTS(complex128, float64, 64)

/* Division, by the divisor rounded to the type that is computed in. Integers are not divided. */

ALWAYS_INLINE float quotient_float32(float x, double divisor)
{
    return one_nan_float32(x / (float)divisor);
}

ALWAYS_INLINE double quotient_float64(double x, double divisor)
{
    return one_nan_float64(x / divisor);
}

ALWAYS_INLINE float_pair quotient_complex64(float_pair z, double divisor)
{
    return complex_of_float32(quotient_float32(z.re, divisor), quotient_float32(z.im, divisor));
}

ALWAYS_INLINE double_pair quotient_complex128(double_pair z, double divisor)
{
    return complex_of_float64(quotient_float64(z.re, divisor), quotient_float64(z.im, divisor));
}

#define quotient_float16 quotient_float32
#define quotient_bfloat16 quotient_float32
#define quotient_boolean(x, divisor) (x)
#define quotient_int8 quotient_boolean
#define quotient_int16 quotient_boolean
#define quotient_int32 quotient_boolean
#define quotient_int64 quotient_boolean
#define quotient_uint8 quotient_boolean
#define quotient_uint16 quotient_boolean
#define quotient_uint32 quotient_boolean
#define quotient_uint64 quotient_boolean

/* OPERATION_TYPE(a, b), for each reduction of operations.h. */
#define DEFINE_REDUCTION(layout, type, operation, result) \
    DEFINE_REDUCTION_##layout(type, operation, result)

#define DEFINE_REDUCTION_plain(type, operation, result) \
    ALWAYS_INLINE type##_value operation##_##type(type##_value a, type##_value b) \
    { \
        return (type##_value)(result); \
    }
#define DEFINE_REDUCTION_boolean DEFINE_REDUCTION_plain
#define DEFINE_REDUCTION_grouped DEFINE_REDUCTION_plain
#define DEFINE_REDUCTION_half DEFINE_REDUCTION_plain
#define DEFINE_REDUCTION_two_halves DEFINE_REDUCTION_plain

#define DEFINE_REDUCTION_complex(type, operation, result) \
    ALWAYS_INLINE type##_value operation##_##type(type##_value a, type##_value b) \
    { \
        return result; \
    }

#define DEFINE_REDUCTION_parts(type, operation, part) \
    ALWAYS_INLINE type##_value operation##_##type(type##_value a, type##_value b) \
    { \
        return complex_of_##part(operation##_##part(a.re, b.re), operation##_##part(a.im, b.im)); \
    }
#define DEFINE_REDUCTION_pair_of_float32(type, operation, result) \
    DEFINE_REDUCTION_parts(type, operation, float32)
#define DEFINE_REDUCTION_pair_of_float64(type, operation, result) \
    DEFINE_REDUCTION_parts(type, operation, float64)

REDUCTIONS(DEFINE_REDUCTION)

#endif

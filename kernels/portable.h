/* What C and CUDA C++ spell differently. The headers that say what is done to elements (half.h,
 * operations.h) are compiled as both: by the C compiler for the loops of the CPU, and by NVRTC,
 * which has no standard headers, for those of the GPU. */
#ifndef HPCCOLL_PORTABLE_H
#define HPCCOLL_PORTABLE_H

#if defined(__CUDACC__)

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define ALWAYS_INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NAN __int_as_float(0x7fc00000)
#define IS_NAN(x) ((x) != (x))
#define ARE_UNORDERED(a, b) (IS_NAN(a) | IS_NAN(b))
#define IN_MEMORY

#else

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline, unused))
#define UNROLL
#define IS_NAN(x) isnan(x)
#define ARE_UNORDERED(a, b) isunordered(a, b)
/* At any address, whatever the declared type of what lies there. (Tests of the GPU kernels, whose
 * addresses must be aligned, define it without the former.) */
#ifndef IN_MEMORY
#define IN_MEMORY __attribute__((aligned(1), may_alias))
#endif

#endif

/* A number as its bits, and back. C++ has no compound literals, and of the members of a union it
 * initialises the first one only. */
#define DEFINE_BITS(type, real, width) \
    typedef union { real value; uint##width##_t bits; } type##_bits; \
    ALWAYS_INLINE uint##width##_t bits_of_##type(real value) \
    { \
        const type##_bits number = {value}; \
        return number.bits; \
    } \
    ALWAYS_INLINE real type##_of_bits(uint##width##_t bits) \
    { \
        type##_bits number; \
        number.bits = bits; \
        return number.value; \
    }

DEFINE_BITS(float32, float, 32)
DEFINE_BITS(float64, double, 64)

#endif

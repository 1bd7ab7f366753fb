/* The reduction loops, for each CPU target, and the choice between the targets.
 *
 *     operations.h      what each operation does to two elements of each type
 *     half.h            float16 and bfloat16 to and from float32
 *     loop_shapes.h     the loops round that
 *     target_loops.h    all of them for one target, included here once per target
 *
 * No function here allocates, blocks, or touches a Python object. */
#ifndef HPCCOLL_REDUCE_LOOPS_H
#define HPCCOLL_REDUCE_LOOPS_H

#include <string.h>

#include "loop_shapes.h"
#include "operations.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86_TARGETS 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define HAS_X86_TARGETS 0
#endif

#define OPERATION_NUMBER(operation) OPERATION_##operation,
enum { OPERATIONS(OPERATION_NUMBER) OPERATION_COUNT };

#define TYPE_NUMBER(type, dtype_name, itemsize) TYPE_##type,
enum { TYPES(TYPE_NUMBER) TYPE_COUNT };

#define OPERATION_NAME(operation) #operation,
static const char *const operation_names[OPERATION_COUNT] = {OPERATIONS(OPERATION_NAME)};

#define TYPE_NAME(type, dtype_name, itemsize) dtype_name,
static const char *const type_names[TYPE_COUNT] = {TYPES(TYPE_NAME)};

#define TYPE_ITEMSIZE(type, dtype_name, itemsize) itemsize,
static const size_t type_itemsizes[TYPE_COUNT] = {TYPES(TYPE_ITEMSIZE)};

/* out[i] = left[i] op right[i]; `out` may be exactly `left` or `right`, or apart from both. */
typedef void (*reduce_loop)(void *out, const void *left, const void *right, size_t n);
/* x[i] /= divisor, by the divisor rounded to the type that is computed in. */
typedef void (*divide_loop)(void *x, double divisor, size_t n);
/* out[i] = in[i], converted; `out` and `in` apart. */
typedef void (*convert_loop)(void *out, const void *in, size_t n);

/* NULL where an operation makes no sense for a type. */
struct target_loops {
    reduce_loop reduce[OPERATION_COUNT][TYPE_COUNT];
    divide_loop divide[TYPE_COUNT];
    convert_loop widen[TYPE_COUNT];
    convert_loop narrow[TYPE_COUNT];
};

#define REDUCE_ENTRY(layout, type, operation, result) \
    [OPERATION_##operation][TYPE_##type] = NAME(operation, type),
#define ENTRY(action, type) [TYPE_##type] = NAME(action, type)

#define TARGET baseline
#define TARGET_ATTRIBUTE
#define TARGET_GROUP_LOOP ELEMENT_LOOP
#define TARGET_HAS_F16C 0
#include "target_loops.h"

static int runs_baseline(void)
{
    return 1;
}

#if HAS_X86_TARGETS

typedef __m256 avx_float32;
typedef __m256d avx_float64;

#define TARGET avx2
#define TARGET_ATTRIBUTE __attribute__((target("avx2,f16c")))
#define TARGET_GROUP_LOOP GROUP_LOOP
#define TARGET_HAS_F16C 1
#include "target_loops.h"

#define TARGET avx512
#define TARGET_ATTRIBUTE __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define TARGET_GROUP_LOOP ELEMENT_LOOP
#define TARGET_HAS_F16C 1
#include "target_loops.h"

/* __builtin_cpu_supports also asks whether the operating system saves the registers. Not every
 * compiler knows "f16c" there. */
static int runs_avx2(void)
{
    unsigned int eax, ebx, ecx, edx;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx)
           && (ecx & bit_F16C);
}

static int runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif

/* Every target that was compiled, slowest first. */
struct compiled_target {
    const char *name;
    const struct target_loops *loops;
    int (*runs_here)(void);
};

static const struct compiled_target compiled_targets[] = {
    {"baseline", &loops_of_baseline, runs_baseline},
#if HAS_X86_TARGETS
    {"avx2", &loops_of_avx2, runs_avx2},
    {"avx512", &loops_of_avx512, runs_avx512},
#endif
};

enum { TARGET_COUNT = sizeof compiled_targets / sizeof *compiled_targets };

#endif

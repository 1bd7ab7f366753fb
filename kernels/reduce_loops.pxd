# What reduce_loops.h declares, for Cython.

cdef extern from "reduce_loops.h" nogil:
    enum:
        OPERATION_COUNT
        TYPE_COUNT
        TARGET_COUNT
        TYPE_float32
    ctypedef void (*reduce_loop)(
        void *out, const void *left, const void *right, size_t n) noexcept nogil
    ctypedef void (*divide_loop)(void *x, double divisor, size_t n) noexcept nogil
    ctypedef void (*convert_loop)(void *out, const void *x, size_t n) noexcept nogil
    struct target_loops:
        (reduce_loop[TYPE_COUNT])[OPERATION_COUNT] reduce
        divide_loop[TYPE_COUNT] divide
        convert_loop[TYPE_COUNT] widen
        convert_loop[TYPE_COUNT] narrow
    struct compiled_target:
        const char *name
        const target_loops *loops
        int (*runs_here)() noexcept nogil
    const char **operation_names
    const char **type_names
    size_t *type_itemsizes
    compiled_target *compiled_targets

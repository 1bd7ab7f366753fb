# What kernels/_plans.pyx declares, for the modules whose plans it keeps.

from libc.stdint cimport int64_t

ctypedef void (*reduce_loop)(void *out, const void *left, const void *right,
                             size_t n) noexcept nogil
ctypedef void (*divide_loop)(void *x, double divisor, size_t n) noexcept nogil
ctypedef void (*convert_loop)(void *out, const void *x, size_t n) noexcept nogil


cdef class Loops:
    cdef reduce_loop reduce
    cdef divide_loop divide
    cdef convert_loop widen
    cdef convert_loop narrow
    cdef object reduce_call
    cdef object divide_call
    cdef double divisor


cdef class Plan:
    cdef readonly object info
    cdef readonly bint usable
    cdef readonly bint in_place
    # What the last run really did.
    cdef readonly int64_t bytes_sent
    cdef readonly int64_t bytes_received
    cdef readonly int64_t bytes_reduced
    cdef readonly int64_t messages_sent
    cdef readonly int64_t messages_received

    cdef int execute(self, char *source, char *target) except -1

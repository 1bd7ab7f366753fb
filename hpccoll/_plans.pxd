# What kernels/_plans.pyx declares, for the modules whose plans it keeps.

from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uintptr_t

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


cdef class CallClock:
    cdef public int64_t number
    cdef public int64_t limit
    cdef public int64_t warning
    cdef public bint warned
    cdef public str broken

    cdef void begin(self) noexcept
    cpdef lose(self)


cdef class Plan:
    cdef readonly object info
    cdef readonly bint usable
    cdef readonly bint in_place
    cdef readonly bint compares
    cdef public size_t own_offset
    # What the last run really did.
    cdef readonly int64_t bytes_sent
    cdef readonly int64_t bytes_received
    cdef readonly int64_t bytes_reduced
    cdef readonly int64_t messages_sent
    cdef readonly int64_t messages_received

    cdef int execute(self, char *source, char *target) except -1


cdef class Levels:
    cdef int begin(self, char *source, char *target) except -1
    cdef int reduce(self, int piece) except -1
    cdef int publish(self, int piece) except -1
    cdef int end(self) except -1
    cdef int leave(self, error) except -1


cdef class DeviceWork:
    cdef int begin(self, char *source, char *target) except -1
    cdef int64_t submit(self, Py_ssize_t index) except -1
    cdef int wait(self, Py_ssize_t index) except -1
    cdef int leave(self) except -1


cdef class Turn:
    cdef PyThread_type_lock lock
    cdef unsigned long owner
    cdef int depth

    cdef int take(self) except -1
    cdef void leave(self) noexcept


cdef struct Entry:
    uintptr_t source
    uintptr_t target
    size_t in_nbytes
    size_t out_nbytes
    int type_number
    PyObject *op       # one of the interned operation names
    size_t used        # the cache's count of uses when it was last used; 0 where the entry is empty


cdef enum:
    PLANS = 32


cdef class PlanCache:
    cdef Entry entries[PLANS]
    cdef list plans
    cdef tuple operations
    cdef PyObject *last_object
    cdef PyObject *last_name
    cdef object in_place
    cdef Turn turn
    cdef CallClock clock
    cdef object on_failure
    cdef bint part_in_place
    cdef public bint closed
    cdef public bint checked
    cdef size_t uses
    cdef int last

    cdef PyObject *name_of(self, op)
    cdef int look_up(self, uintptr_t source, uintptr_t target, size_t in_nbytes,
                     size_t out_nbytes, int type_number, PyObject *name) noexcept
    cpdef Plan repeat(self, sendbuf, recvbuf, op, int64_t limit=*)

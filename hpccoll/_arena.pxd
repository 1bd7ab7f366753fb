# What other Cython modules may call of hpccoll._arena, without the interpreter lock:
#
#     from hpccoll._arena cimport find
#
# It stands here, in the folder of the package, because that is where Cython looks for it.

from libc.stdint cimport int64_t

# The offset of [address, address + nbytes) in the region that it lies in wholly, and the number of
# that region in *region (NULL: not wanted); -1 where it lies in none. Region 0 is the arena.
cdef int64_t find(const void *address, size_t nbytes, int *region) noexcept nogil

# Memory of a region; NULL where it is not open or has no free block of that size.
cdef void *take(int region, size_t nbytes, bint zeroed) noexcept nogil

# Free what `take` returned; -1 where no block begins at this address.
cdef int give_back(void *address) noexcept nogil

# Where a region begins in this process; NULL where it is not open.
cdef char *start_of(int region) noexcept nogil

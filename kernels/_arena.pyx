# cython: language_level=3
"""The arena of this process, memory of its peers, and NumPy arrays in it (arena.h, regions.h).

Numbers in, numbers out: addresses, sizes, region numbers. What a setting means, when the arena is
made, who holds a peer's arena and what a user is told is in `hpccoll.arena`. hpccoll/_arena.pxd
lists what other Cython modules may call without the interpreter lock.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free as free_memory

import os

cnp.import_array()

cdef extern from "regions.h" nogil:
    enum:
        MAX_REGIONS
    struct region:
        char *base
        size_t used
        size_t live
        size_t held
        size_t total
    region *regions
    int forked
    void *region_allocate(int id, size_t nbytes, int zeroed)
    int region_free(void *address)
    int region_of(const void *address, size_t nbytes)
    int region_open(int id)
    size_t region_largest(int id)
    void region_start(int id, char *base, size_t nbytes, size_t skip, int sparse)
    int region_stop(int id)

cdef extern from "arena.h" nogil:
    enum:
        NONCE_BYTES
        ARENA
    struct arena_facts:
        char *base
        size_t capacity
        int fd
        int pid
        unsigned char *nonce
    arena_facts arena
    int arena_open(size_t capacity)
    char *peer_map(long pid, int fd, size_t capacity, const unsigned char *wanted,
                   const char **what)
    int peer_unmap(char *base, size_t capacity)

cdef extern from "array_handler.h" nogil:
    struct handler:
        size_t missed
        size_t missed_bytes
        size_t missed_largest
    handler *handler_new(const cnp.PyDataMemAllocator *fallback, int region, int strict,
                         size_t min_bytes)

cdef extern from "numpy/arrayobject.h":
    PyObject *PyDataMem_DefaultHandler


cdef int64_t find(const void *address, size_t nbytes, int *region) noexcept nogil:
    cdef int id = region_of(address, nbytes)
    if region != NULL:
        region[0] = id
    if id < 0:
        return -1
    return <const char *> address - start_of(id)


cdef void *take(int region, size_t nbytes, bint zeroed) noexcept nogil:
    return region_allocate(region, nbytes, zeroed)


cdef int give_back(void *address) noexcept nogil:
    return region_free(address)


cdef char *start_of(int region) noexcept nogil:
    return regions[region].base if region_open(region) else NULL


def open_arena(size_t capacity):
    """Make the arena, with room for `capacity` bytes; nothing where it is there already.

    For one caller at a time. Raises OSError where the system does not give it.
    """
    if forked:
        raise RuntimeError("a forked child process makes no arena: it has that of its parent")
    if arena.base == NULL and arena_open(capacity) != 0:
        raise OSError(errno, os.strerror(errno))


def is_open():
    """Whether the arena is there."""
    return arena.base != NULL


def is_forked():
    """Whether this is a forked child of a process with an arena."""
    return forked != 0


def base():
    """Return the address of the arena; 0 before it was made."""
    return <uintptr_t> arena.base


def capacity():
    """Return the size of the arena in bytes; 0 before it was made."""
    return arena.capacity


def descriptor():
    """Return process number, file descriptor, capacity and nonce of the arena."""
    if forked:
        raise RuntimeError("a forked child process has no arena of its own that a peer could map")
    if arena.base == NULL:
        raise RuntimeError("the arena has not been made yet")
    return arena.pid, arena.fd, arena.capacity, nonce()


def nonce():
    """Return the random bytes that the arena begins with; none before it was made."""
    if arena.base == NULL:
        return b""
    return PyBytes_FromStringAndSize(<char *> arena.nonce, NONCE_BYTES)


def map_peer(long pid, int fd, size_t capacity, bytes wanted):
    """Map the arena of another process and return its address; OSError where it cannot be."""
    cdef const char *what = NULL
    if len(wanted) != NONCE_BYTES:
        raise ValueError(f"the nonce has {len(wanted)} bytes; wanted {NONCE_BYTES}")
    cdef const unsigned char *first = wanted
    cdef char *address = peer_map(pid, fd, capacity, first, &what)
    if address == NULL:
        error = errno
        raise OSError(
            error,
            f"cannot map the arena of process {pid}: {what.decode()} ({os.strerror(error)})",
            f"/proc/{pid}/fd/{fd}",
        )
    return <uintptr_t> address


def unmap_peer(uintptr_t address, size_t capacity):
    """Take back what `map_peer` mapped."""
    if peer_unmap(<char *> address, capacity) != 0:
        raise OSError(errno, os.strerror(errno))


def add_region(uintptr_t address, size_t nbytes):
    """Make a region of memory that the caller keeps alive, and return its number.

    For one caller at a time. The memory must stay until `remove_region` has succeeded.
    """
    if nbytes < 4096:
        raise ValueError(f"nbytes is {nbytes}; a region has at least 4096")
    if region_of(<void *> address, 0) >= 0 or region_of(<char *> address + nbytes - 1, 0) >= 0:
        raise ValueError("this memory lies in a region already")
    for id in range(ARENA + 1, MAX_REGIONS):
        if not region_open(id):
            region_start(id, <char *> address, nbytes, 0, False)
            return id
    raise RuntimeError(f"there are {MAX_REGIONS} regions already; no more is possible")


def remove_region(int region):
    """Forget a region that was added.

    Refused with BufferError while blocks of it live: then keep the memory, for good if need be.
    """
    check_region(region)
    if region == ARENA:
        raise ValueError("region 0 is the arena, which lasts as long as the process")
    if region_stop(region) != 0:
        count = regions[region].live
        raise BufferError(f"region {region} has live blocks ({count}): keep its memory")


cdef int check_region(int region) except -1:
    if not region_open(region):
        raise ValueError(f"there is no region {region}")
    return 0


def allocate(size_t nbytes, int region=0, bint zeroed=False):
    """Return the address of `nbytes` bytes, aligned to 64; MemoryError where they do not fit."""
    check_region(region)
    cdef void *address
    with nogil:
        address = region_allocate(region, nbytes, zeroed)
    if address == NULL:
        raise MemoryError(f"no {nbytes} bytes in one piece in region {region}")
    return <uintptr_t> address


def free(uintptr_t address):
    """Free what `allocate` returned. In a forked child this does nothing."""
    cdef int status
    with nogil:
        status = region_free(<void *> address)
    if status != 0:
        raise ValueError(f"no allocated block begins at address {address:#x}")


def contains(uintptr_t address, size_t nbytes=1):
    """Whether all of `nbytes` bytes from `address` lie in one region."""
    return region_of(<void *> address, nbytes) >= 0


def locate(uintptr_t address, size_t nbytes=1):
    """Return the region that these bytes lie in and their offset in it, or None."""
    cdef int region
    cdef int64_t offset = find(<void *> address, nbytes, &region)
    return None if offset < 0 else (region, offset)


def used(int region=0):
    """Return the bytes of all live blocks, with what each takes beyond what was asked for."""
    check_region(region)
    return regions[region].used


def live(int region=0):
    """Return the number of live blocks."""
    check_region(region)
    return regions[region].live


def free_bytes(int region=0):
    """Return how many bytes are not used."""
    check_region(region)
    return regions[region].total - regions[region].used


def largest_free(int region=0):
    """Return the size of the largest block that can be allocated now."""
    check_region(region)
    return region_largest(region)


def held(int region=0):
    """Return how much free memory the region keeps from the system; an upper bound."""
    check_region(region)
    return regions[region].held


cdef void free_handler(object capsule) noexcept:
    free_memory(PyCapsule_GetPointer(capsule, "mem_handler"))


def new_handler(int region=0, bint strict=True, size_t min_bytes=0):
    """Return a data handler for NumPy (NEP 49) that allocates from a region.

    Parameters
    ----------
    region : int
        Need not be open: then nothing fits.
    strict : bool
        What does not fit is a MemoryError. Otherwise it comes from NumPy's own allocator, and is
        counted; see `missed`.
    min_bytes : int
        What is smaller comes from NumPy's own allocator, if not `strict`.
    """
    cdef cnp.PyDataMem_Handler *numpy_own = <cnp.PyDataMem_Handler *> PyCapsule_GetPointer(
        <object> PyDataMem_DefaultHandler, "mem_handler"
    )
    cdef handler *made = handler_new(
        &numpy_own.allocator, region, strict, 0 if strict else min_bytes
    )
    if made == NULL:
        raise MemoryError
    return PyCapsule_New(made, "mem_handler", free_handler)


def missed(capsule):
    """Return number, bytes and largest of a handler's allocations that did not fit."""
    cdef handler *h = <handler *> PyCapsule_GetPointer(capsule, "mem_handler")
    return h.missed, h.missed_bytes, h.missed_largest


def set_handler(capsule):
    """Have NumPy allocate by this handler in the current context, and return the one before."""
    return cnp.PyDataMem_SetHandler(capsule)

# What node_levels.h, node_collective.h and the headers below them declare, for Cython.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "node_levels.h" nogil:
    ctypedef struct counter:
        pass
    struct waiting:
        long spins
        int64_t yield_time
        int64_t time_limit
        int (*attend)(void *context, int64_t waited) noexcept nogil
        void *context
    struct loops:
        void (*reduce)(void *out, const void *left, const void *right, size_t n) noexcept nogil
        void (*divide)(void *x, double divisor, size_t n) noexcept nogil
        void (*widen)(void *out, const void *x, size_t n) noexcept nogil
        void (*narrow)(void *out, const void *x, size_t n) noexcept nogil
        double divisor
        size_t itemsize
        size_t partial_itemsize
    struct header:
        counter call
        uint64_t nbytes
        uint32_t kind
    struct slot:
        header headers[2]
        counter copied
        counter reduced
        counter published
        counter by_messages
        counter given_up
    struct node:
        int rank
        int size
        slot **slots
        char **arenas
        size_t arena_bytes
        const int *processes
        waiting waiting
        size_t buffer_bytes
        size_t segment_bytes
        size_t gather_bytes
        size_t slot_bytes
        size_t shared_bytes
        uint64_t calls
        uint64_t segments
        uint64_t pieces
        uint64_t published
        int beginning
        int mixed
        int culprit
        int design
        const char **inputs
        char **outputs
        char *memory
        char *staging
    enum:
        DONE
        DIFFERENT
        GIVEN_UP
        UNREADABLE
        INTERRUPTED
        ELSEWHERE
        TIME_IS_UP
        MEMORY_BYTES
        STAGING_BYTES
        SLOT_HEAD_BYTES
        APART
        STAYS
        LEFT
        DISAGREES
        LOST
        DESIGN_COUNT
    const char *const *design_names
    int64_t crossing_time(node *node)
    void linger(node *node)
    void hear_out(const node *node)
    int reads_like(int process, const void *there, const void *here, size_t nbytes)
    void announce(counter *flag, uint64_t value)
    uint64_t current(const counter *flag)
    struct levels:
        node *node
        loops loops
        size_t count
        int leaders
        const int *leader_ranks
        int slice
        int pieces
        char *input
        char *partial
        char *output
    int levels_begin(levels *levels, uint32_t kind, const char *source, char *target)
    int levels_reduce(levels *levels, int piece)
    int levels_publish(levels *levels, int piece)
    int levels_end(levels *levels)

cdef extern from "node_collective.h" nogil:
    enum:
        COLLECTIVE_COUNT
        EVERYONE
    const char *const *collective_names
    struct collective:
        int which
        int root
        size_t count
        const size_t *starts
    int node_collective(node *node, const loops *loops, const collective *collective, uint32_t kind,
                        const char *x, char *y)

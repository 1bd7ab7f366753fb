# What device_work.h declares, for Cython.

from libc.stdint cimport int64_t, uint64_t

cdef extern from "device_work.h" nogil:
    enum:
        QUEUES
        MOST_AFTER
        PLACES
        REDUCE_WORK
        FINISH_WORK
        WIDEN_WORK
        COPY_WORK
        COPY_DOWN_WORK
        COPY_UP_WORK
        LAUNCH_WORK
        WORK_KINDS

    ctypedef int launch_function(
        void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
        void **parameters, void **extra
    ) noexcept
    ctypedef int copy_function(
        uint64_t out, uint64_t source, size_t nbytes, void *stream
    ) noexcept
    ctypedef int record_function(void *event, void *stream) noexcept
    ctypedef int wait_function(void *stream, void *event, unsigned flags) noexcept
    ctypedef int query_function(void *event) noexcept

    struct device_functions:
        launch_function *launch
        copy_function *copy
        record_function *record
        wait_function *wait
        query_function *query

    struct device_queue:
        device_functions cuda
        void **streams
        void **events
        void *caller
        const char *failed

    struct place:
        int base
        uint64_t offset

    struct work:
        int kind
        int queue
        place out
        place left
        place right
        uint64_t count
        uint64_t nbytes
        void *function
        void *arguments
        unsigned grid
        unsigned block
        int64_t reduced
        int *after
        int after_count
        void *event
        int64_t call

    struct work_setting:
        void *reduce
        void *finish
        void *widen
        double divisor
        size_t itemsize
        size_t partial_itemsize
        unsigned multiprocessors
        uint64_t *bases

    int record_event(device_queue *queue, void *event, void *stream)
    int make_wait(device_queue *queue, void *stream, void *event)
    int copy_bytes(device_queue *queue, uint64_t out, uint64_t source, size_t nbytes,
                   void *stream)
    int launch(device_queue *queue, void *function, void *arguments, unsigned grid,
               unsigned block, void *stream)
    int follow_stream(device_queue *queue, void *stream)
    int record_all(device_queue *queue)
    int lead_stream(device_queue *queue, void *stream)
    int look_at_event(device_queue *queue, void *event, long longest_nap, int64_t patience,
                      int *complete)
    int drain_for(device_queue *queue, long longest_nap, int64_t patience, int *complete)
    int submit_work(device_queue *queue, const work_setting *how, const work *works,
                    const work *one)

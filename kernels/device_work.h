/* Handing work to a CUDA device by the functions of its driver, without the interpreter lock.
 *
 * Everything here returns a CUresult, which is 0 where all went well, and then says in `failed`
 * which function it came from. The caller has made the device's context current on its thread. */
#ifndef HPCCOLL_DEVICE_WORK_H
#define HPCCOLL_DEVICE_WORK_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/arguments.h"
#include "looking.h"

enum { QUEUES = 3, MOST_AFTER = 3 };
enum { BLOCK = 256, BYTES_PER_THREAD = 16, BLOCKS_PER_MULTIPROCESSOR = 16 };
enum { CUDA_NOT_READY = 600 };

/* Functions of the driver. Handles and addresses are what cuda.h makes of them, without its names. */
typedef int launch_function(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void *stream, void **parameters,
                            void **extra);
typedef int copy_function(uint64_t out, uint64_t source, size_t nbytes, void *stream);
typedef int record_function(void *event, void *stream);
typedef int wait_function(void *stream, void *event, unsigned flags);
typedef int query_function(void *event);

struct device_functions {
    launch_function *launch;
    copy_function *copy;
    record_function *record;
    wait_function *wait;
    query_function *query;
};

/* The streams of one device, and an event for each and for the caller's. */
struct device_queue {
    struct device_functions cuda;
    void *streams[QUEUES];
    void *events[QUEUES];
    void *caller;
    const char *failed;
};

static inline int note_failure(struct device_queue *queue, const char *function, int result)
{
    if (result)
        queue->failed = function;
    return result;
}

static inline int record_event(struct device_queue *queue, void *event, void *stream)
{
    return note_failure(queue, "cuEventRecord", queue->cuda.record(event, stream));
}

static inline int make_wait(struct device_queue *queue, void *stream, void *event)
{
    return note_failure(queue, "cuStreamWaitEvent", queue->cuda.wait(stream, event, 0));
}

static inline int copy_bytes(struct device_queue *queue, uint64_t out, uint64_t source,
                             size_t nbytes, void *stream)
{
    if (nbytes == 0 || out == source)
        return 0;
    return note_failure(queue, "cuMemcpyAsync", queue->cuda.copy(out, source, nbytes, stream));
}

/* Kernels take one structure by value. */
static inline int launch(struct device_queue *queue, void *function, void *arguments,
                         unsigned grid, unsigned block, void *stream)
{
    void *parameters[1] = {arguments};
    if (grid == 0)
        return 0;
    return note_failure(queue, "cuLaunchKernel",
                        queue->cuda.launch(function, grid, 1, 1, block, 1, 1, 0, stream,
                                           parameters, NULL));
}

static inline int record_all(struct device_queue *queue)
{
    int result = 0;
    for (int k = 0; k < QUEUES && !result; k++)
        result = record_event(queue, queue->events[k], queue->streams[k]);
    return result;
}

/* Works of this call use memory that those of calls before have used, on whatever queue and behind
 * whatever stream: so all queues wait for all of them, and the event stands for all of them. */
static inline int follow_stream(struct device_queue *queue, void *stream)
{
    int result = record_all(queue);
    if (!result)
        result = record_event(queue, queue->caller, stream);
    if (!result)
        result = make_wait(queue, queue->streams[0], queue->caller);
    for (int k = 1; k < QUEUES && !result; k++)
        result = make_wait(queue, queue->streams[0], queue->events[k]);
    if (!result)
        result = record_event(queue, queue->caller, queue->streams[0]);
    for (int k = 1; k < QUEUES && !result; k++)
        result = make_wait(queue, queue->streams[k], queue->caller);
    return result;
}

static inline int lead_stream(struct device_queue *queue, void *stream)
{
    int result = record_all(queue);
    for (int k = 0; k < QUEUES && !result; k++)
        result = make_wait(queue, stream, queue->events[k]);
    return result;
}

static inline int test_event(void *event, int *complete, void *functions)
{
    const int result = ((const struct device_functions *)functions)->query(event);
    *complete = result == 0;
    return result == CUDA_NOT_READY ? 0 : result;
}

/* Look whether an event is complete for so many nanoseconds; sleep meanwhile if naps are given. */
static inline int look_at_event(struct device_queue *queue, void *event, long longest_nap,
                                int64_t patience, int *complete)
{
    return note_failure(queue, "cuEventQuery",
                        look_at(test_event, event, &queue->cuda, longest_nap, patience, complete));
}

/* Wait until all that was submitted is complete, but not for longer than so. Where a function
 * fails, the context is broken, and nothing runs in it any more. */
static inline int drain_for(struct device_queue *queue, long longest_nap, int64_t patience,
                            int *complete)
{
    const int64_t end = nanoseconds() + patience;
    int result = record_all(queue);
    *complete = 1;
    for (int k = 0; k < QUEUES && *complete && !result; k++) {
        const int64_t left = end - nanoseconds();
        result = look_at_event(queue, queue->events[k], longest_nap, left > 0 ? left : 0,
                               complete);
    }
    *complete |= result != 0;
    return result;
}

/* The works of a plan. */

enum work_kind {
    REDUCE_WORK,
    FINISH_WORK,
    WIDEN_WORK,
    COPY_WORK,
    COPY_DOWN_WORK,
    COPY_UP_WORK,
    LAUNCH_WORK,
    WORK_KINDS
};

enum { PLACES = 3 };

/* An address: an offset from 0, from the call's source, or from its target. */
struct place {
    int base;
    uint64_t offset;
};

struct work {
    int kind;
    int queue;
    struct place out, left, right;
    uint64_t count;       /* elements, of kernels */
    uint64_t nbytes;      /* of copies */
    void *function;       /* LAUNCH_WORK: the kernel, its arguments, grid, block, bytes reduced */
    void *arguments;
    unsigned grid, block;
    int64_t reduced;
    int after[MOST_AFTER]; /* works of other queues, whose events this one waits for */
    int after_count;
    void *event;           /* recorded after it; NULL: none */
    int64_t call;          /* in which it was submitted last */
};

/* What all works of a plan have in common. */
struct work_setting {
    void *reduce, *finish, *widen; /* kernels; NULL: none */
    double divisor;
    size_t itemsize, partial_itemsize;
    unsigned multiprocessors;
    uint64_t bases[PLACES];
};

static inline uint64_t resolve(const struct work_setting *how, struct place place)
{
    return how->bases[place.base] + place.offset;
}

/* Blocks for n elements: threads take 16 bytes each, and more where there are many. */
static inline unsigned grid_for(uint64_t n, size_t itemsize, unsigned multiprocessors)
{
    const uint64_t per_block = (uint64_t)BLOCK * BYTES_PER_THREAD;
    const uint64_t wanted = (n * itemsize + per_block - 1) / per_block;
    const uint64_t most = (uint64_t)BLOCKS_PER_MULTIPROCESSOR * multiprocessors;
    const uint64_t grid = wanted < most ? wanted : most;
    return grid ? (unsigned)grid : 1;
}

static inline int submit_reduce(struct device_queue *queue, const struct work_setting *how,
                                const struct work *work, void *stream)
{
    struct pair_arguments arguments = {
        (void *)resolve(how, work->out), (void *)resolve(how, work->left),
        (void *)resolve(how, work->right), work->count};
    if (work->count == 0)
        return 0;
    return launch(queue, how->reduce, &arguments,
                  grid_for(work->count, how->partial_itemsize, how->multiprocessors), BLOCK,
                  stream);
}

static inline int submit_finish(struct device_queue *queue, const struct work_setting *how,
                                const struct work *work, void *stream)
{
    const int widens = work->kind == WIDEN_WORK;
    void *function = widens ? how->widen : how->finish;
    const uint64_t out = resolve(how, work->out), in = resolve(how, work->left);
    struct finish_arguments arguments = {(void *)out, (void *)in, work->count,
                                         widens ? 0 : how->divisor};
    if (function == NULL)
        return copy_bytes(queue, out, in, work->count * how->itemsize, stream);
    if (work->count == 0)
        return 0;
    return launch(queue, function, &arguments,
                  grid_for(work->count, how->partial_itemsize, how->multiprocessors), BLOCK,
                  stream);
}

/* Submit one of the works, behind those that it comes after. */
static inline int submit_work(struct device_queue *queue, const struct work_setting *how,
                              const struct work *works, const struct work *work)
{
    void *stream = queue->streams[work->queue];
    int result = 0;
    for (int k = 0; k < work->after_count && !result; k++)
        result = make_wait(queue, stream, works[work->after[k]].event);
    if (result)
        return result;
    switch (work->kind) {
    case REDUCE_WORK:
        result = submit_reduce(queue, how, work, stream);
        break;
    case FINISH_WORK:
    case WIDEN_WORK:
        result = submit_finish(queue, how, work, stream);
        break;
    case LAUNCH_WORK:
        result = launch(queue, work->function, work->arguments, work->grid, work->block, stream);
        break;
    default:
        result = copy_bytes(queue, resolve(how, work->out), resolve(how, work->left),
                            work->nbytes, stream);
    }
    if (!result && work->event != NULL)
        result = record_event(queue, work->event, stream);
    return result;
}

#endif

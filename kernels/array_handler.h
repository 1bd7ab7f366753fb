/* Memory for the data of NumPy's arrays, from a region: the functions of a data handler (NEP 49).
 *
 * An array frees and resizes its data by the handler that it was allocated with, and keeps that
 * alive. So what is in `struct handler` outlives the context that it was made for.
 */
#ifndef HPCCOLL_ARRAY_HANDLER_H
#define HPCCOLL_ARRAY_HANDLER_H

#include "regions.h"

#include <stdio.h>
#include <stdlib.h>
#ifdef __linux__
#include <malloc.h>
#else /* and no arena: nothing is moved there */
#define malloc_usable_size(data) ((void)(data), (size_t)0)
#endif

#include "numpy/ndarraytypes.h"

struct handler {
    PyDataMem_Handler numpy;     /* what NumPy sees */
    PyDataMemAllocator fallback; /* NumPy's own allocator */
    int region;
    int strict;       /* nothing falls back: what does not fit is an error */
    size_t min_bytes; /* what is smaller is for the fallback */
    /* Allocations that did not fit. */
    atomic_size_t missed, missed_bytes, missed_largest;
};

static void note_missed(struct handler *h, size_t nbytes)
{
    atomic_fetch_add(&h->missed, 1);
    atomic_fetch_add(&h->missed_bytes, nbytes);
    size_t largest = atomic_load(&h->missed_largest);
    while (nbytes > largest
           && !atomic_compare_exchange_weak(&h->missed_largest, &largest, nbytes)) {
    }
}

/* Whether the caller is to take the fallback, after `memory` came from the region or did not. */
static int falls_back(struct handler *h, const void *memory, size_t nbytes)
{
    if (memory || h->strict)
        return 0;
    if (nbytes >= h->min_bytes)
        note_missed(h, nbytes);
    return 1;
}

static void *array_malloc(void *ctx, size_t nbytes)
{
    struct handler *h = ctx;
    void *memory = nbytes >= h->min_bytes ? region_allocate(h->region, nbytes, 0) : NULL;
    if (falls_back(h, memory, nbytes))
        return h->fallback.malloc(h->fallback.ctx, nbytes);
    return memory;
}

static void *array_calloc(void *ctx, size_t count, size_t itemsize)
{
    struct handler *h = ctx;
    size_t nbytes;
    if (__builtin_mul_overflow(count, itemsize, &nbytes))
        return NULL;
    void *memory = nbytes >= h->min_bytes ? region_allocate(h->region, nbytes, 1) : NULL;
    if (falls_back(h, memory, nbytes))
        return h->fallback.calloc(h->fallback.ctx, count, itemsize);
    return memory;
}

static void array_free(void *ctx, void *data, size_t nbytes)
{
    struct handler *h = ctx;
    if (region_of(data, 0) >= 0)
        region_free(data);
    else
        h->fallback.free(h->fallback.ctx, data, nbytes);
}

static void *array_realloc(void *ctx, void *data, size_t nbytes)
{
    struct handler *h = ctx;
    if (!data)
        return array_malloc(ctx, nbytes);
    if (region_of(data, 0) >= 0) {
        if (region_resize(data, nbytes))
            return data;
        size_t before = region_capacity(data);
        void *memory = array_malloc(ctx, nbytes);
        if (memory) {
            memcpy(memory, data, before < nbytes ? before : nbytes);
            region_free(data);
        }
        return memory;
    }
    /* Arrays that grow step by step, as of np.fromiter, begin small: move them once they are not. */
    void *memory = nbytes >= h->min_bytes ? region_allocate(h->region, nbytes, 0) : NULL;
    if (memory) {
        size_t before = malloc_usable_size(data);
        memcpy(memory, data, before < nbytes ? before : nbytes);
        h->fallback.free(h->fallback.ctx, data, before);
    } else if (falls_back(h, memory, nbytes))
        memory = h->fallback.realloc(h->fallback.ctx, data, nbytes);
    return memory;
}

static struct handler *handler_new(const PyDataMemAllocator *fallback, int region, int strict,
                                   size_t min_bytes)
{
    struct handler *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    snprintf(h->numpy.name, sizeof(h->numpy.name), "hpccoll_arena");
    h->numpy.version = 1;
    h->numpy.allocator = (PyDataMemAllocator){h,          array_malloc,  array_calloc,
                                              array_realloc, array_free};
    h->fallback = *fallback;
    h->region = region;
    h->strict = strict;
    h->min_bytes = min_bytes;
    return h;
}

#endif

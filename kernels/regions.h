/* Memory that arrays are allocated from: regions, each with its blocks, its free list and its lock.
 *
 * Region 0 is the arena of this process (arena.h); others may be added, such as memory of an MPI
 * window. No function here needs the interpreter, and all may be called from any thread.
 *
 * Every block has its header in front of it, in the region: where it is freed, nothing is looked
 * up. The header costs one cache line, which also keeps two arrays from sharing one.
 *
 * A forked child has the parent's regions mapped, headers included, and the parent goes on using
 * them. So a child allocates nothing here, and what it frees stays as it is.
 */
#ifndef HPCCOLL_REGIONS_H
#define HPCCOLL_REGIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ALIGNMENT = 64,
    HEADER = 64,
    MAX_REGIONS = 32,
    BINS = 48,
    BIN_TRIES = 32, /* blocks of about the wanted size that are looked at before larger ones */
};

/* Freed memory that is kept for the next array, or as much as is in use where that is more; what is
 * freed beyond goes back to the system. */
#define HELD_LIMIT ((size_t)64 << 20)

/* Words that hardly stand in memory by chance: whether a header is one, and of what. */
#define BLOCK_USED UINT64_C(0x9d2c5680e7a1b34f)
#define BLOCK_FREE UINT64_C(0x6e8f1d3ba97c2450)

struct block {
    uint64_t state;
    size_t nbytes;        /* with this header */
    struct block *before; /* the block that ends where this one begins; NULL for the first */
    /* Of a free block only: its neighbours in the bin, and the bytes behind the header that may
       differ from zero (none if dirty_from >= dirty_to). */
    struct block *next, *previous;
    char *dirty_from, *dirty_to;
};

_Static_assert(sizeof(struct block) <= HEADER, "a header must fit in front of a block");

struct region {
    _Atomic(char *) base; /* NULL: no region; offsets count from here */
    char *end;
    pthread_mutex_t lock;
    int sparse;           /* free pages may be given back, and come again as zeros */
    uint64_t filled;      /* bit k: bins[k] holds a block */
    struct block *bins[BINS];
    size_t used;          /* bytes of live blocks, with headers */
    size_t live;          /* number of them */
    size_t held;          /* bytes of free blocks that may have been touched */
    size_t total;         /* bytes of all blocks, with headers */
};

static struct region regions[MAX_REGIONS];
static atomic_int region_count; /* regions[k] is in use, or was, for k below it */
static int forked;              /* this process is a child of the one that made the regions */

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static int bin_of(size_t nbytes)
{
    int bin = 63 - __builtin_clzll((unsigned long long)nbytes / ALIGNMENT);
    return bin < BINS ? bin : BINS - 1;
}

static size_t dirty_bytes(const struct block *b)
{
    return b->dirty_from < b->dirty_to ? (size_t)(b->dirty_to - b->dirty_from) : 0;
}

static struct block *block_after(const struct region *r, struct block *b)
{
    char *end = (char *)b + b->nbytes;
    return end < r->end ? (struct block *)end : NULL;
}

static void unlink_block(struct region *r, struct block *b)
{
    int bin = bin_of(b->nbytes);
    if (b->previous)
        b->previous->next = b->next;
    else if (!(r->bins[bin] = b->next))
        r->filled &= ~(UINT64_C(1) << bin);
    if (b->next)
        b->next->previous = b->previous;
    r->held -= dirty_bytes(b);
}

static void link_block(struct region *r, struct block *b)
{
    int bin = bin_of(b->nbytes);
    b->state = BLOCK_FREE;
    b->previous = NULL;
    b->next = r->bins[bin];
    if (b->next)
        b->next->previous = b;
    r->bins[bin] = b;
    r->filled |= UINT64_C(1) << bin;
    r->held += dirty_bytes(b);
}

/* Give the whole pages of a free block back, so that all of it behind the header is zero again. */
static void release_pages(struct region *r, struct block *b)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)b->dirty_from / page * page;
    uintptr_t to = round_up((uintptr_t)b->dirty_to, page);
    uintptr_t first = round_up((uintptr_t)b + HEADER, page);
    uintptr_t last = ((uintptr_t)b + b->nbytes) / page * page;
    from = from < first ? first : from;
    to = to > last ? last : to;
    if (from >= to)
        return;
#ifdef MADV_REMOVE
    if (madvise((void *)from, to - from, MADV_REMOVE) == 0) {
        /* What shares a page with a header stays, and must be zero like the rest. */
        if ((uintptr_t)b->dirty_from < from)
            memset(b->dirty_from, 0, from - (uintptr_t)b->dirty_from);
        if ((uintptr_t)b->dirty_to > to)
            memset((void *)to, 0, (uintptr_t)b->dirty_to - to);
        b->dirty_from = b->dirty_to = NULL;
        return;
    }
#endif
    r->sparse = 0;
}

/* Make a free block of b, together with free neighbours; [from, to) of it may differ from zero.
   That is all of it where it has free neighbours: then it was in use until now. */
static void insert_free(struct region *r, struct block *b, char *from, char *to)
{
    struct block *after = block_after(r, b), *before = b->before;
    if (after && after->state == BLOCK_FREE) {
        unlink_block(r, after);
        /* Its header is no zero either. */
        to = dirty_bytes(after) ? after->dirty_to : (char *)after + HEADER;
        b->nbytes += after->nbytes;
    }
    if (before && before->state == BLOCK_FREE) {
        unlink_block(r, before);
        from = dirty_bytes(before) ? before->dirty_from : (char *)b;
        before->nbytes += b->nbytes;
        b = before;
    }
    after = block_after(r, b);
    if (after)
        after->before = b;
    b->dirty_from = from;
    b->dirty_to = to;
    if (r->sparse && r->held + dirty_bytes(b) > (r->used > HELD_LIMIT ? r->used : HELD_LIMIT))
        release_pages(r, b);
    link_block(r, b);
}

/* Shorten a block that is no longer, or not yet, in a bin to `want` bytes, and free the rest, of
   which [from, to) may differ from zero. */
static void cut_block(struct region *r, struct block *b, size_t want, char *from, char *to)
{
    size_t rest = b->nbytes - want;
    if (rest < HEADER + ALIGNMENT)
        return;
    b->nbytes = want;
    struct block *tail = (struct block *)((char *)b + want);
    char *start = (char *)tail + HEADER;
    tail->nbytes = rest;
    tail->before = b;
    insert_free(r, tail, from < start ? start : from, to);
}

static struct block *find_free(struct region *r, size_t want)
{
    int bin = bin_of(want), tries = 0;
    struct block *b = r->bins[bin];
    for (; b && b->nbytes < want && tries < BIN_TRIES; tries++)
        b = b->next;
    if (b && b->nbytes >= want)
        return b;
    uint64_t larger = r->filled & ~((UINT64_C(2) << bin) - 1);
    if (larger)
        return r->bins[__builtin_ctzll(larger)];
    while (b && b->nbytes < want)
        b = b->next;
    return b;
}

static size_t block_bytes(size_t nbytes) { return round_up(nbytes ? nbytes : 1, ALIGNMENT) + HEADER; }

static int region_open(int id)
{
    return id >= 0 && id < MAX_REGIONS && atomic_load(&regions[id].base) != NULL;
}

/* Allocate; NULL where nothing is left that is large enough. */
static void *region_allocate(int id, size_t nbytes, int zeroed)
{
    if (forked || !region_open(id))
        return NULL;
    struct region *r = &regions[id];
    if (nbytes > r->total)
        return NULL;
    size_t want = block_bytes(nbytes);
    pthread_mutex_lock(&r->lock);
    struct block *b = atomic_load(&r->base) ? find_free(r, want) : NULL;
    if (!b) {
        pthread_mutex_unlock(&r->lock);
        return NULL;
    }
    unlink_block(r, b);
    b->state = BLOCK_USED;
    char *from = b->dirty_from, *to = b->dirty_to;
    cut_block(r, b, want, from, to);
    r->used += b->nbytes;
    r->live++;
    char *memory = (char *)b + HEADER, *end = (char *)b + b->nbytes;
    pthread_mutex_unlock(&r->lock);
    if (zeroed) {
        from = from < memory ? memory : from;
        to = to > end ? end : to;
        if (from < to)
            memset(from, 0, (size_t)(to - from));
    }
    return memory;
}

/* The region that [address, address + nbytes) lies in wholly, or -1. */
static int region_of(const void *address, size_t nbytes)
{
    int count = atomic_load_explicit(&region_count, memory_order_acquire);
    for (int id = 0; id < count; id++) {
        const char *base = atomic_load_explicit(&regions[id].base, memory_order_acquire);
        uintptr_t offset = (uintptr_t)address - (uintptr_t)base;
        if (!base)
            continue;
        size_t size = (size_t)(regions[id].end - base);
        if ((uintptr_t)address >= (uintptr_t)base && offset < size && nbytes <= size - offset)
            return id;
    }
    return -1;
}

/* Whether a live block starts at this address of a region; for a caller that holds the lock. */
static int is_block(const struct region *r, const void *address)
{
    const char *base = atomic_load(&r->base);
    return (uintptr_t)address % ALIGNMENT == 0 && (const char *)address - base >= HEADER
           && ((const struct block *)((const char *)address - HEADER))->state == BLOCK_USED;
}

/* Free; -1 where no block starts at this address, 0 otherwise. */
static int region_free(void *address)
{
    int id = region_of(address, 0);
    if (id < 0)
        return -1;
    if (forked)
        return 0;
    struct region *r = &regions[id];
    struct block *b = (struct block *)((char *)address - HEADER);
    pthread_mutex_lock(&r->lock);
    int known = is_block(r, address);
    if (known) {
        r->used -= b->nbytes;
        r->live--;
        insert_free(r, b, (char *)address, (char *)b + b->nbytes);
    }
    pthread_mutex_unlock(&r->lock);
    return known ? 0 : -1;
}

/* Make a block shorter or longer where it stands; 0 where that cannot be. */
static int region_resize(void *address, size_t nbytes)
{
    int id = region_of(address, 0), done = 0;
    if (id < 0 || forked || nbytes > regions[id].total)
        return 0;
    struct region *r = &regions[id];
    struct block *b = (struct block *)((char *)address - HEADER);
    size_t want = block_bytes(nbytes);
    pthread_mutex_lock(&r->lock);
    if (is_block(r, address)) {
        size_t before = b->nbytes;
        char *from = (char *)address, *to = (char *)b + before; /* a tail that is cut off */
        struct block *after = block_after(r, b);
        if (want > before && after && after->state == BLOCK_FREE
            && before + after->nbytes >= want) {
            from = after->dirty_from;
            to = after->dirty_to;
            unlink_block(r, after);
            b->nbytes += after->nbytes;
            after = block_after(r, b);
            if (after)
                after->before = b;
        }
        if (want <= b->nbytes) {
            cut_block(r, b, want, from, to);
            r->used = r->used - before + b->nbytes;
            done = 1;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return done;
}

/* The bytes that may be used at the address of a block. In a forked child the header may be gone:
   never more than the region has. */
static size_t region_capacity(const void *address)
{
    int id = region_of(address, 0);
    if (id < 0)
        return 0;
    size_t nbytes = ((const struct block *)((const char *)address - HEADER))->nbytes - HEADER;
    size_t rest = (size_t)(regions[id].end - (const char *)address);
    return nbytes < rest ? nbytes : rest;
}

static size_t region_largest(int id)
{
    struct region *r = &regions[id];
    size_t largest = 0;
    pthread_mutex_lock(&r->lock);
    if (r->filled) {
        struct block *b = r->bins[63 - __builtin_clzll(r->filled)];
        for (; b; b = b->next)
            largest = b->nbytes > largest ? b->nbytes : largest;
    }
    pthread_mutex_unlock(&r->lock);
    return largest > HEADER ? largest - HEADER : 0;
}

/* Make a region of memory whose first `skip` bytes are somebody else's; for one caller at a time.
   `sparse`: it is zero now, and pages of it may be given back. */
static void region_start(int id, char *base, size_t nbytes, size_t skip, int sparse)
{
    struct region *r = &regions[id];
    struct block *first = (struct block *)round_up((uintptr_t)base + skip, ALIGNMENT);
    pthread_mutex_init(&r->lock, NULL);
    memset(r->bins, 0, sizeof(r->bins));
    r->filled = 0;
    r->used = r->live = r->held = 0;
    r->sparse = sparse;
    r->end = (char *)(((uintptr_t)base + nbytes) / ALIGNMENT * ALIGNMENT);
    r->total = first->nbytes = (size_t)(r->end - (char *)first);
    first->before = NULL;
    first->dirty_from = sparse ? NULL : (char *)first + HEADER;
    first->dirty_to = sparse ? NULL : r->end;
    link_block(r, first);
    atomic_store(&r->base, base);
    if (atomic_load(&region_count) <= id)
        atomic_store(&region_count, id + 1);
}

/* Forget an added region; -1 where arrays live in it. Its memory stays the caller's. */
static int region_stop(int id)
{
    struct region *r = &regions[id];
    pthread_mutex_lock(&r->lock);
    int unused = r->live == 0;
    if (unused)
        atomic_store(&r->base, NULL);
    pthread_mutex_unlock(&r->lock);
    return unused ? 0 : -1;
}

#endif

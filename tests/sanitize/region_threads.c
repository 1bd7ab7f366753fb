/* Threads that allocate, resize and free in the same regions, for the sanitizers; what one has
 * allocated another one frees.
 *
 *     region_threads CALLS SEED
 *
 * What a block holds is compared before it is freed, and zeros are looked at. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "regions.h"

enum { THREADS = 4, BLOCKS = 64, REGIONS = 2 };

#define REGION_BYTES ((size_t)512 << 10)

/* What is allocated, for any thread to take. */
static _Atomic(unsigned char *) blocks[BLOCKS];
static uint64_t calls, seed;

#define FAIL(...) (fprintf(stderr, "region_threads: " __VA_ARGS__), fputc('\n', stderr), exit(1))

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

/* A block holds its size, and then bytes that follow from it. */
static void fill(unsigned char *block, size_t nbytes)
{
    memcpy(block, &nbytes, sizeof nbytes);
    memset(block + sizeof nbytes, (int)(nbytes % 251), nbytes - sizeof nbytes);
}

static size_t checked(const unsigned char *block)
{
    size_t nbytes;
    memcpy(&nbytes, block, sizeof nbytes);
    if (region_capacity(block) < nbytes)
        FAIL("a block has %zu bytes of %zu", region_capacity(block), nbytes);
    for (size_t i = sizeof nbytes; i < nbytes; i++)
        if (block[i] != nbytes % 251)
            FAIL("byte %zu of %zu is another one's", i, nbytes);
    return nbytes;
}

static size_t random_size(uint64_t *state)
{
    return sizeof(size_t) + draw(state, draw(state, 16) ? 2000 : 50000);
}

static void *work(void *arg)
{
    uint64_t state = seed * 31 + (uint64_t)(uintptr_t)arg;
    for (uint64_t call = 0; call < calls; call++) {
        _Atomic(unsigned char *) *place = &blocks[draw(&state, BLOCKS)];
        unsigned char *block = atomic_exchange(place, NULL);
        size_t nbytes = random_size(&state);
        if (block && draw(&state, 3) == 0) {
            const size_t before = checked(block);
            if (region_resize(block, nbytes)) {
                /* What was there is still there. */
                for (size_t i = sizeof before; i < before && i < nbytes; i++)
                    if (block[i] != before % 251)
                        FAIL("byte %zu of %zu was lost", i, before);
                fill(block, nbytes);
            }
        } else if (block) {
            checked(block);
            if (region_free(block))
                FAIL("a block is not known");
            block = NULL;
        } else {
            const int zeroed = (int)draw(&state, 2);
            block = region_allocate((int)draw(&state, REGIONS), nbytes, zeroed);
            for (size_t i = 0; block && zeroed && i < nbytes; i++)
                if (block[i])
                    FAIL("byte %zu of %zu is not zero", i, nbytes);
            if (block)
                fill(block, nbytes);
        }
        /* Where another thread has put one meanwhile, that is freed. */
        unsigned char *other = block ? atomic_exchange(place, block) : NULL;
        if (other && region_free(other))
            FAIL("a block is not known");
    }
    return NULL;
}

static char *map(size_t nbytes)
{
    char *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        FAIL("no memory");
    return base;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    if (argc != 3)
        FAIL("wanted: CALLS SEED");
    calls = strtoull(argv[1], NULL, 10);
    seed = strtoull(argv[2], NULL, 10);
    for (int id = 0; id < REGIONS; id++)
        region_start(id, map(REGION_BYTES), REGION_BYTES, 0, 1);
    for (int k = 0; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)(uintptr_t)k))
            FAIL("no thread");
    for (int k = 0; k < THREADS; k++)
        pthread_join(threads[k], NULL);
    for (int k = 0; k < BLOCKS; k++) {
        unsigned char *block = atomic_load(&blocks[k]);
        if (block && (checked(block), region_free(block)))
            FAIL("a block is not known");
    }
    for (int id = 0; id < REGIONS; id++)
        if (regions[id].live || regions[id].used
            || region_largest(id) != regions[id].total - HEADER)
            FAIL("region %d is not whole again", id);
    printf("%d threads, each %llu calls\n", THREADS, (unsigned long long)calls);
    (void)region_stop;
    return 0;
}

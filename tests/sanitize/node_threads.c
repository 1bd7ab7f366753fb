/* Ranks of a node as threads on one memory, for the sanitizers: collectives of all kinds in random
 * order, by all designs, hierarchical all-reduces among them, and ranks that disagree or leave.
 *
 *     node_threads CALLS SEED
 *
 * Every vector is allocated for one call and freed, or written over, right after it: whoever still
 * reads it then, or stores to it, is caught. Results are compared bit by bit. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, nbytes) ((void)(start), (void)(nbytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, nbytes) ((void)(start), (void)(nbytes))
#endif

/* ThreadSanitizer does not see what the kernel copies: these copy as threads of one process may. */
static ssize_t read_as_thread(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                              unsigned long, unsigned long);
static ssize_t write_as_thread(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                               unsigned long, unsigned long);
#define process_vm_readv read_as_thread
#define process_vm_writev write_as_thread

/* Little is read from a peer at once, so that short vectors have several pieces. */
#include "node_slots.h"
#undef STAGING_BYTES
#define STAGING_BYTES ((size_t)4096)

#include "node_collective.h"
#include "node_levels.h"

enum {
    MOST_RANKS = 8,
    BUFFER = 2048,
    MOST_ELEMENTS = 6000,
    LONGEST = 4 * MOST_ELEMENTS,
    LEVELS = COLLECTIVE_COUNT, /* stands for a hierarchical call where a collective is drawn */
    KIND = 5,
    LEVELS_KIND = KIND | 1 << LEVELS_SHIFT,
    NOBODY = -1,
    COUNTERS = 5,
};

#define EVERYTHING ((size_t)1 << 60)
#define LATE 12000 /* microseconds after which those who wait have looked round */

/* What lies in the arena of each rank. */
enum { INPUT, OUTPUT, LEVELS_INPUT, LEVELS_PARTIAL, LEVELS_OUTPUT, PLACES };
enum { ROOM = (LONGEST + 63) / 64 * 64 };

struct world {
    int size;
    struct slot *slots[MOST_RANKS];
    char *arenas[MOST_RANKS];
    pthread_barrier_t messages; /* what ranks tell each other by other ways than their node */
    uint64_t counters[2][MOST_RANKS][COUNTERS];
};

struct rank {
    struct world *world;
    struct node node;
    int processes[MOST_RANKS];
    uint64_t seed, calls;
    uint64_t common, own;       /* random numbers: of a call, the same on all ranks; and not */
    int looks_until_interrupt;  /* 0 for none */
    int settled;
    int leaves;                 /* whether ranks leave in these calls */
    int seen[COLLECTIVE_COUNT + 1][DESIGN_COUNT];
};

static _Thread_local struct rank *self;
/* Where the loops and transfers of this thread are late: naps of so many microseconds, one time in
 * so many. */
static _Thread_local unsigned nap_time, nap_rarity;

#define FAIL(...) (fprintf(stderr, "node_threads: " __VA_ARGS__), fputc('\n', stderr), exit(1))

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

static void nap(void)
{
    if (nap_rarity && draw(&self->own, nap_rarity) == 0)
        usleep((useconds_t)draw(&self->own, nap_time + 1));
}

static void *allocate(size_t nbytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, APART, nbytes ? nbytes : 1))
        FAIL("no memory");
    return memory;
}

/* Without ThreadSanitizer's looking at it. */
__attribute__((no_sanitize("thread"))) static void copy_unseen(char *to, const char *from, size_t n)
{
    for (volatile size_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* As the system does, at times less than was asked for. */
static ssize_t copy(pid_t process, void *to, const void *from, size_t nbytes, int unseen)
{
    if (process == NOBODY) {
        errno = EPERM;
        return -1;
    }
    if (draw(&self->own, 8) == 0) {
        errno = EINTR;
        return -1;
    }
    const size_t moved = draw(&self->own, 4) ? nbytes : 1 + draw(&self->own, nbytes);
    if (unseen)
        copy_unseen(to, from, moved);
    else
        memcpy(to, from, moved);
    nap();
    return (ssize_t)moved;
}

static ssize_t read_as_thread(pid_t process, const struct iovec *here, unsigned long here_count,
                              const struct iovec *there, unsigned long there_count,
                              unsigned long flags)
{
    (void)here_count, (void)there_count, (void)flags;
    return copy(process, here->iov_base, there->iov_base, here->iov_len, self->leaves);
}

static ssize_t write_as_thread(pid_t process, const struct iovec *here, unsigned long here_count,
                               const struct iovec *there, unsigned long there_count,
                               unsigned long flags)
{
    (void)here_count, (void)there_count, (void)flags;
    return copy(process, there->iov_base, here->iov_base, here->iov_len, 0);
}

/* Two types: words, and halves that are widened to words while they are partial. Sums wrap, and so
 * are exact. A last step on each element shows whether it was done, and once. */
typedef uint32_t word __attribute__((aligned(1), may_alias));
typedef uint16_t half __attribute__((aligned(1), may_alias));

static uint32_t finished_value(uint32_t x)
{
    return 3 * x + 1;
}

static void reduce(void *out, const void *left, const void *right, size_t n)
{
    word *o = out;
    const word *l = left, *r = right;
    nap();
    for (size_t i = 0; i < n; i++)
        o[i] = l[i] + r[i];
}

static void finish(void *in_place, double divisor, size_t n)
{
    word *x = in_place;
    (void)divisor;
    for (size_t i = 0; i < n; i++)
        x[i] = finished_value(x[i]);
}

static void widen(void *out, const void *in, size_t n)
{
    word *o = out;
    const half *x = in;
    for (size_t i = 0; i < n; i++)
        o[i] = x[i];
}

static void narrow(void *out, const void *in, size_t n)
{
    half *o = out;
    const word *x = in;
    for (size_t i = 0; i < n; i++)
        o[i] = (uint16_t)x[i];
}

static struct loops loops_of(size_t itemsize, int finishes)
{
    const int halves = itemsize == 2;
    return (struct loops){
        .reduce = reduce,
        .divide = finishes ? finish : NULL,
        .widen = halves ? widen : NULL,
        .narrow = halves ? narrow : NULL,
        .itemsize = itemsize,
        .partial_itemsize = 4,
    };
}

static uint32_t value(int rank, size_t i, uint64_t call)
{
    return (uint32_t)((uint64_t)rank * 1000003 + i * 7919 + call * 104729);
}

static void fill(char *x, size_t itemsize, struct range range, int rank, uint64_t call)
{
    for (size_t i = range.start; i < range.stop; i++) {
        const uint32_t element = value(rank, i, call);
        memcpy(x + (i - range.start) * itemsize, &element, itemsize); /* the low bytes */
    }
}

/* What a random call is; equal on all ranks but for where vectors lie. */
struct task {
    int which, root, finishes;
    size_t itemsize, count, starts[MOST_RANKS + 1];
};

static int reduces(const struct task *task)
{
    return task->which == LEVELS || task->which == COLLECTIVE_allreduce
           || task->which == COLLECTIVE_reduce_scatter || task->which == COLLECTIVE_reduce;
}

static uint32_t expected(const struct task *task, int size, size_t i, uint64_t call)
{
    uint32_t sum = 0;
    if (!reduces(task)) {
        int owner = task->root;
        if (task->which == COLLECTIVE_allgather || task->which == COLLECTIVE_gather)
            for (owner = 0; i >= task->starts[owner + 1];)
                owner++;
        return value(owner, i, call);
    }
    for (int k = 0; k < size; k++) {
        const uint32_t element = value(k, i, call);
        sum += task->itemsize == 2 ? (uint16_t)element : element;
    }
    return task->finishes ? finished_value(sum) : sum;
}

static void check(const struct task *task, const char *y, struct range range, uint64_t call)
{
    const struct node *node = &self->node;
    for (size_t i = range.start; i < range.stop; i++) {
        const uint32_t want = expected(task, node->size, i, call);
        if (memcmp(y + (i - range.start) * task->itemsize, &want, task->itemsize))
            FAIL("%s of %zu elements of %zu bytes, %s, call %llu: element %zu is wrong on rank %d "
                 "of %d", task->which == LEVELS ? "levels" : collective_names[task->which],
                 task->count, task->itemsize, design_names[node->design],
                 (unsigned long long)call, i, node->rank, node->size);
    }
}

static char *place_in_arena(int which)
{
    return self->world->arenas[self->node.rank] + (size_t)which * ROOM;
}

/* Memory for one call, in the arena or not. */
static char *take_memory(int place, int shared, size_t nbytes)
{
    char *memory = shared ? place_in_arena(place) : allocate(nbytes);
    if (shared)
        ASAN_UNPOISON_MEMORY_REGION(memory, nbytes);
    memset(memory, 0x22, nbytes);
    return memory;
}

static void give_back(char *memory, int shared, size_t nbytes)
{
    memset(memory, 0x33, nbytes);
    if (shared)
        ASAN_POISON_MEMORY_REGION(memory, nbytes);
    else
        free(memory);
}

/* The next call of all ranks. */
static struct task random_task(void)
{
    static const size_t counts[] = {0, 1, 7, 11, 30, 120, 130, 400, 900, 1200, 2500, MOST_ELEMENTS};
    uint64_t *const random = &self->common;
    const int size = self->node.size;
    *random = self->seed + self->calls * UINT64_C(0x9e3779b97f4a7c15);
    struct task task = {.which = (int)draw(random, COLLECTIVE_COUNT + 1)};
    const int barrier = task.which == COLLECTIVE_barrier;
    task.root = (int)draw(random, (uint64_t)size);
    task.itemsize = draw(random, 2) ? 4 : 2;
    task.finishes = (int)draw(random, 2);
    task.count = counts[draw(random, sizeof counts / sizeof *counts)];
    task.count = barrier ? 0 : task.count;
    if (task.which == LEVELS || task.which == COLLECTIVE_allreduce || barrier
        || task.which == COLLECTIVE_reduce_scatter || task.which == COLLECTIVE_allgather)
        task.root = EVERYONE;
    const int even = (int)draw(random, 2);
    for (int k = 1; k < size; k++) {
        const size_t cut = even ? task.count * (size_t)k / (size_t)size
                                : draw(random, task.count + 1);
        int place = k;
        for (; task.starts[place - 1] > cut; place--)
            task.starts[place] = task.starts[place - 1];
        task.starts[place] = cut;
    }
    task.starts[size] = task.count;
    return task;
}

static void random_limits(void)
{
    static const size_t gather[] = {0, 500, 2000, EVERYTHING}, slot[] = {0, 4000, EVERYTHING};
    static const size_t share[] = {0, 2000, EVERYTHING}, segment[] = {64, 192, 512, BUFFER};
    uint64_t *const random = &self->common;
    struct node *node = &self->node;
    node->gather_bytes = gather[draw(random, 4)];
    node->slot_bytes = slot[draw(random, 3)];
    node->shared_bytes = share[draw(random, 3)];
    node->segment_bytes = segment[draw(random, 4)];
    node->processes = draw(random, 8) ? self->processes : NULL;
    node->waiting.spins = (long)draw(&self->own, 100);
    node->waiting.yield_time = draw(&self->own, 4) ? 1000000 : 0;
}

/* As NodePlan.execute in _node.pyx. */
static int leaves_for_good(int outcome)
{
    const struct node *node = &self->node;
    return outcome != ELSEWHERE
           && !(outcome == GIVEN_UP && current(&node->slots[node->culprit]->given_up) == DISAGREES);
}

/* One collective; an odd rank, or none, makes another one than the others do. */
static int run_collective(const struct task *task, int odd)
{
    struct node *node = &self->node;
    const int rank = node->rank, barrier = task->which == COLLECTIVE_barrier;
    const struct collective collective = {task->which, task->root, task->count, task->starts};
    struct range give = barrier || reduces(task) ? (struct range){0, barrier ? 0 : task->count}
                                                 : given(&collective, rank);
    const struct range want = barrier ? give : wanted(&collective, rank);
    const size_t given_bytes = length(give) * task->itemsize;
    const size_t wanted_bytes = length(want) * task->itemsize;
    const uint64_t call = self->calls;

    const unsigned mode = (unsigned)draw(&self->common, 3);
    const int shared = mode == 0 || (mode == 1 && draw(&self->own, 2));
    const int in_place = draw(&self->common, 3) == 0 && length(give) && length(want) && !self->leaves
                         && task->which != COLLECTIVE_reduce_scatter;
    const int holds_input = in_place && given_bytes > wanted_bytes;
    char *x = NULL, *y = NULL;
    if (in_place) {
        /* One is a part of the other. */
        char *memory = take_memory(INPUT, shared, holds_input ? given_bytes : wanted_bytes);
        x = y = memory;
        if (holds_input)
            y += (want.start - give.start) * task->itemsize;
        else
            x += (give.start - want.start) * task->itemsize;
    } else {
        /* What a rank neither gives nor wants is not looked at. */
        x = length(give) ? take_memory(INPUT, shared, given_bytes) : NULL;
        y = length(want) ? take_memory(OUTPUT, shared, wanted_bytes) : NULL;
    }
    fill(x, task->itemsize, give, rank, call);
    const struct loops loops = loops_of(task->itemsize, task->finishes);
    const int outcome = node_collective(node, &loops, &collective, KIND + (rank == odd), x, y);
    if (outcome == DONE) {
        check(task, y, want, call);
        if (!in_place && x)
            for (size_t i = 0; i < length(give); i++) {
                const uint32_t element = value(rank, give.start + i, call);
                if (memcmp(x + i * task->itemsize, &element, task->itemsize))
                    FAIL("an input has changed");
            }
        self->seen[task->which][node->design]++;
    } else if (outcome != DIFFERENT) {
        /* As _node.pyx does for good; then vectors are their owner's again. */
        const int for_good = leaves_for_good(outcome);
        announce(&own_slot(node)->given_up, for_good ? LEFT : DISAGREES);
        if (for_good) {
            linger(node);
            /* Others may read what they throw away then, so nothing is freed here. None stores. */
            if (y)
                memset(y, 0x33, wanted_bytes);
            return outcome;
        }
    }
    if (in_place)
        give_back(holds_input ? x : y, shared, holds_input ? given_bytes : wanted_bytes);
    else {
        if (x)
            give_back(x, shared, given_bytes);
        if (y)
            give_back(y, shared, wanted_bytes);
    }
    return outcome;
}

/* A hierarchical all-reduce; on one node there is nothing to do between nodes but the last step. */
static int run_levels(const struct task *task)
{
    struct node *node = &self->node;
    const int leaders = 1 + (int)draw(&self->common, (uint64_t)node->size);
    const int pieces = 1 + (int)draw(&self->common, 4);
    int leader_ranks[MOST_RANKS];
    const uint64_t call = self->calls;
    const size_t itemsize = task->itemsize, nbytes = task->count * itemsize;
    struct levels levels = {.node = node, .loops = loops_of(itemsize, 0), .count = task->count,
                            .leaders = leaders, .leader_ranks = leader_ranks, .slice = -1,
                            .pieces = pieces};
    levels.loops.narrow = NULL;
    for (int slice = 0; slice < leaders; slice++) {
        leader_ranks[slice] = slice * (node->size / leaders);
        if (leader_ranks[slice] == node->rank)
            levels.slice = slice;
    }
    const struct range all = levels.slice < 0 ? (struct range){0, 0}
                                              : slice_of(&levels, levels.slice);
    levels.input = take_memory(LEVELS_INPUT, 1, nbytes);
    levels.partial = take_memory(LEVELS_PARTIAL, 1, length(all) * 4);
    levels.output = take_memory(LEVELS_OUTPUT, 1, length(all) * itemsize);
    char *source = take_memory(INPUT, 0, nbytes), *target = take_memory(OUTPUT, 0, nbytes);
    fill(source, itemsize, (struct range){0, task->count}, node->rank, call);

    int outcome = levels_begin(&levels, LEVELS_KIND, source, target);
    int reduced = 0;
    for (int piece = 0; piece < pieces && !outcome; piece++) {
        /* Leaders may be ahead with reducing, as far as they like. */
        const int ahead = levels.slice < 0 ? 0 : (int)draw(&self->own, 3);
        while (reduced < pieces && reduced <= piece + ahead && !outcome)
            outcome = levels_reduce(&levels, reduced++);
        if (outcome)
            break;
        const struct range part = levels.slice < 0 ? all : piece_of(&levels, levels.slice, piece);
        for (size_t i = part.start - all.start; i < part.stop - all.start; i++) {
            uint32_t element = ((const word *)levels.partial)[i];
            element = task->finishes ? finished_value(element) : element;
            memcpy(levels.output + i * itemsize, &element, itemsize);
        }
        nap();
        outcome = levels_publish(&levels, piece);
    }
    if (!outcome)
        outcome = levels_end(&levels);
    if (outcome == DONE) {
        check(task, target, (struct range){0, task->count}, call);
        self->seen[LEVELS][DESIGN_none]++;
    } else if (outcome != DIFFERENT) {
        const int for_good = leaves_for_good(outcome);
        announce(&own_slot(node)->given_up, for_good ? LEFT : DISAGREES);
        if (for_good) {
            linger(node);
            memset(levels.partial, 0x33, length(all) * 4);
        }
    }
    give_back(source, 0, nbytes);
    give_back(target, 0, nbytes);
    /* What is in the arena is the plan's, and stays. */
    return outcome;
}

/* As hpccoll.channel.Channel.settle: by messages, ranks agree on what they have counted. */
static void settle(void)
{
    struct node *node = &self->node;
    struct slot *mine = own_slot(node);
    uint64_t(*const told)[COUNTERS] = self->world->counters[self->settled++ % 2];
    pthread_barrier_wait(&self->world->messages);
    const uint64_t counters[COUNTERS] = {
        node->calls,
        node->segments > current(&mine->copied) ? node->segments : current(&mine->copied),
        node->pieces > current(&mine->reduced) ? node->pieces : current(&mine->reduced),
        node->published > current(&mine->published) ? node->published : current(&mine->published),
        current(&mine->by_messages),
    };
    announce(&mine->given_up, STAYS);
    memcpy(told[node->rank], counters, sizeof counters);
    pthread_barrier_wait(&self->world->messages);
    uint64_t greatest[COUNTERS] = {0};
    for (int k = 0; k < node->size; k++)
        for (int i = 0; i < COUNTERS; i++)
            greatest[i] = told[k][i] > greatest[i] ? told[k][i] : greatest[i];
    node->calls = greatest[0];
    node->segments = greatest[1];
    node->pieces = greatest[2];
    node->published = greatest[3];
    announce(&mine->by_messages, greatest[4]);
}

/* What a rank that waits for long does: as `attend` in _node.pyx. */
static int look_round(void *context, int64_t waited)
{
    (void)waited;
    struct rank *rank = context;
    struct node *node = &rank->node;
    for (int k = 0; k < node->size; k++)
        if (current(&node->slots[k]->given_up)) {
            node->culprit = k;
            return GIVEN_UP;
        }
    const uint64_t mine = current(&own_slot(node)->by_messages);
    for (int k = 0; k < node->size && node->beginning; k++)
        if (current(&header_of(node, k)->call) < node->calls
            && current(&node->slots[k]->by_messages) > mine)
            return ELSEWHERE;
    if (rank->looks_until_interrupt && --rank->looks_until_interrupt == 0) {
        usleep((useconds_t)draw(&rank->own, LATE)); /* what handles a signal takes its time */
        return INTERRUPTED;
    }
    return 0;
}

static void must_be(int outcome, int wanted, const char *what)
{
    if (outcome != wanted)
        FAIL("%s: outcome %d, not %d, on rank %d of %d", what, outcome, wanted, self->node.rank,
             self->node.size);
}

/* Calls of all kinds, one after the other. */
static void *make_calls(void *arg)
{
    self = arg;
    struct node *node = &self->node;
    const uint64_t last = self->calls;
    for (self->calls = 0; self->calls < last; self->calls++) {
        const struct task task = random_task();
        random_limits();
        nap_rarity = draw(&self->common, 3) ? 0 : 50;
        nap_time = 200;
        const uint64_t special = draw(&self->common, 100);
        const int odd = node->size > 1 ? (int)draw(&self->common, (uint64_t)node->size) : NOBODY;
        if (odd == NOBODY || special >= 8 || (task.which == LEVELS && special >= 2))
            must_be(task.which == LEVELS ? run_levels(&task) : run_collective(&task, NOBODY), DONE,
                    "a call");
        else if (task.which == LEVELS) {
            /* One rank makes another call in the node: all are told, but out of step. */
            struct task other = task;
            other.which = COLLECTIVE_allreduce;
            must_be(node->rank == odd ? run_collective(&other, NOBODY) : run_levels(&task),
                    DIFFERENT, "levels and a flat call");
            settle();
        } else if (special >= 2) {
            must_be(run_collective(&task, odd), DIFFERENT, "different calls");
        } else {
            /* One rank makes a call by messages. */
            if (node->rank == odd)
                announce(&own_slot(node)->by_messages, current(&own_slot(node)->by_messages) + 1);
            else {
                const int outcome = run_collective(&task, NOBODY);
                if (leaves_for_good(outcome))
                    must_be(outcome, ELSEWHERE, "a call by messages");
            }
            settle();
        }
        if (draw(&self->own, 8) == 0)
            usleep((useconds_t)draw(&self->own, 200));
    }
    return NULL;
}

/* Calls until a rank is interrupted while it waits, or cannot read its peers' memory; all leave. */
static void *leave(void *arg)
{
    self = arg;
    self->leaves = 1;
    struct node *node = &self->node;
    const int victim = (int)draw(&self->common, (uint64_t)node->size);
    const int blind = draw(&self->common, 4) == 0;
    int outcome = DONE;
    if (node->rank == victim && blind)
        for (int k = 0; k < node->size; k++)
            self->processes[k] = NOBODY;
    else if (node->rank == victim)
        self->looks_until_interrupt = 1;
    for (self->calls = 0; outcome == DONE && self->calls < 5000; self->calls++) {
        const struct task task = random_task();
        random_limits();
        /* The victim waits for those who are late: before they begin, or in the midst. */
        nap_time = LATE;
        nap_rarity = node->rank != victim && !blind ? 5 : 0;
        if (nap_rarity && draw(&self->own, 8) == 0)
            usleep((useconds_t)draw(&self->own, LATE));
        outcome = task.which == LEVELS ? run_levels(&task) : run_collective(&task, NOBODY);
    }
    if (node->rank == victim)
        must_be(outcome, blind ? UNREADABLE : INTERRUPTED, "the one that leaves first");
    else
        must_be(outcome, GIVEN_UP, "the others");
    return NULL;
}

static struct rank *make_rank(struct world *world, int number, uint64_t seed, uint64_t calls)
{
    struct rank *rank = calloc(1, sizeof *rank);
    rank->world = world;
    rank->calls = calls;
    rank->seed = rank->common = seed;
    rank->own = seed * 31 + (uint64_t)number + 1;
    rank->node = (struct node){
        .rank = number,
        .size = world->size,
        .slots = world->slots,
        .arenas = world->arenas,
        .arena_bytes = (size_t)PLACES * ROOM,
        .buffer_bytes = BUFFER,
        .inputs = calloc((size_t)world->size, sizeof(char *)),
        .outputs = calloc((size_t)world->size, sizeof(char *)),
        .memory = allocate(MEMORY_BYTES),
        .staging = allocate(STAGING_BYTES),
    };
    rank->node.waiting.attend = look_round;
    rank->node.waiting.context = rank;
    return rank;
}

static void free_rank(struct rank *rank)
{
    free(rank->node.inputs);
    free(rank->node.outputs);
    free(rank->node.memory);
    free(rank->node.staging);
    free(rank);
}

/* Run `work` on all ranks of a node of its own. */
static void run(int size, uint64_t seed, uint64_t calls, void *(*work)(void *),
                int seen[][DESIGN_COUNT])
{
    struct world world = {.size = size};
    struct rank *ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    pthread_barrier_init(&world.messages, NULL, (unsigned)size);
    for (int k = 0; k < size; k++) {
        world.slots[k] = allocate(SLOT_HEAD_BYTES + 4 * (size_t)BUFFER);
        memset(world.slots[k], 0, SLOT_HEAD_BYTES + 4 * (size_t)BUFFER);
        world.arenas[k] = allocate((size_t)PLACES * ROOM);
        ASAN_POISON_MEMORY_REGION(world.arenas[k], (size_t)PLACES * ROOM);
    }
    for (int k = 0; k < size; k++) {
        ranks[k] = make_rank(&world, k, seed, calls);
        if (pthread_create(&threads[k], NULL, work, ranks[k]))
            FAIL("no thread");
    }
    for (int k = 0; k < size; k++)
        pthread_join(threads[k], NULL);
    for (int k = 0; k < size; k++) {
        for (int which = 0; which <= COLLECTIVE_COUNT; which++)
            for (int design = 0; design < DESIGN_COUNT; design++)
                seen[which][design] += ranks[k]->seen[which][design];
        free_rank(ranks[k]);
        free(world.slots[k]);
        ASAN_UNPOISON_MEMORY_REGION(world.arenas[k], (size_t)PLACES * ROOM);
        free(world.arenas[k]);
    }
    pthread_barrier_destroy(&world.messages);
}

/* Whether a collective has a design. */
static int exists(int which, int design)
{
    switch (which) {
    case LEVELS:
        return design == DESIGN_none;
    case COLLECTIVE_barrier:
        return design == DESIGN_in_line;
    case COLLECTIVE_allreduce:
    case COLLECTIVE_reduce:
    case COLLECTIVE_reduce_scatter:
        return design != DESIGN_none;
    default:
        return design != DESIGN_none && design != DESIGN_gathered;
    }
}

int main(int argc, char **argv)
{
    (void)hear_out; /* only _node.pyx calls it */
    if (argc != 3)
        FAIL("wanted: CALLS SEED");
    const uint64_t calls = strtoull(argv[1], NULL, 10), seed = strtoull(argv[2], NULL, 10);
    for (int size = 1; size <= 5; size++) {
        int seen[COLLECTIVE_COUNT + 1][DESIGN_COUNT] = {0}, unused[COLLECTIVE_COUNT + 1][DESIGN_COUNT];
        const int64_t start = nanoseconds();
        run(size, seed + (uint64_t)size, calls, make_calls, seen);
        for (int which = 0; which <= COLLECTIVE_COUNT; which++)
            for (int design = 0; design < DESIGN_COUNT; design++)
                if (!seen[which][design] != !exists(which, design))
                    FAIL("%s by design %s: %d times on %d ranks",
                         which == LEVELS ? "levels" : collective_names[which],
                         design_names[design], seen[which][design], size);
        const int64_t middle = nanoseconds();
        const uint64_t leavings = size > 1 ? calls / 40 : 0;
        for (uint64_t k = 0; k < leavings; k++)
            run(size, seed * 1000 + k * 10 + (uint64_t)size, 0, leave, unused);
        printf("%d ranks: %llu calls in %.1f s, %llu times all leave in %.1f s\n", size,
               (unsigned long long)calls, (double)(middle - start) / 1e9,
               (unsigned long long)leavings, (double)(nanoseconds() - middle) / 1e9);
        fflush(stdout);
    }
    (void)crossing_time, (void)reads_like;
    return 0;
}

/* Waiting for a number in memory that another process stores: spin briefly, then let others run,
 * then sleep. How long each takes is a setting, since it depends on whether every rank has a core.
 *
 * A waiting loop never holds the interpreter lock for long: it calls `attend` every few
 * milliseconds, which may end the wait. */
#ifndef HPCCOLL_WAITING_H
#define HPCCOLL_WAITING_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("isb")
#else
#define PAUSE() ((void)0)
#endif

typedef _Atomic uint64_t counter;

struct waiting {
    long spins;            /* looks at the counter before anything else */
    int64_t yield_time;    /* nanoseconds for which others are let run, before sleeping */
    int64_t time_limit;    /* nanoseconds that one wait may take; 0 for no limit */
    /* Called while waiting, with the nanoseconds so far; what is not 0 ends the wait. */
    int (*attend)(void *context, int64_t waited);
    void *context;
};

enum {
    TIME_IS_UP = -100,
};

#define ATTEND_EVERY ((int64_t)5000000)
#define LONGEST_SLEEP ((int64_t)1000000)
#define SHORTEST_SLEEP ((int64_t)20000)

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleeps get longer with the wait, so that a short one ends soon and a long one costs nothing. */
static void sleep_after(int64_t waited)
{
    int64_t duration = waited / 16;
    duration = duration < SHORTEST_SLEEP ? SHORTEST_SLEEP : duration;
    duration = duration > LONGEST_SLEEP ? LONGEST_SLEEP : duration;
    nanosleep(&(struct timespec){0, (long)duration}, NULL);
}

static int wait_slowly(const counter *flag, uint64_t value, const struct waiting *how)
{
    const int64_t start = nanoseconds();
    int64_t attended = start;
    for (;;) {
        const int64_t now = nanoseconds();
        if (now - attended >= ATTEND_EVERY) {
            const int answer = how->attend(how->context, now - start);
            if (answer)
                return answer;
            attended = now;
        }
        if (how->time_limit && now - start >= how->time_limit)
            return TIME_IS_UP;
        if (now - start < how->yield_time) {
            for (int i = 0; i < 16; i++) {
                sched_yield();
                if (atomic_load_explicit(flag, memory_order_acquire) >= value)
                    return 0;
            }
        } else {
            sleep_after(now - start);
        }
        if (atomic_load_explicit(flag, memory_order_acquire) >= value)
            return 0;
    }
}

/* Return 0 when the counter has reached a value, else what ended the wait. */
static inline int wait_until(const counter *flag, uint64_t value, const struct waiting *how)
{
    for (long i = 0; i <= how->spins; i++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= value)
            return 0;
        PAUSE();
    }
    return wait_slowly(flag, value, how);
}

#endif

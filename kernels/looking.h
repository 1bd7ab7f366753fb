/* Looking whether something is complete that nobody stores a number for: a message, an event. */
#ifndef HPCCOLL_LOOKING_H
#define HPCCOLL_LOOKING_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "waiting.h"

enum { SHORTEST_NAP = 5000, LOOKS_PER_GLANCE = 64, LOOKS_ALONE = 8 };

static inline void sleep_for(long nanoseconds)
{
    nanosleep(&(struct timespec){0, nanoseconds}, NULL);
}

typedef int test_function(void *request, int *flag, void *status);

/* Look at a transfer until it is complete, or for so many nanoseconds. */
static inline int look_at(test_function *test, void *request, void *status, long longest_nap,
                          int64_t patience, int *complete)
{
    long nap = SHORTEST_NAP;
    int64_t start = 0;
    for (int looks = 1;; looks++) {
        const int error = test(request, complete, status);
        if (error || *complete)
            return error;
        if (longest_nap) {
            nap = nap < longest_nap ? nap : longest_nap;
            sleep_for(nap);
            nap *= 2;
        } else {
            /* Whom it waits for may need this core. */
            if (looks > LOOKS_ALONE)
                sched_yield();
            if (looks % LOOKS_PER_GLANCE)
                continue;
        }
        const int64_t now = nanoseconds();
        start = start ? start : now;
        if (now - start >= patience)
            return 0;
    }
}

#endif

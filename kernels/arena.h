/* The arena of this process, and those of its peers on the node.
 *
 * The arena is an unnamed file in memory (memfd), mapped once. It has the size that it may grow to, and
 * only the pages that were touched take memory. Whoever may debug this process, which is to say the
 * same user, can map it through /proc/PID/fd/FD; nobody else can, and nothing is left behind
 * however the process ends. Region 0 of regions.h is in it.
 *
 * It starts with a nonce of this process: in another container, the same process number may stand
 * for another process, and a peer finds out before it maps anything.
 */
#ifndef HPCCOLL_ARENA_H
#define HPCCOLL_ARENA_H

#include "regions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/random.h>
#endif

enum {
    NONCE_BYTES = 16,
    ARENA = 0, /* its region */
};

static struct arena_facts {
    char *base;
    size_t capacity;
    int fd;
    pid_t pid;
    unsigned char nonce[NONCE_BYTES];
} arena;

static void arena_forked(void) { forked = 1; }

#ifdef MFD_CLOEXEC

static int arena_file(size_t capacity)
{
    int fd = -1;
#ifdef MFD_NOEXEC_SEAL /* newer systems complain where it is left out, older ones where it is there */
    fd = memfd_create("hpccoll", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
#endif
    if (fd < 0)
        fd = memfd_create("hpccoll", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)capacity) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    /* A file that shrank under a mapping would end this process by SIGBUS. Not vital: no check. */
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

/* Make the arena. Returns 0, or -1 with errno set; for one caller at a time, and once. */
static int arena_open(size_t capacity)
{
    static int watching; /* for forks */
    unsigned char nonce[NONCE_BYTES];
    capacity = round_up(capacity, (size_t)sysconf(_SC_PAGESIZE));
    if (getrandom(nonce, sizeof(nonce), 0) != sizeof(nonce))
        return -1;
    int fd = arena_file(capacity);
    if (fd < 0)
        return -1;
    char *base = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED || (!watching && (errno = pthread_atfork(NULL, NULL, arena_forked)))) {
        int error = errno;
        if (base != MAP_FAILED)
            munmap(base, capacity);
        close(fd);
        errno = error;
        return -1;
    }
    watching = 1;
    (void)madvise(base, capacity, MADV_HUGEPAGE); /* a wish */
    memcpy(base, nonce, sizeof(nonce));
    memcpy(arena.nonce, nonce, sizeof(nonce));
    arena.base = base;
    arena.capacity = capacity;
    arena.fd = fd;
    arena.pid = getpid();
    region_start(ARENA, base, capacity, NONCE_BYTES, 1);
    return 0;
}

/* Map the arena of another process. NULL with errno set, and what failed in *what. */
static char *peer_map(long pid, int fd, size_t capacity, const unsigned char *nonce,
                      const char **what)
{
    char path[64];
    struct stat facts;
    unsigned char found[NONCE_BYTES];
    snprintf(path, sizeof(path), "/proc/%ld/fd/%d", pid, fd);
    *what = "it cannot be opened";
    /* Whatever it is that stands there: do not wait for it, and take no terminal for our own. */
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return NULL;
    char *base = NULL;
    *what = "that is another file, of another process or in another PID namespace";
    errno = ESRCH;
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && (size_t)facts.st_size == capacity
        && pread(file, found, sizeof(found), 0) == sizeof(found)
        && memcmp(found, nonce, sizeof(found)) == 0) {
        *what = "it cannot be mapped";
        base = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (base == MAP_FAILED)
            base = NULL;
        else {
            (void)madvise(base, capacity, MADV_HUGEPAGE);
            (void)madvise(base, capacity, MADV_DONTDUMP); /* in the core file of its owner */
        }
    } else
        errno = ESRCH;
    int error = errno;
    close(file); /* the mapping stays */
    errno = error;
    return base;
}

#else /* a system without memfd */

static int arena_open(size_t capacity)
{
    (void)capacity;
    (void)arena_forked;
    errno = ENOSYS;
    return -1;
}

static char *peer_map(long pid, int fd, size_t capacity, const unsigned char *nonce,
                      const char **what)
{
    (void)pid, (void)fd, (void)capacity, (void)nonce;
    *what = "this system has no memfd";
    errno = ENOSYS;
    return NULL;
}

#endif

static int peer_unmap(char *base, size_t capacity) { return munmap(base, capacity); }

#endif

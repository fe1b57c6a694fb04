/* A failing or slow disk and a wrong clock for one process, loaded before libc (LD_PRELOAD).
 *
 * DISK_FAULTS_ROOT     faults apply to files below this directory only
 * DISK_FAULTS_CONTROL  a file with the struct below, shared with the test: fault rates, and counts of injected faults
 *
 * Failing calls behave as the kernel allows: nothing is written, only a part is written, or nothing is synced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t write_fails, write_short, sync_fails, slow; /* rates per thousand calls */
    int32_t slow_ms, unused;
    int64_t clock_seconds;
    int32_t failed_writes, short_writes, failed_syncs, slow_calls;
};

static struct control *control;
static const char *root;
static size_t root_length;
static unsigned int random_state = 1;

static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("DISK_FAULTS_CONTROL");
    root = getenv("DISK_FAULTS_ROOT");
    int file = path && root ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    root_length = strlen(root);
    random_state = (unsigned int)getpid();
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED) control = shared;
}

static int is_below_root(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return length > (ssize_t)root_length && memcmp(path, root, root_length) == 0;
}

static int happens(int32_t per_thousand, int32_t *count) {
    if (rand_r(&random_state) % 1000 >= per_thousand) return 0;
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    return 1;
}

static int is_affected(int file) {
    if (!control || !(control->write_fails | control->write_short | control->sync_fails | control->slow)) return 0;
    int saved_errno = errno, affected = is_below_root(file);
    errno = saved_errno;
    if (affected && happens(control->slow, &control->slow_calls)) usleep((useconds_t)control->slow_ms * 1000);
    return affected;
}

static int fail(void) {
    errno = rand_r(&random_state) % 2 ? EIO : ENOSPC;
    return -1;
}

ssize_t write(int file, const void *data, size_t size) {
    if (is_affected(file)) {
        if (happens(control->write_fails, &control->failed_writes)) return fail();
        if (size > 1 && happens(control->write_short, &control->short_writes)) size /= 2;
    }
    return real_write(file, data, size);
}

int fsync(int file) {
    if (is_affected(file) && happens(control->sync_fails, &control->failed_syncs)) return fail();
    return real_fsync(file);
}

int fdatasync(int file) {
    if (is_affected(file) && happens(control->sync_fails, &control->failed_syncs)) return fail();
    return real_fdatasync(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = real_clock(clock, now);
    if (control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += control->clock_seconds;
    return result;
}

/* Preloaded into a process: kills it inside a write to, or a sync of, a file whose name holds TORN_NAME.

   `torn_arm(n, tears)` lets n - 1 such calls pass and kills the process in the n-th: with `tears`, after half of its
   bytes were written, otherwise before any was. Until it is called, every call passes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long left = -1;
static int tearing;

void torn_arm(long n, int tears) {
    left = n;
    tearing = tears;
}

static int is_its_turn(int descriptor) {
    char link[64], path[4096];
    if (left < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    const char *name = getenv("TORN_NAME");
    return name && strstr(path, name) && --left == 0;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define REAL(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

#define POSITIONED(name, offset_t)                                                       \
    ssize_t name(int descriptor, const void *bytes, size_t size, offset_t offset) {      \
        if (is_its_turn(descriptor)) {                                                   \
            if (tearing) REAL(name)(descriptor, bytes, size / 2, offset);                \
            die();                                                                       \
        }                                                                                \
        return REAL(name)(descriptor, bytes, size, offset);                              \
    }

POSITIONED(pwrite, off_t)
POSITIONED(pwrite64, off64_t)

ssize_t write(int descriptor, const void *bytes, size_t size) {
    if (is_its_turn(descriptor)) {
        if (tearing) REAL(write)(descriptor, bytes, size / 2);
        die();
    }
    return REAL(write)(descriptor, bytes, size);
}

#define ONE(name)                                   \
    int name(int descriptor) {                      \
        if (is_its_turn(descriptor)) die();         \
        return REAL(name)(descriptor);              \
    }

ONE(fsync)
ONE(fdatasync)

int ftruncate64(int descriptor, off64_t size) {
    if (is_its_turn(descriptor)) die();
    return REAL(ftruncate64)(descriptor, size);
}

/* Preloaded into a process: its wall clock is ahead by what stands in the file named by CLOCK_FILE, at every moment.

   The file holds two doubles, in seconds: what is added to wall time, and what is added to the time since boot. To set a
   clock is to change the first, to suspend a machine both: its monotonic clock stands still meanwhile. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *ahead;

__attribute__((constructor)) static void open_file(void) {
    const char *name = getenv("CLOCK_FILE");
    int descriptor = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *found = mmap(NULL, 2 * sizeof(double), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result != 0 || !ahead) return result;
    double seconds = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? ahead[0] : id == CLOCK_BOOTTIME ? ahead[1] : 0;
    now->tv_sec += (time_t)floor(seconds);
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* A clock that can be set under a running program: LD_PRELOAD. FAILOVER_TEST_CLOCK names a file; the 8 bytes in it,
   nanoseconds, are added to the time of day. Clocks that nobody sets (monotonic, boot time) are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t nobody;
static const volatile int64_t *ahead = &nobody;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAILOVER_TEST_CLOCK");
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(NULL, sizeof nobody, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) ahead = found;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  if (!real) begin(); /* another library's constructor came first */
  int failed = real(clock, out);
  if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t at = (int64_t)out->tv_sec * 1000000000 + out->tv_nsec + *ahead;
  out->tv_sec = at / 1000000000;
  out->tv_nsec = at % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *out, int base) {
  return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, out) ? base : 0;
}

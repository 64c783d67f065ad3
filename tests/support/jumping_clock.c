/* A wall clock that jumps: what this library is preloaded into reads the system's time plus the nanoseconds that stand
 * in the file $JUMPING_CLOCK, as one 64-bit number, whenever it asks. Monotonic clocks stay as they are, as they do when
 * somebody sets a real clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t nothing = 0, *offset = &nothing;

__attribute__((constructor)) static void find(void) {
  const char *path = getenv("JUMPING_CLOCK");
  int handle = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (handle < 0) return;
  void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, handle, 0);
  if (found != MAP_FAILED) offset = found;
  close(handle);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t shown = now->tv_sec * SECOND + now->tv_nsec + *offset;
  now->tv_sec = shown / SECOND;
  now->tv_nsec = shown % SECOND;
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *place) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (place) *place = found.tv_sec;
  return found.tv_sec;
}

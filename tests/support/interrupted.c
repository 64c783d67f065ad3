/* Kills the process at its Nth operation on files: a write is torn in half, a sync, rename, truncation or removal does
 * not happen. `interrupt_at(N)` begins to count, at 1; `operations()` tells how many there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_long count = 0, end = -1;

void interrupt_at(long number) {
  atomic_store(&count, 0);
  atomic_store(&end, number);
}

long operations(void) { return atomic_load(&count); }

static int strikes(void) { return atomic_load(&end) >= 0 && atomic_fetch_add(&count, 1) + 1 == atomic_load(&end); }

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define AT_ONCE(type, name, parameters, arguments)      \
  type name parameters {                                \
    if (strikes()) kill(getpid(), SIGKILL);             \
    return NEXT(name) arguments;                        \
  }

ssize_t write(int file, const void *data, size_t size) {
  if (file <= 2) return NEXT(write)(file, data, size);
  if (strikes()) {
    NEXT(write)(file, data, size / 2);
    kill(getpid(), SIGKILL);
  }
  return NEXT(write)(file, data, size);
}

#define TORN_AT(name, offset_type)                                                \
  ssize_t name(int file, const void *data, size_t size, offset_type at) {         \
    if (strikes()) {                                                              \
      NEXT(name)(file, data, size / 2, at);                                       \
      kill(getpid(), SIGKILL);                                                    \
    }                                                                             \
    return NEXT(name)(file, data, size, at);                                      \
  }

TORN_AT(pwrite, off_t)
TORN_AT(pwrite64, off64_t)
AT_ONCE(int, fsync, (int file), (file))
AT_ONCE(int, fdatasync, (int file), (file))
AT_ONCE(int, ftruncate, (int file, off_t size), (file, size))
AT_ONCE(int, ftruncate64, (int file, off64_t size), (file, size))
AT_ONCE(int, unlink, (const char *path), (path))
AT_ONCE(int, rename, (const char *from, const char *to), (from, to))

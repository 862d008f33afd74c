// Makes the operating system fail, for tests of the program: preloaded (LD_PRELOAD) into it, passes
// calls of the C library on, except where the environment says otherwise. It acts on the ranks of
// quantmill only, not on mpirun.
//
//   FAULT_RULES  "CALLS TEXT WHAT WHEN", several with ';' between: of the calls CALLS (names with
//   ',' between, "any" is
//                all) on a path that contains TEXT ("*" is any), those that WHEN picks fail as WHAT
//                says. WHEN: "3" the third alone, "3+" the third and all later ones. WHAT: ENOSPC,
//                EDQUOT, EIO, EROFS, EACCES, EINVAL; "short": half the bytes are transferred;
//                "slow": the call takes four seconds and succeeds.
//                CALLS: open (to read), create (an open that may write), mkdir, read, write,
//                truncate, allocate, sync, rename, rename2 (with flags); those with an offset are
//                meant too.
//   FAULT_RANK   only this rank of an MPI job
//   FAULT_DISK   "BYTES TEXT": room for so many bytes, of all files whose path contains TEXT
//   together, written or
//                reserved, in one process; then ENOSPC
//   FAULT_CLOCK  SECONDS: the wall clock jumps back and forth by so many, at every other look at it
//   FAULT_LOG    file that gets a line for each call: "PID CALL PATH BYTES RESULT", where a
//   rename's
//                BYTES is its new name
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 8, SHORT = -1, SLOW = -2, SLOW_SECONDS = 4 };

struct rule {
  char calls[64];
  char text[128];
  int what;  // an errno, SHORT or SLOW
  long first;
  bool later;  // and all after the first
  atomic_long seen;
};

static struct rule rules[MAX_RULES];
static int num_rules;
static char disk_text[128];
static atomic_long disk_left;
static bool has_disk;
static int log_descriptor = -1;
static long clock_jump;
static atomic_long clock_looks;
static bool is_active;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int error_number(const char* name) {
  static const struct {
    const char* name;
    int number;
  } known[] = {{"ENOSPC", ENOSPC},
               {"EDQUOT", EDQUOT},
               {"EIO", EIO},
               {"EROFS", EROFS},
               {"EACCES", EACCES},
               {"EINVAL", EINVAL},
               {"short", SHORT},
               {"slow", SLOW}};

  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (strcmp(known[i].name, name) == 0) {
      return known[i].number;
    }
  }
  fprintf(stderr, "faults: unknown fault %s\n", name);
  abort();
}

static void read_rules(const char* text) {
  char copy[1024];
  snprintf(copy, sizeof copy, "%s", text);
  char* rest = copy;
  for (char* one = strtok_r(copy, ";", &rest); one != NULL; one = strtok_r(NULL, ";", &rest)) {
    struct rule* rule = &rules[num_rules];
    char what[16];
    char later = 0;
    if (num_rules == MAX_RULES ||
        sscanf(one, " %63s %127s %15s %ld%c", rule->calls, rule->text, what, &rule->first, &later) <
            4) {
      fprintf(stderr, "faults: bad rule '%s'\n", one);
      abort();
    }
    rule->what = error_number(what);
    rule->later = later == '+';
    ++num_rules;
  }
}

static void start(void) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* wanted = getenv("FAULT_RANK");
  if (strcmp(program_invocation_short_name, "quantmill") != 0 ||
      (wanted != NULL && (rank == NULL || strcmp(rank, wanted) != 0))) {
    return;
  }
  if (getenv("FAULT_RULES") != NULL) {
    read_rules(getenv("FAULT_RULES"));
  }
  if (getenv("FAULT_DISK") != NULL) {
    long bytes = 0;
    has_disk = sscanf(getenv("FAULT_DISK"), "%ld %127s", &bytes, disk_text) == 2;
    atomic_store(&disk_left, bytes);
  }
  if (getenv("FAULT_CLOCK") != NULL) {
    clock_jump = atol(getenv("FAULT_CLOCK"));
  }
  if (getenv("FAULT_LOG") != NULL) {
    log_descriptor = (int)syscall(
        SYS_openat, AT_FDCWD, getenv("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  }
  is_active = true;
}

static bool active(void) {
  pthread_once(&once, start);
  return is_active;
}

static bool watches_files(void) {
  return active() && (num_rules > 0 || has_disk || log_descriptor >= 0);
}

// "a" is one of the names in "a,b,c".
static bool lists(const char* names, const char* name) {
  const size_t length = strlen(name);
  for (const char* at = names; (at = strstr(at, name)) != NULL; at += length) {
    if ((at == names || at[-1] == ',') && (at[length] == '\0' || at[length] == ',')) {
      return true;
    }
  }
  return strcmp(names, "any") == 0;
}

// The fault for this call, or 0.
static int fault(const char* call, const char* path) {
  for (int i = 0; i < num_rules; ++i) {
    struct rule* rule = &rules[i];
    if (lists(rule->calls, call) &&
        (strcmp(rule->text, "*") == 0 || strstr(path, rule->text) != NULL)) {
      const long number = 1 + atomic_fetch_add(&rule->seen, 1);
      if (number == rule->first || (rule->later && number > rule->first)) {
        return rule->what;
      }
    }
  }
  return 0;
}

static const char* path_of(int descriptor, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = '\0';
  return path;
}

static void note(const char* call, const char* path, const char* bytes, long result) {
  if (log_descriptor < 0) {
    return;
  }
  char line[3 * PATH_MAX];
  const int saved = errno;
  const int length =
      snprintf(line, sizeof line, "%d %s %s %s %ld\n", getpid(), call, path, bytes, result);
  syscall(SYS_write, log_descriptor, line, (size_t)length);
  errno = saved;
}

static void note_bytes(const char* call, const char* path, size_t bytes, long result) {
  char number[32];
  snprintf(number, sizeof number, "%zu", bytes);
  note(call, path, number, result);
}

#define REAL(name)                                     \
  static __typeof__(name)* real;                       \
  if (real == NULL) {                                  \
    real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name); \
  }

// What there is room for of `bytes`, taken from the disk.
static size_t take_room(const char* path, size_t bytes) {
  if (!has_disk || strstr(path, disk_text) == NULL) {
    return bytes;
  }
  const long before = atomic_fetch_sub(&disk_left, (long)bytes);
  if (before >= (long)bytes) {
    return bytes;
  }
  const size_t room = before > 0 ? (size_t)before : 0;
  atomic_fetch_add(&disk_left, (long)(bytes - room));
  return room;
}

// Whether the call fails or is cut short: sets *bytes to what is to be transferred, or errno and
// returns true.
static bool fails(const char* call, const char* path, size_t* bytes) {
  const int what = fault(call, path);
  if (what == SHORT) {
    *bytes = *bytes > 1 ? *bytes / 2 : *bytes;
  } else if (what == SLOW) {
    sleep(SLOW_SECONDS);
  } else if (what != 0) {
    errno = what;
    return true;
  }
  return false;
}

static bool write_fails(const char* path, size_t* bytes) {
  if (fails("write", path, bytes)) {
    return true;
  }
  const size_t wanted = *bytes;
  *bytes = take_room(path, wanted);
  errno = ENOSPC;
  return wanted > 0 && *bytes == 0;
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  REAL(pwrite);
  char path[PATH_MAX];
  if (!watches_files()) {
    return real(descriptor, data, bytes, offset);
  }
  const ssize_t result =
      write_fails(path_of(descriptor, path), &bytes) ? -1 : real(descriptor, data, bytes, offset);
  note_bytes("write", path, bytes, result);
  return result;
}

ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  return pwrite(descriptor, data, bytes, offset);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  REAL(write);
  char path[PATH_MAX];
  if (!watches_files()) {
    return real(descriptor, data, bytes);
  }
  const ssize_t result =
      write_fails(path_of(descriptor, path), &bytes) ? -1 : real(descriptor, data, bytes);
  note_bytes("write", path, bytes, result);
  return result;
}

ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) {
  REAL(pread);
  char path[PATH_MAX];
  if (watches_files() && fails("read", path_of(descriptor, path), &bytes)) {
    return -1;
  }
  return real(descriptor, data, bytes, offset);
}

ssize_t pread64(int descriptor, void* data, size_t bytes, off64_t offset) {
  return pread(descriptor, data, bytes, offset);
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  REAL(read);
  char path[PATH_MAX];
  if (watches_files() && fails("read", path_of(descriptor, path), &bytes)) {
    return -1;
  }
  return real(descriptor, data, bytes);
}

static int sync_file(const char* name, int descriptor) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  char path[PATH_MAX];
  size_t bytes = 0;
  if (!watches_files()) {
    return real(descriptor);
  }
  const int result = fails("sync", path_of(descriptor, path), &bytes) ? -1 : real(descriptor);
  note("sync", path, "0", result);
  return result;
}

int fsync(int descriptor) {
  return sync_file("fsync", descriptor);
}

int fdatasync(int descriptor) {
  return sync_file("fdatasync", descriptor);
}

int ftruncate(int descriptor, off_t size) {
  REAL(ftruncate);
  char path[PATH_MAX];
  size_t bytes = (size_t)size;
  if (!watches_files()) {
    return real(descriptor, size);
  }
  const int result =
      fails("truncate", path_of(descriptor, path), &bytes) ? -1 : real(descriptor, size);
  note_bytes("truncate", path, (size_t)size, result);
  return result;
}

int ftruncate64(int descriptor, off64_t size) {
  return ftruncate(descriptor, size);
}

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  REAL(fallocate);
  char path[PATH_MAX];
  size_t bytes = (size_t)size;
  if (!watches_files()) {
    return real(descriptor, mode, offset, size);
  }
  int result = -1;
  if (!fails("allocate", path_of(descriptor, path), &bytes)) {
    errno = ENOSPC;
    result = take_room(path, bytes) < bytes ? -1 : real(descriptor, mode, offset, size);
  }
  note_bytes("allocate", path, (size_t)size, result);
  return result;
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t size) {
  return fallocate(descriptor, mode, offset, size);
}

static int open_file(int folder, const char* path, int flags, mode_t mode) {
  size_t bytes = 0;
  const bool may_write = (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0;
  if (!watches_files()) {
    return (int)syscall(SYS_openat, folder, path, flags, mode);
  }
  const bool failed = fails(may_write ? "create" : "open", path, &bytes);
  const int result = failed ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
  if (may_write) {
    note("create", path, "0", result);
  }
  return result;
}

#define OPEN(name)                                 \
  int name(const char* path, int flags, ...) {     \
    va_list rest;                                  \
    va_start(rest, flags);                         \
    const mode_t mode = va_arg(rest, mode_t);      \
    va_end(rest);                                  \
    return open_file(AT_FDCWD, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const mode_t mode = va_arg(rest, mode_t);              \
    va_end(rest);                                          \
    return open_file(folder, path, flags, mode);           \
  }
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  size_t bytes = 0;
  if (!watches_files()) {
    return real(path, mode);
  }
  const int result = fails("mkdir", path, &bytes) ? -1 : real(path, mode);
  note("mkdir", path, "0", result);
  return result;
}

int rename(const char* from, const char* to) {
  REAL(rename);
  size_t bytes = 0;
  if (!watches_files()) {
    return real(from, to);
  }
  const int result = fails("rename", to, &bytes) ? -1 : real(from, to);
  note("rename", from, to, result);
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  REAL(renameat2);
  size_t bytes = 0;
  if (!watches_files()) {
    return real(from_folder, from, to_folder, to, flags);
  }
  // A file system without the flags refuses them before it looks at anything.
  const int result = fails(flags == 0 ? "rename" : "rename2", to, &bytes)
                         ? -1
                         : real(from_folder, from, to_folder, to, flags);
  note("rename", from, to, result);
  return result;
}

static long jump(void) {
  return active() && clock_jump != 0 && atomic_fetch_add(&clock_looks, 1) % 2 == 1 ? clock_jump : 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  REAL(clock_gettime);
  const int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += jump();
  }
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  struct timespec precise;
  (void)zone;
  const int result = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return result;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) {
    *out = now.tv_sec;
  }
  return now.tv_sec;
}

/* Count the system calls that change files below a folder, and make one of them fail. Loaded with LD_PRELOAD.

   `failing_calls_arm(folder, chosen, how)` starts counting at 0; `chosen` is the number of the call that fails, and
   `how` is a value of `enum how`. `failing_calls_counted()` returns the number of calls so far. Until it is armed,
   every call passes. The environment variables FAILING_BELOW, FAILING_CALL and FAILING_HOW arm a program from its start;
   at exit the number of calls is written to the file named by FAILING_COUNTED. The file named by CLOCK_OFFSET holds
   seconds that are added to the wall clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum how { NEVER, EIO_ONCE, ENOSPC_ONCE, ENOSPC_FROM, DEATH, DEATH_HALFWAY, READ_ONLY_FROM };
enum kind { FILLS, CHANGES }; /* whether the call needs space on the disk */

static char below[PATH_MAX];
static size_t below_length;
static long chosen;
static enum how how;
static atomic_long counted;

void failing_calls_arm(const char *folder, long call, int manner) {
    counted = 0;
    chosen = call;
    how = manner;
    below_length = strlen(folder);
    memcpy(below, folder, below_length + 1);
}

long failing_calls_counted(void) { return counted; }

__attribute__((constructor)) static void arm_by_environment(void) {
    const char *folder = getenv("FAILING_BELOW"), *call = getenv("FAILING_CALL"), *manner = getenv("FAILING_HOW");
    if (folder && call && manner) failing_calls_arm(folder, atol(call), atoi(manner));
}

__attribute__((destructor)) static void write_count(void) {
    const char *place = getenv("FAILING_COUNTED");
    char text[32];
    if (!place || !counted) return;
    int fd = syscall(SYS_openat, AT_FDCWD, place, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) return;
    syscall(SYS_write, fd, text, snprintf(text, sizeof text, "%ld", (long)counted));
    syscall(SYS_close, fd);
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

static int is_below(const char *path) {
    return below_length && !strncmp(path, below, below_length) && (path[below_length] == '/' || !path[below_length]);
}

static int fd_is_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!below_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int path_is_below(int folder, const char *path) {
    char start[PATH_MAX], whole[2 * PATH_MAX];
    if (!below_length || !path) return 0;
    if (path[0] == '/') return is_below(path);
    if (folder != AT_FDCWD) return fd_is_below(folder);
    if (!getcwd(start, sizeof start)) return 0;
    snprintf(whole, sizeof whole, "%s/%s", start, path);
    return is_below(whole);
}

/* Whether the call fails now, with errno set; sets `halfway` if it should do half of its work and then die. */
static int fails(enum kind kind, int *halfway) {
    long number = atomic_fetch_add(&counted, 1);
    if (how == ENOSPC_FROM && number >= chosen && kind == FILLS) { errno = ENOSPC; return 1; }
    if (how == READ_ONLY_FROM && number >= chosen) { errno = EROFS; return 1; }
    if (number != chosen) return 0;
    switch (how) {
    case EIO_ONCE: errno = EIO; return 1;
    case ENOSPC_ONCE: errno = ENOSPC; return 1;
    case DEATH: die(); return 1;
    case DEATH_HALFWAY: *halfway = 1; return 0;
    default: return 0;
    }
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define GUARDED(concerned, kind, call, part) \
    int halfway = 0; \
    if ((concerned) && fails(kind, &halfway)) return -1; \
    if (halfway) { part; die(); } \
    return call

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
        REAL(int, #name, const char *, int, ...); \
        GUARDED(writes(flags) && path_is_below(AT_FDCWD, path), FILLS, real(path, flags, mode), real(path, flags, mode)); \
    }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
        REAL(int, #name, int, const char *, int, ...); \
        GUARDED(writes(flags) && path_is_below(folder, path), FILLS, real(folder, path, flags, mode), real(folder, path, flags, mode)); \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

#define FOPEN(name) \
    FILE *name(const char *path, const char *how_opened) { \
        REAL(FILE *, #name, const char *, const char *); \
        int halfway = 0; \
        if (strpbrk(how_opened, "wa+") && path_is_below(AT_FDCWD, path) && fails(FILLS, &halfway)) return NULL; \
        if (halfway) { real(path, how_opened); die(); } \
        return real(path, how_opened); \
    }
FOPEN(fopen) FOPEN(fopen64)

ssize_t write(int fd, const void *from, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    GUARDED(fd_is_below(fd), FILLS, real(fd, from, count), real(fd, from, count / 2));
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *from, size_t count, offset_type offset) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset_type); \
        GUARDED(fd_is_below(fd), FILLS, real(fd, from, count, offset), real(fd, from, count / 2, offset)); \
    }
PWRITE(pwrite, off_t) PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    GUARDED(fd_is_below(fd), FILLS, real(fd, from, count), real(fd, from, (count + 1) / 2));
}

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *from, int count, offset_type offset) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, offset_type); \
        GUARDED(fd_is_below(fd), FILLS, real(fd, from, count, offset), real(fd, from, (count + 1) / 2, offset)); \
    }
PWRITEV(pwritev, off_t) PWRITEV(pwritev64, off64_t)

#define SENDFILE(name, offset_type) \
    ssize_t name(int to, int from, offset_type *offset, size_t count) { \
        REAL(ssize_t, #name, int, int, offset_type *, size_t); \
        GUARDED(fd_is_below(to), FILLS, real(to, from, offset, count), real(to, from, offset, count / 2)); \
    }
SENDFILE(sendfile, off_t) SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t count, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    GUARDED(fd_is_below(to), FILLS, real(from, at, to, there, count, flags), real(from, at, to, there, count / 2, flags));
}

#define ON_FD(name, kind) \
    int name(int fd) { \
        REAL(int, #name, int); \
        GUARDED(fd_is_below(fd), kind, real(fd), real(fd)); \
    }
ON_FD(fsync, CHANGES) ON_FD(fdatasync, CHANGES)

#define ON_PATH(name) \
    int name(const char *path) { \
        REAL(int, #name, const char *); \
        GUARDED(path_is_below(AT_FDCWD, path), CHANGES, real(path), real(path)); \
    }
ON_PATH(unlink) ON_PATH(rmdir)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    GUARDED(path_is_below(folder, path), CHANGES, real(folder, path, flags), real(folder, path, flags));
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    GUARDED(path_is_below(AT_FDCWD, path), FILLS, real(path, mode), real(path, mode));
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    GUARDED(path_is_below(folder, path), FILLS, real(folder, path, mode), real(folder, path, mode));
}

#define TWO_PATHS(name) \
    int name(const char *from, const char *to) { \
        REAL(int, #name, const char *, const char *); \
        GUARDED(path_is_below(AT_FDCWD, to), CHANGES, real(from, to), real(from, to)); \
    }
TWO_PATHS(rename) TWO_PATHS(link) TWO_PATHS(symlink)

int renameat(int folder, const char *from, int there, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    GUARDED(path_is_below(there, to), CHANGES, real(folder, from, there, to), real(folder, from, there, to));
}

int renameat2(int folder, const char *from, int there, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    GUARDED(path_is_below(there, to), CHANGES, real(folder, from, there, to, flags), real(folder, from, there, to, flags));
}

#define FTRUNCATE(name, length_type) \
    int name(int fd, length_type length) { \
        REAL(int, #name, int, length_type); \
        GUARDED(fd_is_below(fd), FILLS, real(fd, length), real(fd, length / 2)); \
    }
FTRUNCATE(ftruncate, off_t) FTRUNCATE(ftruncate64, off64_t)

static time_t clock_offset(void) {
    const char *place = getenv("CLOCK_OFFSET");
    char text[32] = "";
    if (!place) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, place, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return length > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += clock_offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(int, "gettimeofday", struct timeval *, void *);
    int result = real(now, zone);
    if (!result) now->tv_sec += clock_offset();
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

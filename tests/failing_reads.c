/* Reads and opens below one folder that fail (LD_PRELOAD), as a disk, NFS or the kernel makes them fail.
 *
 * FAIL_BELOW: prefix of paths. FAIL_WITH: errno. FAIL_WHAT: r (read), o (open), s (stat), d (list), n (rename to). FAIL_TIMES: number of failures of
 * all processes together. FAIL_FROM: offset in the file from which reads fail. FAIL_LOG: file that gets a byte for each.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int below(const char *path) {
    const char *prefix = getenv("FAIL_BELOW");
    return path && prefix && !strncmp(path, prefix, strlen(prefix));
}

static int of_handle(int handle) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Return whether this call shall fail, and count it: each failure adds a byte to the log that all processes share. */
static int fails(char what) {
    const char *kinds = getenv("FAIL_WHAT"), *log = getenv("FAIL_LOG"), *times = getenv("FAIL_TIMES");
    if (!log || !strchr(kinds ? kinds : "r", what)) return 0;
    int handle = syscall(SYS_openat, AT_FDCWD, log, O_RDWR | O_CREAT | O_APPEND, 0644);
    if (handle < 0) return 0;
    off_t done = lseek(handle, 0, SEEK_END);
    int now = !times || done < atol(times);
    if (now) syscall(SYS_write, handle, &what, 1);
    syscall(SYS_close, handle);
    if (now) errno = atoi(getenv("FAIL_WITH") ?: "5");
    return now;
}

static int at(int handle) {
    const char *from = getenv("FAIL_FROM");
    return !from || lseek(handle, 0, SEEK_CUR) >= atol(from);
}

#define REAL(type, name, ...)                                \
    static type (*real)(__VA_ARGS__);                        \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t read(int handle, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (of_handle(handle) && at(handle) && fails('r')) return -1;
    return real(handle, data, size);
}

ssize_t pread64(int handle, void *data, size_t size, off_t offset) {
    REAL(ssize_t, "pread64", int, void *, size_t, off_t);
    if (of_handle(handle) && fails('r')) return -1;
    return real(handle, data, size, offset);
}

ssize_t pread(int handle, void *data, size_t size, off_t offset) { return pread64(handle, data, size, offset); }

static int opened(const char *name, const char *path, int flags, va_list rest) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    int mode = va_arg(rest, int);
    if (below(path) && fails('o')) return -1;
    return real(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int handle = opened("open", path, flags, rest);
    va_end(rest);
    return handle;
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int handle = opened("open64", path, flags, rest);
    va_end(rest);
    return handle;
}

int stat64(const char *path, struct stat64 *found) {
    REAL(int, "stat64", const char *, struct stat64 *);
    if (below(path) && fails('s')) return -1;
    return real(path, found);
}

int stat(const char *path, struct stat *found) { return stat64(path, (struct stat64 *)found); }

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (below(to) && fails('n')) return -1;
    return real(from, to);
}

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    if (below(path) && fails('d')) return NULL;
    return real(path);
}

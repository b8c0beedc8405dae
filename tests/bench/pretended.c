// Shows a process 64 processors, whatever the machine has: cc -shared -fPIC -o pretended.so pretended.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef COUNT
#define COUNT 64
#endif

static int fill(size_t size, cpu_set_t *mask) {
    memset(mask, 0, size);
    for (int cpu = 0; cpu < COUNT; cpu++) CPU_SET_S(cpu, size, mask);
    return 0;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask) { return fill(size, mask); }
int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *mask) { return fill(size, mask); }
int get_nprocs(void) { return COUNT; }
int get_nprocs_conf(void) { return COUNT; }

long sysconf(int name) {
    static long (*real)(int);
    if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return COUNT;
    if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return real(name);
}

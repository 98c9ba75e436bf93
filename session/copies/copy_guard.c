#include "session/copies/copy_guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

struct guarded {
    _Atomic(uint8_t *) begin; /* NULL: free */
    _Atomic size_t size;      /* 0: not yet, or not any more */
};

static struct guarded guarded[COPY_GUARDS_MAX];
static _Atomic uint32_t shrunk;

/* The guarded memory that an address lies in; NULL: none. */
static struct guarded *find(const uint8_t *address)
{
    for (size_t i = 0; i < COPY_GUARDS_MAX; i++) {
        const uint8_t *begin = atomic_load(&guarded[i].begin);
        if (begin != NULL && address >= begin && address < begin + atomic_load(&guarded[i].size))
            return &guarded[i];
    }
    return NULL;
}

/* Only system calls and atomics: it may interrupt anything. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const int error = errno;
    struct guarded *at = find(info->si_addr);
    (void)context;
    if (at == NULL || mmap(atomic_load(&at->begin), atomic_load(&at->size), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        (void)signal(number, SIG_DFL); /* the access is made again, and ends the process */
    } else {
        (void)atomic_fetch_add(&shrunk, 1);
    }
    errno = error;
}

static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    (void)sigaction(SIGBUS, &action, NULL);
}

void copy_guard_add(void *memory, size_t size)
{
    install(); /* each time: libraries may set handlers of their own */
    for (size_t i = 0; i < COPY_GUARDS_MAX; i++) {
        uint8_t *nothing = NULL;
        if (atomic_compare_exchange_strong(&guarded[i].begin, &nothing, memory)) {
            atomic_store(&guarded[i].size, size);
            return;
        }
    }
}

void copy_guard_remove(void *memory)
{
    struct guarded *at = find(memory);
    if (at == NULL)
        return;
    atomic_store(&at->size, 0);
    atomic_store(&at->begin, NULL);
}

uint32_t copy_guard_shrunk(void)
{
    return atomic_load(&shrunk);
}

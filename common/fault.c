/*
 * Fault points of test builds. State: the armed list is parsed from the environment at every hit,
 * so there is nothing to initialise and nothing to lock; a hit costs microseconds, in test builds
 * only.
 */
#include "common/fault.h"

#ifdef CAIRN_FAULTS

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define WAIT_MS_MAX 60000

static _Atomic int64_t now_rank = -1, now_generation = -1, now_step = -1;

void fault_context(int64_t rank, int64_t generation, int64_t step)
{
    atomic_store(&now_rank, rank);
    atomic_store(&now_generation, generation);
    atomic_store(&now_step, step);
}

struct fault {
    char point[64];
    char action[16];
    int64_t rank, generation, step, from, nth; /* -1: any */
};

/* Reads one "POINT[,key=value…]:ACTION". */
static bool parse_fault(const char *text, size_t size, struct fault *out)
{
    char copy[256];
    if (size >= sizeof(copy))
        return false;
    memcpy(copy, text, size);
    copy[size] = '\0';
    char *colon = strrchr(copy, ':');
    if (colon == NULL)
        return false;
    *colon = '\0';
    *out = (struct fault){ .rank = -1, .generation = -1, .step = -1, .from = -1, .nth = -1 };
    (void)snprintf(out->action, sizeof(out->action), "%s", colon + 1);
    char *save = NULL;
    char *part = strtok_r(copy, ",", &save);
    if (part == NULL)
        return false;
    (void)snprintf(out->point, sizeof(out->point), "%s", part);
    while ((part = strtok_r(NULL, ",", &save)) != NULL) {
        char *equals = strchr(part, '=');
        if (equals == NULL)
            return false;
        int64_t value = strtoll(equals + 1, NULL, 10);
        if (strncmp(part, "rank=", 5) == 0) {
            out->rank = value;
        } else if (strncmp(part, "generation=", 11) == 0) {
            out->generation = value;
        } else if (strncmp(part, "step=", 5) == 0) {
            out->step = value;
        } else if (strncmp(part, "from=", 5) == 0) {
            out->from = value;
        } else if (strncmp(part, "nth=", 4) == 0) {
            out->nth = value;
        }
    }
    return true;
}

static bool matches(const struct fault *fault, const char *point)
{
    return strcmp(fault->point, point) == 0 &&
           (fault->rank < 0 || fault->rank == atomic_load(&now_rank)) &&
           (fault->generation < 0 || fault->generation == atomic_load(&now_generation)) &&
           (fault->step < 0 || fault->step == atomic_load(&now_step)) &&
           fault->from <= atomic_load(&now_step);
}

static void marker_path(const char *point, const char *suffix, char out[512])
{
    const char *dir = getenv("CAIRN_FAULT_DIR");
    (void)snprintf(out, 512, "%s/%s.%s", dir == NULL ? "/tmp" : dir, point, suffix);
}

/* True for exactly one caller ever. */
static bool claim(const struct fault *fault)
{
    char path[512];
    if (fault->nth > 1) { /* count the hits by files, so that they survive a restart */
        for (int64_t i = 1; i < fault->nth; i++) {
            char suffix[32];
            (void)snprintf(suffix, sizeof(suffix), "pass%" PRId64, i);
            marker_path(fault->point, suffix, path);
            int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
            if (fd >= 0) {
                (void)close(fd);
                return false;
            }
        }
    }
    marker_path(fault->point, "hit", path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    (void)dprintf(fd, "%d\n", (int)getpid());
    (void)close(fd);
    return true;
}

static void wait_for_go(const char *point)
{
    char path[512];
    marker_path(point, "go", path);
    int64_t end = clock_mono_ms(clock_system()) + WAIT_MS_MAX;
    while (access(path, F_OK) != 0 && clock_mono_ms(clock_system()) < end) {
        struct timespec pause = { .tv_nsec = 2000000 };
        (void)nanosleep(&pause, NULL);
    }
}

/* "slowMS"; false: it is another action. */
static bool slow_down(const struct fault *fault)
{
    if (strncmp(fault->action, "slow", 4) != 0)
        return false;
    const long ms = strtol(fault->action + 4, NULL, 10);
    struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)nanosleep(&pause, NULL);
    return true;
}

static enum status act(const struct fault *fault)
{
    if (strcmp(fault->action, "kill") == 0) {
        (void)raise(SIGKILL);
    } else if (strcmp(fault->action, "segv") == 0) {
        (void)raise(SIGSEGV);
    } else if (strcmp(fault->action, "exit1") == 0) {
        _exit(1);
    } else if (strcmp(fault->action, "stop") == 0) {
        (void)kill(getpid(), SIGSTOP);
    } else if (strcmp(fault->action, "wait") == 0) {
        wait_for_go(fault->point);
    } else if (strcmp(fault->action, "eio") == 0) {
        return ST_IO;
    } else if (strcmp(fault->action, "enospc") == 0) {
        return ST_FULL;
    }
    return ST_OK;
}

enum status fault_status(const char *point)
{
    const char *armed = getenv("CAIRN_FAULT");
    while (armed != NULL && *armed != '\0') {
        size_t size = strcspn(armed, ";");
        struct fault fault;
        if (parse_fault(armed, size, &fault) && matches(&fault, point) && !slow_down(&fault) &&
            claim(&fault))
            return act(&fault);
        armed += size + (armed[size] == ';');
    }
    return ST_OK;
}

void fault_point(const char *point)
{
    (void)fault_status(point);
}

void fault_flip(const char *point, float *words, size_t count)
{
    const char *armed = getenv("CAIRN_FAULT");
    while (armed != NULL && *armed != '\0' && count > 0) {
        size_t size = strcspn(armed, ";");
        struct fault fault;
        const bool here = parse_fault(armed, size, &fault) && matches(&fault, point);
        const bool always = here && strcmp(fault.action, "flips") == 0;
        const bool once = here && strcmp(fault.action, "flip") == 0 && claim(&fault);
        const bool lost = here && strcmp(fault.action, "nan") == 0 && claim(&fault);
        for (size_t i = 0; lost && i < count; i++)
            words[i] = NAN;
        if (always || once) {
            uint32_t word;
            memcpy(&word, &words[count / 2], sizeof(word));
            word ^= UINT32_C(1) << 20; /* of the mantissa: nothing that anybody would notice */
            memcpy(&words[count / 2], &word, sizeof(word));
        }
        armed += size + (armed[size] == ';');
    }
}

#else

/* A file must not be empty in ISO C. */
extern const int fault_points_are_compiled_in;
const int fault_points_are_compiled_in = 0;

#endif

/*
 * The processes of an embedded home: who holds its lock, which of the five programs run for it.
 *
 * Every process that `cairn up` starts keeps CAIRN_HOME=HOME in its environment; that, its owner
 * and the name of its program say that it belongs to a home, whatever died in between.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/paths.h"
#include "common/status.h"

enum home_program {
    HOME_COORDINATOR = 1 << 0,
    HOME_AGENT = 1 << 1,
    HOME_TRAINER = 1 << 2,
    HOME_SUPERVISOR = 1 << 3,
    HOME_OBSERVER = 1 << 4,
};

#define HOME_PIDS_MAX 4096

/* The running processes of `programs` that belong to the home, this one not; their number. */
size_t home_processes(const struct paths *paths, unsigned programs, pid_t *out, size_t capacity);

/* SIGTERM, then after grace_ms SIGKILL, to processes and the groups they lead; true: all are gone.
 */
bool home_end(const struct paths *paths, unsigned programs, int grace_ms);

/* May this user make the home and write in it? If not, that is said, with whose it is. */
bool home_is_ours(const struct paths *paths);

/* The name of a user, or the number. */
char *home_user_name(uid_t uid, char *out, size_t capacity);

/* The variables of a process, each with its NUL, for free(); NULL: they can't be read. */
char *home_environment(pid_t pid, size_t *out_size);

/* The pid of the supervisor that holds HOME/supervisor.lock; 0: none does. */
int64_t home_supervisor(const struct paths *paths);

/* The words of that supervisor's command, each with its NUL, for free(); NULL: none is there. */
char *home_supervisor_words(const struct paths *paths, size_t *out_size);

/*
 * Takes HOME/supervisor.lock and writes this pid into it; held until out_fd is closed.
 * Errors: ST_EXISTS  another supervisor lives
 */
MUST_CHECK enum status home_lock(const struct paths *paths, int *out_fd);

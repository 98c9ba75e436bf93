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

#include "client/home/process.h"
#include "common/paths.h"
#include "common/reason.h"
#include "common/status.h"

#define HOME_PIDS_MAX 4096

/* Lists the running processes of `programs` that belong to the home, but for this one; returns
 * their number. */
size_t home_processes(const struct paths *paths, unsigned programs, pid_t *out, size_t capacity);

/* Ends the processes of `programs` of the home, and the groups that they lead: SIGTERM, then after
 * grace_ms SIGKILL. true: all are gone. */
bool home_end(const struct paths *paths, unsigned programs, int grace_ms);

/* Closes the home to others (common/own/home.h), with make makes it; false: it is another's, or
 * others may write to it. Both are reported. */
bool home_is_ours(const struct paths *paths, bool make);

/* The variables of a process, each with its NUL, for free(); NULL: they can't be read. */
char *home_environment(pid_t pid, size_t *out_size);

/* A supervisor whose process can't be seen: just starting, or in another space of processes. */
#define HOME_UNSEEN (-1)
/* The pid of the supervisor that holds HOME/supervisor.lock; HOME_UNSEEN; 0: none does. */
int64_t home_supervisor(const struct paths *paths);

/* True if the lock is held by a process that is no supervisor; out then says which. */
bool home_lock_is_taken(const struct paths *paths, struct reason *out);

/* The words of that supervisor's command, each with its NUL, for free(); NULL: none is there. */
char *home_supervisor_words(const struct paths *paths, size_t *out_size);

/*
 * Takes HOME/supervisor.lock and writes this pid into it; held until out_fd is closed.
 * Errors: ST_EXISTS  another supervisor lives
 */
MUST_CHECK enum status home_lock(const struct paths *paths, int *out_fd);
/* Takes the pid out of the lock file: no process has that number for long. */
void home_unlock(int fd);

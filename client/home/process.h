/*
 * Processes of a home, as /proc shows them. A number alone says nothing: the process that had it
 * may be gone. So who is signalled is looked at behind a descriptor of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

enum home_program {
    HOME_COORDINATOR = 1 << 0,
    HOME_AGENT = 1 << 1,
    HOME_TRAINER = 1 << 2,
    HOME_SUPERVISOR = 1 << 3,
    HOME_OBSERVER = 1 << 4,
};

/* A whole file /proc/PID/NAME, for free(), and its size without the NUL that is added; NULL: it
 * can't be read. */
char *process_read(pid_t pid, const char *name, size_t *out_size);

/* Returns which of our programs the process runs; 0: none. */
unsigned process_program(pid_t pid);

/* Reads the user that the process runs as; false: the process isn't there, or can't be seen. */
bool process_owner(pid_t pid, uid_t *out);

/* True if the process is ours, alive, of one of these programs, and its CAIRN_HOME names this
 * folder. */
bool process_belongs(pid_t pid, unsigned programs, const struct stat *home);

/* True if the process is ours and supervises, whatever home. */
bool process_supervises(pid_t pid);

/* Sends number, then SIGCONT for one that is stopped, to the process, and with group to the group
 * that it leads, if still(pid, arg) is true once it can't become another. */
void process_signal(pid_t pid, int number, bool group, bool (*still)(pid_t pid, const void *arg),
                    const void *arg);

/*
 * What /proc and the cgroup tell: processes, memory, load.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/status.h"

/* Reads a file of /proc or /sys, whose size isn't known before. NUL-terminated; what is longer is
 * cut. out_size: may be NULL.
 * Errors: ST_NOT_FOUND  the file, or its process, isn't there
 *         others        of open */
MUST_CHECK enum status proc_read_text(const char *path, char *out, size_t capacity,
                                      size_t *out_size);

/* Text of /proc/sys/kernel/random/boot_id. */
MUST_CHECK enum status proc_boot_id(char *out, size_t capacity);
/*
 * Identifies the space in which this process counts processes: a restarted container has another
 * one, in the same boot. The kernel may give the number of a space that is gone to the next one, so
 * the start of its first process stands beside it.
 */
#define PID_SPACE_TEXT 48
MUST_CHECK enum status proc_pid_space(char *out, size_t capacity);
/* Milliseconds since the machine started, the time that it slept included. */
uint64_t proc_since_boot_ms(void);

struct proc_stat {
    char state;          /* 'R', 'S', 'Z', … */
    uint64_t start_time; /* clock ticks since boot: with the pid it names a process within a boot */
    uint64_t cpu_ticks;  /* of all its threads, of them those that ended, too; not of children */
    uint64_t resident_pages;
    uint32_t threads;
};
/* Parses /proc/PID/stat. Errors: ST_INVALID */
MUST_CHECK enum status proc_stat_parse(const char *text, struct proc_stat *out);
/* Errors: ST_NOT_FOUND  no such process */
MUST_CHECK enum status proc_stat_read(pid_t pid, struct proc_stat *out);

/* The process that has these two arguments one after the other. Errors: ST_NOT_FOUND */
MUST_CHECK enum status proc_find(const char *option, const char *value, pid_t *out);

/*
 * Kills each process whose environment was begun with this variable and value, until there is none.
 * Processes of other accounts are not looked at, unless this one is root.
 * Errors: ST_TIMED_OUT  some are left: they wait in the kernel, or are made faster than killed
 */
MUST_CHECK enum status proc_kill_all_with(const char *variable);

double proc_load1(void);
uint64_t proc_memory_total(void);
uint64_t proc_memory_available(void);
uint32_t proc_cores(void); /* processors that this process may run on */

/* Processes that the kernel killed for memory: in this cgroup (memory.events), or on this machine
 * where the cgroup doesn't tell. */
uint64_t proc_oom_kills(void);
/* Reads the number after "NAME " at the beginning of a line. */
bool proc_field(const char *text, const char *name, uint64_t *out);

/*
 * Whether memory ran out lately: samples of proc_oom_kills, one per beat, and how many of its
 * increments have explained an exit already.
 */
enum { OOM_SAMPLES = 10 };
struct oom_watch {
    uint64_t samples[OOM_SAMPLES]; /* ring */
    unsigned next;
    uint64_t claimed; /* counter value up to which exits were explained */
};
void oom_watch_init(struct oom_watch *watch, uint64_t now);
void oom_watch_sample(struct oom_watch *watch, uint64_t now);
/* True: the counter rose within the last samples by an increment that explains no other exit. */
bool oom_watch_claim(struct oom_watch *watch, uint64_t now);

/*
 * What an agent must know about a trainer after its own death: one small file each.
 *
 *   agent/JOB.gG.rR.json   {"version":1,"node":"n1","job":"j-…","generation":3,"rank":0,"slot":0,
 *                           "boot_id":"…","pid_space":"…","state":"intent|running|exited",
 *                           "pid":1,"start_time":2,"cause":1,"code":0,"signal":0,"message":"…"}
 *
 * States
 *   intent   written before the process is made; pid 0. The process may or may not be there: it
 *            holds the flock of its log file from before it exists until it is gone.
 *   running  pid and start time (of /proc/PID/stat, clock ticks since boot) name it beyond doubt
 *            within one boot and one space of processes (proc_pid_space); "": written by an agent
 *            that didn't know of them
 *   exited   the cause is known; kept until the coordinator acknowledged
 *
 * Durable: after record_write returned ST_OK.
 */
#pragma once

#include "agent/exit_cause.h"
#include "agent/ref.h"
#include "agent/telemetry/proc.h"
#include "common/io.h"

#define BOOT_ID_TEXT 40

enum record_state { RECORD_INTENT, RECORD_RUNNING, RECORD_EXITED };

struct record {
    char node[LIMIT_NAME];
    struct ref ref;
    uint32_t slot;
    char boot_id[BOOT_ID_TEXT];
    char pid_space[PID_SPACE_TEXT];
    enum record_state state;
    int64_t pid;
    uint64_t start_time;
    struct exit_cause exit;
};

MUST_CHECK enum status record_write(const struct io *io, const struct paths *paths,
                                    const struct record *record);
/* Errors: ST_CORRUPT  not such a file; and those of io_read_file */
MUST_CHECK enum status record_read(const struct io *io, const char *path, struct record *out);
/* A record that isn't there is removed already. */
MUST_CHECK enum status record_remove(const struct io *io, const struct paths *paths,
                                     const struct ref *ref);
/* Calls fn with the path of every record, in no order. No folder: no records. */
MUST_CHECK enum status record_list(const struct io *io, const struct paths *paths,
                                   void (*fn)(void *arg, const char *path), void *arg);

/*
 * The log of a process: one JSON object per line, with the ids that are known.
 *
 * {"ts":"2026-01-02T03:04:05.678Z","level":"info","program":"cairnd","job":"j-…","rank":1,
 *  "generation":3,"msg":"…"}
 *
 * Where an error is first decided it is logged, once; callers add nothing.
 *
 * Levels: error = something was given up; warn = "…, ignoring"; info = a state changed; debug = per
 *         object, never per step.
 * Thread: any. A line is written by one write(2), at most LIMIT_LOG_LINE bytes (longer: cut, with
 *         "cut":true). A failing write is counted, never waited for.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

/* Lies in a program's context; parts of a program copy it and fill in their ids. */
struct log {
    int fd;               /* borrowed; -1: nothing is written */
    enum log_level level; /* lower levels are dropped */
    const char *program;  /* borrowed for the log's life, as are node and job */
    const char *node;     /* or NULL */
    const char *job;      /* or NULL */
    int64_t rank;         /* or -1; log_set_rank changes it */
    int64_t generation;   /* or -1 */
    bool leads;           /* each line begins with its level, "<6>": systemd's journal reads it */
};

/* Changes the rank of a log. Thread: any, also while others log. */
void log_set_rank(struct log *log, int64_t rank);

/* fd 2, level from CAIRN_LOG (debug, info, warn, error; default info). JOURNAL_STREAM names fd 2
 * where the journal has it. */
struct log log_open(const char *program);

void log_write(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_DEBUG(log, ...) log_write((log), LOG_LEVEL_DEBUG, __VA_ARGS__)
#define LOG_INFO(log, ...)  log_write((log), LOG_LEVEL_INFO, __VA_ARGS__)
#define LOG_WARN(log, ...)  log_write((log), LOG_LEVEL_WARN, __VA_ARGS__)
#define LOG_ERROR(log, ...) log_write((log), LOG_LEVEL_ERROR, __VA_ARGS__)

/*
 * Files that others append to (O_APPEND) are bounded: what such a one has goes to PATH.1, in the
 * place of what went there before, and it begins anew. Whoever has it open goes on in it. A line
 * that is written in the moment between the copy and the cut is lost.
 */
#define LOG_TURN_BYTES   (UINT64_C(16) << 20) /* of a program of a home */
#define LOG_WORKER_BYTES (UINT64_C(64) << 20) /* of a worker */
#define LOG_TURN_SUFFIX  ".1"

/* Returns CAIRN_LOG_BYTES, for tests, if that is set; else `usual`. */
uint64_t log_turn_bytes(uint64_t usual);

/*
 * Turns the file at path over if it is a regular one of more than `max` bytes: at most the newest
 * 2 * max go to PATH.1, 0600; line is the first of those that follow (NULL: none). Where there is
 * no room for the copy it is cut all the same, and an older PATH.1 stays.
 * out_turned: it was cut. Takes as long as the disk does.
 * Errors: of open, fstat, ftruncate, none where there is no file; of the copy, after the cut
 */
MUST_CHECK enum status log_turn(const char *path, uint64_t max, const char *line, bool *out_turned);

/*
 * The audit log: who asked the coordinator to change something. A file of one JSON object per line:
 *
 * {"time":"2026-01-02T03:04:05.678Z","actor":"operator/alice","peer":"ipv4:10.0.0.7:40312",
 *  "method":"Control/PauseJob","about":"j-…","code":"OK"}
 *
 * Refusals, which have "why", too, are in a file of their own beside it: anybody can provoke those,
 * and must not push out what was done. Of an address and actor it takes the first AUDITLOG_EACH in
 * an hour, of all together AUDITLOG_REFUSALS in AUDITLOG_REFUSALS_MS; the process's log takes
 * AUDITLOG_LOGGED in a minute. Of calls that changed nothing, and of renewals of certificates, the
 * audit log takes the first AUDITLOG_EACH_CALLS of an actor in an hour.
 *
 * {"time":…,"of":"ipv4:10.0.0.7 nobody","more":3}: so many more there were in that hour.
 * {"time":…,"lost":3}: so many lines are missing here, as there were too many refusals, or the
 * disk was full, failed or was too slow.
 *
 * Only ever appended to, 0600. At AUDITLOG_FILE_BYTES a file becomes PATH.1, that one PATH.2, and
 * so on; the one that would be PATH.AUDITLOG_FILES is gone. A line is in the file, for other
 * processes to see, moments after the call, and on the disk within AUDITLOG_SYNC_MS.
 *
 * Nothing here waits for the disk, but a thread of each file; one that does not work costs lines.
 *
 * Thread: any, but auditlog_open and auditlog_close.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "common/status.h"

#define AUDITLOG_FILE_BYTES  (16 << 20) /* some 80,000 lines */
#define AUDITLOG_FILES       8          /* PATH and those of before */
#define AUDITLOG_QUEUE_BYTES (1 << 20)  /* lines that wait for the disk */
#define AUDITLOG_SYNC_MS     1000
#define AUDITLOG_REFUSALS    50
#define AUDITLOG_REFUSALS_MS 10000
#define AUDITLOG_EACH        10
#define AUDITLOG_EACH_CALLS  100
#define AUDITLOG_EACH_MS     3600000
#define AUDITLOG_LOGGED      10
#define AUDITLOG_LOGGED_MS   60000
#define AUDITLOG_SOURCES     256 /* callers that are counted; the one counted longest makes room */
#define AUDITLOG_WARN_MS     60000 /* between two lines of the log about the disk */
#define AUDITLOG_CLOSE_MS    1000  /* auditlog_close waits so long for the disk */

struct auditlog;

/* One call, as it is noted. Texts from outside are cut to some 100 bytes, and printed as JSON
 * whatever is in them. */
struct auditlog_call {
    const char *actor;  /* "operator/alice", "local", "nobody" */
    const char *peer;   /* its address */
    const char *method; /* "Control/PauseJob" */
    const char *about;  /* the job or node; "": none */
    const char *code;   /* the answer's */
    const char *why;    /* of a refusal: what the caller is told */
    bool often;         /* the call changed nothing, or is done again and again: counted */
};

struct auditlog_options {
    const char *path;      /* copied */
    const char *refused;   /* the file of refusals; copied */
    const struct log *log; /* borrowed */
    int64_t file_bytes;    /* 0: AUDITLOG_FILE_BYTES */
};

/* Begins the log; a file is opened when there is a line for it. */
MUST_CHECK enum status auditlog_open(const struct auditlog_options *options, struct auditlog **out);
/* Notes that a call was answered, or taken if its answer waits. auditlog: NULL is fine, in all
 * three. */
void auditlog_note(struct auditlog *auditlog, const struct auditlog_call *call);
/* Notes that a caller may not do this. */
void auditlog_refusal(struct auditlog *auditlog, const struct auditlog_call *call);
/* Writes what waits, and ends the log. */
void auditlog_close(struct auditlog *auditlog);

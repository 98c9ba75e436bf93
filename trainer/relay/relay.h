/*
 * The worker's end of libcairn: it serves the job's own program over the protocol of
 * library/wire/wire.h, and does with the session what the step loop does for models
 * (trainer/loop/loop.h).
 *
 *     open.c       its begin and end; what the worker looks at
 *     socket.c     a name that only this program knows; connections, requests, answers
 *     requests.c   what each request does
 *     filling.c    the copy that the program fills in, and who ends that
 *     together.c   where the worker runs several processes: what they are told alike
 *     form.c       from READY on: the ranks agree, the session is ready, older copies go
 *     fallback.c   what is saved of a program that doesn't come to its last step in time
 *     source.c     what the program goes on from, and whether it is sound
 *     saved.c      its state as the checkpoint format sees it
 *
 * A thread serves each process; another one forms, as it waits for other ranks. To the coordinator
 * the processes of a worker are one rank, with one share of the state and one copy file.
 *
 * Everything that the program says is checked: a program that lies, or says nothing, fails this
 * rank and nothing else. It may have any memory that it shares with the worker changed at any time;
 * what the worker goes by lies elsewhere.
 *
 * A program is done once the save of its last step is committed, or that of a step after which it
 * was asked to end: until it has heard so, its end is a failure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/log.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "session/session.h"

struct relay;

/* All pointers are borrowed for the relay's life. */
struct relay_options {
    const struct jobspec *job; /* has a command that saves */
    struct session *session;   /* joined, and not ready */
    const struct session_assignment *assignment;
    const char *copies; /* folder of this job's copies on this node; NULL: none */
    const struct io *io;
    const struct log *log;
};

/*
 * Listens, and serves whoever connects.
 * Errors: out_why, or status_string:
 *         ST_CONFIG      what can't be for a program
 *         ST_INCOMPLETE  the copies to go on from aren't here: as one that is damaged
 */
MUST_CHECK enum status relay_open(const struct relay_options *options, struct relay **out,
                                  struct reason *out_why);
/* Ends it: a copy that is not complete is given up. Before the session is parked or closed. NULL is
 * fine. */
void relay_close(struct relay *relay);
/* Returns what WIRE_SOCKET_ENV of the program begins with; a dot and the process's number among the
 * worker's follow. */
const char *relay_name(const struct relay *relay);

#define RELAY_PROCESSES_MAX 64

/* What is known of one process of the worker's. */
struct relay_process_news {
    uint64_t counter; /* rises with whatever the process shows */
    bool done;        /* it may end with code 0 */
};

struct relay_news {
    uint64_t step; /* that all processes have finished */
    struct relay_process_news of[RELAY_PROCESSES_MAX];
    bool ready;  /* it trains */
    bool done;   /* all processes may end with code 0 */
    bool ends;   /* it is to be ended: a copy of `step` was saved in the place of a step to
                       * which it didn't come */
    bool failed; /* it said what can't be, or can't go on: why */
    struct reason why;
    struct reason words; /* what it said of a failure to come; "": nothing */
    int64_t words_ms;    /* when (monotonic) */
};
/* Looks what the program has done, and tells the session. Thread: one, which calls it often. */
void relay_look(struct relay *relay, struct relay_news *out);

/*
 * Reads what a program was to go on from that failed before it was ready. true: it is damaged: why,
 * and the file of a checkpoint (out_shard: 1 + its number; 0: not known). Takes as long as reading
 * all of it. After the program has ended.
 */
bool relay_is_damaged(struct relay *relay, struct reason *out_why, uint32_t *out_shard);

/*
 * Following a job: `cairn watch`, and what `submit` does with --watch and --wait.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"
#include "client/print/screen.h"

/*
 * Follows a job until it is over, it shows on a terminal as a block, else as lines; with show ==
 * WATCH_SILENT nothing is printed on the way. Reconnects while the coordinator is restarted.
 * --timeout is from now. *out_job (may be NULL): the job as last seen.
 */
enum watch_show { WATCH_SILENT, WATCH_SHOWN };
enum exit_code watch_job(struct client *client, const char *id, enum watch_show show,
                         Cairn__V1__Job **out_job);

/* Like watch_job, on a screen that was entered and is shared with others: nothing but the block is
 * written. The block stays, also when the job is over, until a key goes back (EXIT_DONE), Ctrl-C
 * (EXIT_DETACHED), or nothing is known of the job any more. */
enum exit_code watch_on_screen(struct client *client, const char *id, struct screen *screen);

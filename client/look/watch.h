/*
 * Following a job: `cairn watch`, and what `submit` does with --watch and --wait.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"

/*
 * Follows a job until it is over, it shows on a terminal as a block, else as lines; with show ==
 * WATCH_SILENT nothing is printed on the way. Reconnects while the coordinator is restarted.
 * --timeout is from now. *out_job (may be NULL): the job as last seen.
 */
enum watch_show { WATCH_SILENT, WATCH_SHOWN };
enum exit_code watch_job(struct client *client, const char *id, enum watch_show show,
                         Cairn__V1__Job **out_job);

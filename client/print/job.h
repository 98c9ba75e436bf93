/*
 * Jobs as the commands see them.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"
#include "client/print/output.h"

/* "RUNNING"; "?" for a state that this version doesn't know. Static. */
const char *job_state_name(Cairn__V1__JobState state);
/* SUCCEEDED, FAILED, STOPPED, KILLED */
bool job_is_over(Cairn__V1__JobState state);
/* Of a job that was waited for. */
enum exit_code job_exit(Cairn__V1__JobState state);

extern const struct listing job_listing;
extern const struct listing checkpoint_listing;
extern const struct listing worker_listing;

/* GetJob; reports a failure. *out: cairn__v1__job__free_unpacked. */
enum exit_code job_get(struct client *client, const char *name, Cairn__V1__Job **out);

/* Prints a job in the format asked for. */
enum exit_code job_show(const struct client *client, const Cairn__V1__Job *job);

/*
 * Follows a job until it is over, it shows on a terminal as a block, else as lines; with show ==
 * WATCH_SILENT nothing is printed on the way. Reconnects while the coordinator is restarted.
 * --timeout is from now. *out_job (may be NULL): the job as last seen.
 */
enum watch_show { WATCH_SILENT, WATCH_SHOWN };
enum exit_code job_watch(struct client *client, const char *id, enum watch_show show,
                         Cairn__V1__Job **out_job);

/* The commands. */
enum exit_code cmd_submit(struct client *client);
enum exit_code cmd_ps(struct client *client);
enum exit_code cmd_show(struct client *client);
enum exit_code cmd_watch(struct client *client);
enum exit_code cmd_logs(struct client *client);
enum exit_code cmd_why(struct client *client);
enum exit_code cmd_pause(struct client *client);
enum exit_code cmd_resume(struct client *client);
enum exit_code cmd_stop(struct client *client);
enum exit_code cmd_kill(struct client *client);
enum exit_code cmd_save(struct client *client);
enum exit_code cmd_ckpt_ls(struct client *client);
enum exit_code cmd_ckpt_show(struct client *client);
enum exit_code cmd_ckpt_verify(struct client *client);
enum exit_code cmd_ckpt_scrub(struct client *client);
enum exit_code cmd_ckpt_digest(struct client *client);
enum exit_code cmd_ckpt_diff(struct client *client);
enum exit_code cmd_ckpt_export(struct client *client);
enum exit_code cmd_ckpt_import(struct client *client);
enum exit_code cmd_ckpt_rm(struct client *client);
enum exit_code cmd_node_ls(struct client *client);
enum exit_code cmd_node_check(struct client *client);
enum exit_code cmd_plan(struct client *client);
enum exit_code cmd_version(struct client *client);
enum exit_code cmd_completion(struct client *client);
enum exit_code cmd_up(struct client *client);
enum exit_code cmd_down(struct client *client);
enum exit_code cmd_supervise(struct client *client);

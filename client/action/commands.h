/*
 * The commands but `cairn ckpt`, `cairn cert` and those that only look (client/query): each prints
 * its result and returns the exit code. What they take and do is said in client/commands.c, as
 * `cairn COMMAND -h` prints it.
 */
#pragma once

#include "client/base/client.h"

enum exit_code cmd_submit(struct client *client);
enum exit_code cmd_pause(struct client *client);
enum exit_code cmd_resume(struct client *client);
enum exit_code cmd_stop(struct client *client);
enum exit_code cmd_kill(struct client *client);
enum exit_code cmd_rm(struct client *client);
enum exit_code cmd_set(struct client *client);
enum exit_code cmd_save(struct client *client);
enum exit_code cmd_node_ls(struct client *client);
enum exit_code cmd_node_drain(struct client *client);
enum exit_code cmd_node_undrain(struct client *client);
enum exit_code cmd_node_forget(struct client *client);
enum exit_code cmd_node_invite(struct client *client);
enum exit_code cmd_node_check(struct client *client);
enum exit_code cmd_webhook_ls(struct client *client);
enum exit_code cmd_webhook_test(struct client *client);
enum exit_code cmd_plan(struct client *client);
enum exit_code cmd_version(struct client *client);
enum exit_code cmd_complete(struct client *client);
enum exit_code cmd_completion(struct client *client);
enum exit_code cmd_up(struct client *client);
enum exit_code cmd_down(struct client *client);
enum exit_code cmd_open(struct client *client);
enum exit_code cmd_supervise(struct client *client);

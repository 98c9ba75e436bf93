/*
 * The commands of `cairn cert`: each prints its result and returns the exit code. What they take
 * and do is said in client/commands.c, as `cairn cert COMMAND -h` prints it. None needs a
 * coordinator.
 */
#pragma once

#include "client/base/client.h"

/* Makes what is missing of an authority and the coordinator's certificate; prints nothing. */
enum exit_code cert_prepare(const struct client *client);

enum exit_code cmd_cert_init(struct client *client);
enum exit_code cmd_cert_node(struct client *client);
enum exit_code cmd_cert_operator(struct client *client);
enum exit_code cmd_cert_viewer(struct client *client);
enum exit_code cmd_cert_check(struct client *client);
enum exit_code cmd_cert_renew(struct client *client);
enum exit_code cmd_cert_show(struct client *client);

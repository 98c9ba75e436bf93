/*
 * The commands of `cairn cert`: each prints its result and returns the exit code. What they take
 * and do is said in client/commands.c, as `cairn cert COMMAND -h` prints it. None needs a
 * coordinator.
 */
#pragma once

#include "client/base/client.h"

/* Makes what is missing of an authority and the coordinator's certificate; prints nothing. */
enum exit_code cert_prepare(const struct client *client);

/* Checks whether the page may be served at `address`, whose host is `host`, with the coordinator's
 * certificate. Nobody makes that unasked: its names are for people to say. Problems are reported;
 * also that the certificate doesn't name the host, which may be as it should be. */
enum exit_code cert_check_page(const struct client *client, const char *address, const char *host);

enum exit_code cmd_cert_init(struct client *client);
enum exit_code cmd_cert_node(struct client *client);
enum exit_code cmd_cert_operator(struct client *client);
enum exit_code cmd_cert_viewer(struct client *client);
enum exit_code cmd_cert_check(struct client *client);
enum exit_code cmd_cert_renew(struct client *client);
enum exit_code cmd_cert_show(struct client *client);

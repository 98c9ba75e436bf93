/*
 * The folder of an authority: what --dir says, else tls in the home.
 *
 *   ca.crt, ca.key               the authority; who has the key is everybody
 *   coordinator.crt, ….key       the coordinator
 *   ROLE-NAME.crt, ….key         a node, an operator, a viewer
 *
 * Errors are reported here: what comes back is the exit code.
 */
#pragma once

#include "client/base/client.h"
#include "identity/make.h"

/* The path of a file in the folder, by its name and ending: "ca", ".crt". */
enum exit_code folder_path(const struct client *client, const char *stem, const char *ending,
                           char out[LIMIT_PATH]);

/* The path of the key beside a certificate's file: "FILE.key" for "FILE.crt". */
enum exit_code folder_key_of(const char *cert, char out[LIMIT_PATH]);

/* True if there is a file at path. */
bool folder_has(const char *path);

/* A text file; the caller's. */
enum exit_code folder_read(const char *path, char **out);

/* The authority, certificate and key; the caller's (identity_pem_release). */
enum exit_code folder_read_ca(const struct client *client, struct identity_pem *out);

/* Writes key (0600) and certificate as two new files, never over one that is there. */
enum exit_code folder_publish(const struct client *client, const char *stem,
                              const struct identity_pem *pem);

int64_t folder_now_s(void);

/* Reports an error: its reason, or what the status means. */
enum exit_code folder_report(enum status st, const struct reason *reason);

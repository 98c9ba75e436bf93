/*
 * Certificates as a list: a row for each file, in the format asked for.
 */
#pragma once

#include "client/base/client.h"

#define ROWS_MAX 4096 /* certificates of one folder */

struct rows {
    struct row *list;
    size_t count;
};

/* A zeroed one is fine. */
void rows_release(struct rows *rows);
/* Reads a certificate's file; what is wrong with it is reported. */
enum exit_code rows_add(struct rows *rows, const char *path);
enum exit_code rows_print(const struct client *client, const struct rows *rows);
/* Prints the row of one file. */
enum exit_code rows_print_one(const struct client *client, const char *path);

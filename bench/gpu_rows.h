/* The results of bench/gpu: rows with a yardstick each, as JSON lines and as a table. */
#pragma once

#include <stddef.h>

#define ROWS_MAX 64

struct row {
    char name[48], unit[16], yardstick[64];
    double value, against; /* against: 0, there is none */
};

struct rows {
    struct row rows[ROWS_MAX];
    size_t count;
};

void rows_add(struct rows *rows, const char *name, double value, const char *unit);
/* Gives a row its yardstick; a second one replaces the first. */
void rows_against(struct rows *rows, const char *name, const char *yardstick, double value);
/* The value of a row; 0: there is none. */
double rows_value(const struct rows *rows, const char *name);
/* Runs the peer's script for some of its cases: each of its results becomes the yardstick of the
 * row of the same name, the best of several. Says on standard error if it fails. */
void rows_read_peer(struct rows *rows, const char *python, const char *script, const char *cases);
void rows_print(const struct rows *rows);

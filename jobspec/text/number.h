/*
 * Numbers in a job file: digits as people write them, nothing else that the C library would take.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

/* A whole number in [low, high]; false: it isn't one. */
bool number_whole(const char *text, double low, double high, int64_t *out);

/* Digits, point, exponent at the start of text; out_end is behind them. false: there are none. */
bool number_real(const char *text, char **out_end, double *out);

/* Writes the shortest digits that read back as the same number. */
MUST_CHECK enum status number_print(double value, struct buf *out);

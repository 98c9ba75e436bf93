/*
 * Numbers as people read them. Each writes at most capacity bytes with the NUL and returns out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "5m14s", "2h03m", "0.4s"; "-" if it isn't finite or negative. */
char *format_seconds(double seconds, char *out, size_t capacity);

/* "12.3ms"; from a second on as format_seconds. */
char *format_us(uint64_t us, char *out, size_t capacity);

/* "86.2 MiB" */
char *format_bytes(uint64_t bytes, char *out, size_t capacity);

/* Four significant digits; "-" if it isn't finite. */
char *format_number(double value, char *out, size_t capacity);

/* How long ago an RFC 3339 time was: "3m"; "-" if it is empty or no time. */
char *format_age(const char *time, int64_t now_ms, char *out, size_t capacity);

/* Unix milliseconds of an RFC 3339 time in UTC; false: it isn't one. */
bool format_read_time(const char *time, int64_t *out_ms);

/* width cells, fraction of them filled. */
char *format_bar(double fraction, size_t width, bool utf8, char *out, size_t capacity);

/* Values as a line of at most width cells. Where several fall into a cell the highest
 * shows, so that a spike can't vanish; what isn't finite shows as '!'. */
char *format_sparkline(const float *values, size_t count, size_t width, bool utf8, char *out,
                       size_t capacity);

/* Cells of a UTF-8 text on a terminal (each character one), escape sequences not counted. */
size_t format_cells(const char *text);
/* Bytes of the longest beginning that has at most `cells` cells. */
size_t format_fit(const char *text, size_t cells);

/* Makes capitals (of ASCII) small, in place; returns text. */
char *format_lower(char *text);

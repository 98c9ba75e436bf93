/*
 * The page: one HTML file with everything in it (styles, scripts, dygraphs), made at build time
 * from the files of this folder. It asks for nothing but /api/v1 of where it came from.
 *
 * Both live as long as the program. Any thread.
 */
#pragma once

#include <stddef.h>

/* The file's bytes; they aren't closed by a NUL. */
const char *page_html(size_t *out_size);

/* The bytes of the file, compressed with gzip. */
const char *page_gzip(size_t *out_size);

/* 16 digits that differ for different bytes. */
const char *page_tag(void);

/* The value of Content-Security-Policy under which it works: its own scripts run, and no others. */
const char *page_csp(void);

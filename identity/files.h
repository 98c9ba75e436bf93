/*
 * Certificate, key and CA as files, in memory, and whether the files have changed since.
 *
 * Each is at most IDENTITY_FILE_BYTES. Files are written by renaming (common/io.h), so that each is
 * whole; that a certificate is the new one and its key still the old is seen by who uses them
 * (identity_usable), and mended when they are read the next time.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"

#define IDENTITY_FILE_BYTES ((size_t)256 << 10) /* a bundle of some 300 authorities */
#define IDENTITY_LOOK_MS    1000                /* between two looks at the files */

/* Paths; borrowed. */
struct identity_files {
    const char *cert; /* the own certificate first, then those between it and the CA's, if any */
    const char *key;
    const char *ca; /* every authority that signs peers */
};

/* Fills what is NULL from CAIRN_TLS_CERT, CAIRN_TLS_KEY and CAIRN_TLS_CA; false: none is named. */
bool identity_files_named(struct identity_files *files);

/* The same as PEM texts; NULL where there is no path. */
struct identity_texts {
    char *cert;
    char *key;
    char *ca;
};
/* The key is overwritten first. A zeroed one is fine. */
void identity_texts_release(struct identity_texts *texts);

/* Reads the files. reason names the one that couldn't be. */
MUST_CHECK enum status identity_texts_read(const struct identity_files *files,
                                           struct identity_texts *out, struct reason *reason);

/* May others than its owner read the file of a key, or is it another account's? Then reason says
 * so, and the way out. NULL, or not there: no. */
bool identity_key_exposed(const char *key, struct reason *reason);

struct identity_watch;

/* Remembers the files as they are now; paths are copied. Errors: ST_NO_MEMORY */
MUST_CHECK enum status identity_watch_new(const struct identity_files *files,
                                          struct identity_watch **out);
void identity_watch_free(struct identity_watch *watch);

/* The paths, borrowed for the watch's life. */
const struct identity_files *identity_watch_files(const struct identity_watch *watch);

/*
 * True when a look finds a file other than it was when it was accepted last. Looks at most once in
 * IDENTITY_LOOK_MS, between looks it is false; now_ms is monotonic.
 */
bool identity_watch_changed(struct identity_watch *watch, int64_t now_ms);
/* What the last look found is in use from now on. Else the next look finds it, too. */
void identity_watch_accept(struct identity_watch *watch);

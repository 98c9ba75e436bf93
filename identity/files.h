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

/* The contents of the files, as PEM texts; NULL where there is no path. */
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

/* True if others than its owner may read the file of a key, or it is another account's; reason then
 * says so, and the way out. False for NULL, and if the file isn't there. */
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
/* Accepts the files that the last look found. Without that the next look finds them changed,
 * too. */
void identity_watch_accept(struct identity_watch *watch);

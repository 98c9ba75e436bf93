/*
 * The certificate that a coordinator serves with, and the authority beside it: its key is ca.key in
 * the folder of files->ca, if it is there at all. It is read when something is to be signed, and
 * not kept.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "identity/files.h"
#include "identity/make.h"

/* The key of an authority, which nobody but its owner may read: with it one can be anybody.
 * Errors: as private_read (common/own/private.h) */
MUST_CHECK enum status identity_ca_key_read(const char *path, char **out, struct reason *reason);

/* Certificate and key of the authority; to be released in any case. reason says which file can't be
 * read, and the way out. */
MUST_CHECK enum status identity_authority_read(const struct identity_files *files,
                                               struct identity_pem *out, struct reason *reason);

/*
 * Renews files->cert in its place, in the last third of its life. Two that do so at once are no
 * harm: either certificate is good. What isn't a peer's certificate is left alone.
 * Errors: as of reading, signing, writing: it is due, and couldn't be
 */
MUST_CHECK enum status identity_renew_own(const struct identity_files *files, int64_t now_s,
                                          bool *out_renewed);

/*
 * The things of its home that a coordinator needs before it serves: the home itself, and its
 * secrets. Errors are logged, with the way out.
 */
#pragma once

#include "common/log.h"
#include "common/paths.h"
#include "identity/seal.h"

/* Makes sure that the home is ours, and closed to others: whoever else could write there could be
 * served in our name. Errors: ST_REFUSED  a person has to look at it; others */
MUST_CHECK enum status place_home(struct paths *paths, const struct log *log);

/* Reads, or makes, the key of the tokens of generations: HOME/state/seal. Errors: as above */
MUST_CHECK enum status place_seal(const struct paths *paths, const struct log *log,
                                  char out[IDENTITY_TOKEN]);

/* Makes HOME/token, another with each start: whoever listened in the coordinator's place meanwhile
 * may have been sent the last. */
MUST_CHECK enum status place_token(const struct paths *paths, const struct log *log,
                                   char out[IDENTITY_TOKEN]);

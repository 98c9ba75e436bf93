/*
 * Exchange of a few words between all ranks, between two steps.
 *
 * Thread: the step thread. Errors: comm/comm.h, the backend's
 */
#pragma once

#include "trainer/worker/worker.h"

/* Exchanges words in a collective of that name (static text), to which all ranks come after the
 * same steps. out: [size], borrowed until the next call; with one rank its own. */
MUST_CHECK enum status agree_exchange(struct worker *worker, const char *name,
                                      const struct rank_words *mine, const struct rank_words **out);

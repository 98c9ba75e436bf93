/*
 * What the relay knows of a program (trainer/relay/relay.h), as a failure of that program.
 */
#pragma once

#include <stdbool.h>

#include "trainer/command/failure.h"
#include "trainer/relay/relay.h"

/* A relay that couldn't be opened. */
struct command_failure relayed_unopened(enum status st, const struct reason *why);
/* True if the program has said what can't be, or that it fails and then hasn't ended; or if its
 * process has ended with code 0 (ended) before it was done. rank: of that process */
bool relayed_has_failed(const struct relay_news *news, const struct relay_process_news *process,
                        bool ended, uint32_t rank, int64_t now_ms, struct command_failure *out);
/* Adds to a failure what the program said of it, and whether what it was to go on from is
 * damaged: that is read, then. */
void relayed_explain(struct relay *relay, const struct relay_news *news, uint32_t rank,
                     struct command_failure *failure);

/* A rendezvous between threads of one process (common/rendezvous.h), for --check: one meeting. */
#pragma once

#include "common/rendezvous.h"

#define CHECK_RANKS_MAX 32

struct check_rendezvous;

MUST_CHECK enum status check_rendezvous_new(int ranks, struct check_rendezvous **out);
void check_rendezvous_free(struct check_rendezvous *rendezvous);
/* As that rank sees it. */
struct rendezvous check_rendezvous_of(struct check_rendezvous *rendezvous, int rank);
/* Whoever waits in it, or comes later, is told that the generation is over. */
void check_rendezvous_go_stale(struct check_rendezvous *rendezvous);

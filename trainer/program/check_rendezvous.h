/* A rendezvous between threads of one process (common/rendezvous.h), for --check: one round. */
#pragma once

#include "common/rendezvous.h"

#define CHECK_RANKS_MAX 32

struct check_rendezvous;

MUST_CHECK enum status check_rendezvous_new(int ranks, struct check_rendezvous **out);
void check_rendezvous_free(struct check_rendezvous *rendezvous);
/* Returns the rendezvous as that rank sees it. */
struct rendezvous check_rendezvous_of(struct check_rendezvous *rendezvous, int rank);
/* Ends the generation for all ranks that wait in the rendezvous, or come later. */
void check_rendezvous_go_stale(struct check_rendezvous *rendezvous);

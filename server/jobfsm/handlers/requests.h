/* The requests of people, as a job's machine takes them. */
#pragma once

#include "server/jobfsm/ctx.h"

MUST_CHECK enum status fsm_ask(struct fsm_ctx *t);
/* Returns the name of who asks, as people are told it; by: as in struct fsm_event. */
const char *fsm_asker(const char *by);

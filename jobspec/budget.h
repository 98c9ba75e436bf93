/* How many failures in a row without progress end a job with a program, where
 * command.restart.budget doesn't say. */
#pragma once

#include "jobspec/jobspec.h"

#define JOBSPEC_BUDGET 10
/* Before the first step ever, where steps are seen: a module that is missing, a mistake in the
 * script. Trying that ten times, with longer and longer pauses, takes minutes. */
#define JOBSPEC_BUDGET_FIRST 3

static inline int64_t jobspec_budget(const struct jobspec *job)
{
    const int64_t given = job->command.restart.budget;
    return given > 0 ? given : JOBSPEC_BUDGET;
}

/* 0: no other than jobspec_budget. */
static inline int64_t jobspec_budget_first(const struct jobspec *job)
{
    const bool seen = job->command.saves || job->command.progress[0] != '\0';
    return job->command.restart.budget == 0 && seen ? JOBSPEC_BUDGET_FIRST : 0;
}

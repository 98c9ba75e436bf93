#include "observer/prometheus/state.h"

static const char *const states[] = { "queued", "placing",    "forming", "running",
                                      "saving", "recovering", "paused",  "succeeded",
                                      "failed", "stopped",    "killed" };
#define STATES (sizeof(states) / sizeof(states[0]))

_Static_assert(CAIRN__V1__JOB_STATE__QUEUED == 1, "states as in common.proto");
_Static_assert(CAIRN__V1__JOB_STATE__KILLED == STATES, "states as in common.proto");

const char *const *prometheus_job_states(size_t *out_count)
{
    *out_count = STATES;
    return states;
}

const char *prometheus_job_state(Cairn__V1__JobState state)
{
    const size_t number = (size_t)state;
    return number >= 1 && number <= STATES ? states[number - 1] : NULL;
}

bool prometheus_job_is_over(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__SUCCEEDED || state == CAIRN__V1__JOB_STATE__FAILED ||
           state == CAIRN__V1__JOB_STATE__STOPPED || state == CAIRN__V1__JOB_STATE__KILLED;
}

bool prometheus_job_holds_workers(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__FORMING || state == CAIRN__V1__JOB_STATE__RUNNING ||
           state == CAIRN__V1__JOB_STATE__SAVING || state == CAIRN__V1__JOB_STATE__RECOVERING;
}

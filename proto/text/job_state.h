/*
 * States of jobs: as words, and which are the last.
 */
#pragma once

#include <stdbool.h>

#include "cairn/v1/common.pb-c.h"

/* "RUNNING"; "?" for a state that this version doesn't know. Static. */
const char *job_state_name(Cairn__V1__JobState state);
/* SUCCEEDED, FAILED, STOPPED, KILLED */
bool job_is_over(Cairn__V1__JobState state);

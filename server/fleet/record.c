#include "server/fleet/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

static void remove_fault(struct fleet_record *record, uint32_t at)
{
    CHECK(at < record->count);
    record->count--;
    memmove(&record->faults[at], &record->faults[at + 1],
            (record->count - at) * sizeof(record->faults[0]));
    if (record->count < FLEET_DRAIN_JOBS)
        record->drained = false;
}

static bool remove_job(struct fleet_record *record, const char *job)
{
    for (uint32_t i = 0; i < record->count; i++) {
        if (strcmp(record->faults[i].job, job) != 0)
            continue;
        remove_fault(record, i);
        return true;
    }
    return false;
}

bool fleet_blame(struct fleet_record *record, const char *job, int64_t now)
{
    const bool drained = record->drained;
    if (!remove_job(record, job) && record->count == FLEET_FAULTS_MAX)
        remove_fault(record, 0);
    record->drained = drained;
    struct fleet_fault *fault = &record->faults[record->count++];
    (void)snprintf(fault->job, sizeof(fault->job), "%s", job);
    fault->at = now;
    return !record->drained && record->count >= FLEET_DRAIN_JOBS;
}

void fleet_clear(struct fleet_record *record, const char *job)
{
    (void)remove_job(record, job);
}

void fleet_forgive(struct fleet_record *record)
{
    *record = (struct fleet_record){ .count = 0 };
}

bool fleet_age(struct fleet_record *record, int64_t now)
{
    const bool drained = record->drained;
    while (record->count > 0 && now - record->faults[0].at >= FLEET_FORGET_MS)
        remove_fault(record, 0);
    return drained && !record->drained;
}

double fleet_penalty(const struct fleet_record *record, int64_t now)
{
    double sum = 0;
    for (uint32_t i = 0; i < record->count; i++)
        sum += exp2(-(double)(now - record->faults[i].at) / FLEET_HALF_LIFE_MS);
    return sum;
}

/*
 * The members of a communicator (comm.h), from its options.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/comm.h"
#include "common/limits.h"

struct comm_group {
    int rank, size;              /* among its members */
    int members[LIMIT_RANKS];    /* [size] their ranks in the generation, ascending */
    bool connected[LIMIT_RANKS]; /* [size] this rank talks to that one; to itself never */
    int connections;
};

/* false: not in order, not in the generation, or this rank isn't among them. */
static inline bool comm_group_of(const struct comm_options *options, struct comm_group *out)
{
    const bool all = options->members == NULL;
    const int count = all ? options->size : options->member_count;
    out->rank = -1;
    out->size = count;
    out->connections = 0;
    if (options->size < 1 || options->size > LIMIT_RANKS || count < 1 || count > options->size)
        return false;
    for (int m = 0; m < count; m++) {
        const int member = all ? m : options->members[m];
        if (member < 0 || member >= options->size || (m > 0 && member <= out->members[m - 1]))
            return false;
        if (member == options->rank)
            out->rank = m;
        out->members[m] = member;
        out->connected[m] =
            member != options->rank && (options->connected == NULL || options->connected[m]);
        out->connections += out->connected[m];
    }
    return out->rank >= 0;
}

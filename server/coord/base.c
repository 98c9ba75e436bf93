/* The lowest layer of the core: its options, random names, and giving up. */
#include "server/coord/base.h"

#include <stdio.h>

#include "common/check.h"

enum status coord_failed(const struct coord *coord)
{
    return coord->failed;
}

const struct coord_options *coord_options(const struct coord *coord)
{
    return &coord->options;
}

void coord_fail(struct coord *coord, enum status st, const char *doing)
{
    if (coord->failed != ST_OK)
        return;
    coord->failed = st;
    const char *detail = journal_error(coord->options.journal);
    LOG_ERROR(coord->options.log, "%s: %s%s%s; the coordinator ends and starts again", doing,
              status_string(st), detail[0] ? ": " : "", detail);
}

void coord_nonce(struct coord *coord, char *out, size_t capacity)
{
    uint8_t bytes[32];
    CHECK(capacity <= 2 * sizeof(bytes) + 1);
    coord->options.random(coord->options.random_arg, bytes, capacity / 2);
    for (size_t i = 0; i < capacity / 2; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

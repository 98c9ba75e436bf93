/* The lowest layer of the core: its options, random names, and giving up. */
#include <stdio.h>

#include "common/check.h"
#include "server/core/internal.h"

enum status core_failed(const struct core *core)
{
    return core->failed;
}

const struct core_options *core_options(const struct core *core)
{
    return &core->options;
}

void core_fail(struct core *core, enum status st, const char *doing)
{
    if (core->failed != ST_OK)
        return;
    core->failed = st;
    const char *detail = journal_error(core->options.journal);
    LOG_ERROR(core->options.log, "%s: %s%s%s; the coordinator ends and starts again", doing,
              status_string(st), detail[0] ? ": " : "", detail);
}

void core_nonce(struct core *core, char *out, size_t capacity)
{
    uint8_t bytes[32];
    CHECK(capacity <= 2 * sizeof bytes + 1);
    core->options.random(core->options.random_arg, bytes, capacity / 2);
    for (size_t i = 0; i < capacity / 2; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

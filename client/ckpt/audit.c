/* audit: an interval between two checkpoints computed once more, here; the trainer does it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/target.h"
#include "client/base/trainer.h"
#include "client/ckpt/commands.h"
#include "client/print/output.h"

struct interval {
    char job[LIMIT_PATH];
    uint64_t from, to;
};

static bool take_step(const char **at, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    const bool taken = errno == 0 && end != *at && **at != '-' && **at != '+';
    *at = end;
    return taken;
}

/* JOB@A..B */
static bool parse(const char *word, struct interval *out)
{
    const char *at = strrchr(word, '@');
    if (at == NULL || at == word || (size_t)(at - word) >= sizeof(out->job))
        return false;
    (void)snprintf(out->job, sizeof(out->job), "%.*s", (int)(at - word), word);
    at++;
    if (!take_step(&at, &out->from) || strncmp(at, "..", 2) != 0)
        return false;
    at += 2;
    return take_step(&at, &out->to) && *at == '\0' && out->from < out->to;
}

static enum exit_code find(struct client *client, const struct interval *interval, uint64_t step,
                           char out[LIMIT_PATH])
{
    char word[LIMIT_PATH + 32];
    (void)snprintf(word, sizeof(word), "%s@%llu", interval->job, (unsigned long long)step);
    return target_find_one(client, word, out);
}

enum exit_code cmd_audit(struct client *client)
{
    struct interval interval;
    char from[LIMIT_PATH], to[LIMIT_PATH];
    if (!parse(client->args.operands[0], &interval)) {
        client_error("%s: say JOB@A..B, two steps with a checkpoint each; A may be 0",
                     client->args.operands[0]);
        return EXIT_USAGE;
    }
    enum exit_code code = find(client, &interval, interval.to, to);
    if (code == EXIT_DONE && interval.from > 0)
        code = find(client, &interval, interval.from, from);
    if (code != EXIT_DONE)
        return code;
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--replay");
    trainer_add(&call, to);
    if (interval.from > 0) {
        trainer_add(&call, "--from");
        trainer_add(&call, from);
    }
    if (output_is_json(client))
        trainer_add(&call, "--json");
    if (client->args.quiet)
        trainer_add(&call, "--quiet");
    return trainer_become(&call);
}

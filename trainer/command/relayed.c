#include "trainer/command/relayed.h"

#define WORDS_MS INT64_C(10000) /* for a program that said why it fails to end */

struct command_failure relayed_unopened(enum status st, const struct reason *why)
{
    const bool damaged = st == ST_INCOMPLETE || st == ST_CORRUPT;
    struct command_failure failure = { .kind = damaged ? CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT
                                               : st == ST_CONFIG
                                                   ? CAIRN__V1__FAULT_KIND__USER
                                                   : CAIRN__V1__FAULT_KIND__PROCESS_GONE };
    reason_set(&failure.why, "%s", why->text[0] != '\0' ? why->text : status_string(st));
    return failure;
}

/* The failure of a program that ended with code 0 before it was done. */
static struct command_failure ended_early(const struct relay_news *news, uint32_t rank)
{
    struct command_failure failure = { .kind = CAIRN__V1__FAULT_KIND__USER };
    if (news->ready) {
        reason_set(&failure.why,
                   "the program of rank %u ended with code 0 at step %llu, before the save of its "
                   "last step was committed: cairn_finish waits for that",
                   rank, (unsigned long long)news->step);
    } else {
        reason_set(&failure.why,
                   "the program of rank %u ended with code 0 before it called cairn_ready; a "
                   "program that saves nothing needs no `checkpoint` in its job file",
                   rank);
    }
    return failure;
}

bool relayed_has_failed(const struct relay_news *news, const struct relay_process_news *process,
                        bool ended, uint32_t rank, int64_t now_ms, struct command_failure *out)
{
    const bool said = news->words.text[0] != '\0';
    *out = (struct command_failure){ .kind = CAIRN__V1__FAULT_KIND__USER, .why = news->why };
    if (news->failed)
        return true;
    if (ended && !process->done) {
        *out = ended_early(news, rank);
        return true;
    }
    out->kind = CAIRN__V1__FAULT_KIND__PROCESS_GONE;
    reason_set(&out->why, "the program of rank %u failed: %.300s", rank, news->words.text);
    return !ended && said && now_ms - news->words_ms > WORDS_MS;
}

void relayed_explain(struct relay *relay, const struct relay_news *news, uint32_t rank,
                     struct command_failure *failure)
{
    struct reason why = { "" };
    uint32_t shard = 0;
    if (!failure->outside && relay_is_damaged(relay, &why, &shard)) {
        failure->kind = CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT;
        failure->shard = shard;
        failure->late = false;
        failure->why = why;
    } else if (!failure->outside && news->words.text[0] != '\0') {
        reason_set(&failure->why, "the program of rank %u failed: %.300s", rank, news->words.text);
    }
}

/* `cairn debug job`: all that the coordinator has of a job, journalled or not. */
#include <jansson.h>
#include <stdlib.h>

#include "server/containers/fields.h"
#include "server/jobfsm/inspect/dump.h"
#include "server/render/render.h"

#define MEMBER(member, kind) FIELD_NAMED(coord_job, member, #member, kind)
#define COUNT(table)         (sizeof(table) / sizeof((table)[0]))

static const struct json_field job_fields[] = {
    MEMBER(id, TEXT),
    MEMBER(name, TEXT),
    MEMBER(seq, I64),
    MEMBER(layout_of, U32),
    MEMBER(unreadable, TEXT),
    MEMBER(ended, ENUM),
    MEMBER(used, U64),
    MEMBER(tasks, U32),
    MEMBER(held, U32),
    MEMBER(drained, BOOLEAN),
    MEMBER(version, U64),
    MEMBER(rows_version, U64),
    MEMBER(dirty, BOOLEAN),
    MEMBER(deciding, BOOLEAN),
    MEMBER(began.generation, U32),
    MEMBER(began.wall, I64),
    MEMBER(loss, DOUBLE),
    MEMBER(accuracy, DOUBLE),
    MEMBER(eval_loss, DOUBLE),
    MEMBER(metric_step, U64),
    MEMBER(metric_generation, U32),
    MEMBER(step_flops, DOUBLE),
    MEMBER(copies.generation, U32),
    MEMBER(copies.every, U64),
    MEMBER(copies.bytes, U64),
    MEMBER(copies.reason.text, TEXT),
    MEMBER(copies.told, BOOLEAN),
    MEMBER(behind, I64),
};

/* Times are in milliseconds from now, as in fsm_dump. */
static json_t *dump_job(const struct coord *coord, const struct coord_job *job, int64_t now)
{
    struct fsm_blocked blocked;
    struct reason reason;
    coord_blocked(coord, job, &blocked);
    coord_reason(coord, job, &reason);
    json_t *out = fields_encode(job, job_fields, COUNT(job_fields));
    const bool ok =
        out != NULL && fields_put(out, "blocked_by", json_string(fsm_block_name(blocked.by))) &&
        fields_put(out, "blocked", json_string(blocked.text)) &&
        fields_put(out, "reason", json_string(reason.text)) &&
        fields_put(out, "ticked_at", json_integer(job->ticked_at - now)) &&
        fields_put(out, "recovers_at",
                   job->recovers_at == 0 ? json_null() : json_integer(job->recovers_at - now));
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

char *render_debug(const struct coord *coord, const struct coord_job *job)
{
    const int64_t now = clock_mono_ms(coord_options(coord)->clock);
    json_t *out = json_object();
    char *text = NULL;
    if (out != NULL && fields_put(out, "job", dump_job(coord, job, now)) &&
        fields_put(out, "machine", fsm_dump(&job->m, now)))
        text = json_dumps(out, JSON_COMPACT);
    json_decref(out);
    return text;
}

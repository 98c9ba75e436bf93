#include "server/api/later.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/render/render.h"

enum kind { JOB, EXPLANATION, ROWS, CKPTS };

struct later {
    struct rpc_call *call; /* a reference */
    enum kind kind;
    char id[16];
    bool in_memory; /* the core has the job */
    bool known;     /* what it knows was taken */
    bool spare_node;
    struct render_history of;
    Cairn__V1__Job *job;                    /* owned, without its history */
    struct explain *explain;                /* owned */
    Cairn__V1__ListCheckpointsReply *ckpts; /* owned */
    uint64_t from_step, base_step;          /* of rows */
    size_t size;                            /* of a page of checkpoints */
    char token[48];
    enum status failed; /* to take it */
};

/* ---- what the core knows ---- */

static enum status take(struct later *later, const struct coord *coord, struct coord_job *job)
{
    later->known = true;
    later->of = render_history_of(job);
    switch (later->kind) {
    case JOB:
        later->job = render_job(coord, job, RENDER_CKPTS);
        return later->job != NULL ? ST_OK : ST_NO_MEMORY;
    case EXPLANATION:
        later->explain = explain_begin(coord, job, later->spare_node);
        return later->explain != NULL ? ST_OK : ST_NO_MEMORY;
    case ROWS:
        later->base_step = job->m.restore.step;
        return ST_OK;
    case CKPTS:
        return render_ckpts(job, later->size, later->token, &later->ckpts);
    }
    return ST_INVALID;
}

static void release(struct later *later)
{
    cairn__v1__job__free_unpacked(later->job, NULL);
    cairn__v1__list_checkpoints_reply__free_unpacked(later->ckpts, NULL);
    explain_free(later->explain);
    rpc_call_unref(later->call);
    free(later);
}

/* Begins an answer; NULL: no memory. */
static struct later *begin(const struct later_of *of, struct later with)
{
    struct coord_node *nodes[2];
    struct later *later = malloc(sizeof(*later));
    if (later == NULL)
        return NULL;
    *later = with;
    later->call = of->call;
    rpc_call_ref(later->call);
    (void)snprintf(later->id, sizeof(later->id), "%s", of->id);
    later->spare_node = coord_nodes(of->coord, nodes, 2) > 1;
    later->in_memory = of->job != NULL;
    if (of->job != NULL)
        later->failed = take(later, of->coord, of->job);
    if (later->failed != ST_NO_MEMORY)
        return later;
    release(later);
    return NULL;
}

struct later *later_job(const struct later_of *of)
{
    return begin(of, (struct later){ .kind = JOB });
}

struct later *later_explain(const struct later_of *of)
{
    return begin(of, (struct later){ .kind = EXPLANATION });
}

struct later *later_rows(const struct later_of *of, uint64_t from_step)
{
    return begin(of, (struct later){ .kind = ROWS, .from_step = from_step });
}

struct later *later_ckpts(const struct later_of *of, size_t size, const char *token)
{
    struct later with = { .kind = CKPTS, .size = size };
    const bool fits = strlen(token) < sizeof(with.token); /* as each of ours does */
    (void)snprintf(with.token, sizeof(with.token), "%s", fits ? token : "?");
    return begin(of, with);
}

/* ---- a job ---- */

static enum status end_job(struct later *later, struct journal *journal)
{
    const enum status st = render_history(&later->of, journal, later->job);
    if (st == ST_OK)
        (void)rpc_call_send(later->call, &later->job->base);
    return st;
}

static enum status end_explanation(struct later *later, struct journal *journal)
{
    Cairn__V1__ExplainJobReply *out = NULL;
    const enum status st = explain_end(later->explain, journal, &out);
    later->explain = NULL;
    if (st != ST_OK)
        return st;
    (void)rpc_call_send(later->call, &out->base);
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
    return ST_OK;
}

static enum status end_rows(struct later *later, struct later_reader *reader)
{
    Cairn__V1__ReadMetricsReply out = CAIRN__V1__READ_METRICS_REPLY__INIT;
    if (later->in_memory)
        rows_forget(&reader->rows); /* others may have come, and will */
    const enum status st = rows_read(&reader->rows, coord_options(reader->coord)->journal,
                                     later->id, later->from_step);
    if (st != ST_OK)
        return st;
    rows_put(&reader->rows, &out);
    out.generation = later->of.generation;
    out.base_step = later->base_step;
    (void)rpc_call_send(later->call, &out.base);
    if (later->in_memory)
        rows_forget(&reader->rows);
    return ST_OK;
}

/* ---- the end ---- */

static void take_read(void *arg, struct coord_job *job)
{
    struct later *later = arg;
    later->failed = take(later, NULL, job);
}

/* Reads the job that isn't in memory; whose rows are read page by page is read once. */
static enum status look(struct later *later, struct later_reader *reader)
{
    if (later->kind == ROWS && strcmp(reader->id, later->id) == 0) {
        later->of.generation = reader->generation;
        later->base_step = reader->base_step;
        return ST_OK;
    }
    const enum status st = coord_look(reader->coord, later->id, take_read, later);
    if (st == ST_OK && later->kind == ROWS) {
        (void)snprintf(reader->id, sizeof(reader->id), "%s", later->id);
        reader->generation = later->of.generation;
        reader->base_step = later->base_step;
    }
    return st;
}

static enum status answer(struct later *later, struct later_reader *reader)
{
    struct journal *journal = coord_options(reader->coord)->journal;
    const enum status st = later->known ? ST_OK : look(later, reader);
    if (st != ST_OK || later->failed != ST_OK)
        return st != ST_OK ? st : later->failed;
    switch (later->kind) {
    case JOB:
        return end_job(later, journal);
    case EXPLANATION:
        return end_explanation(later, journal);
    case ROWS:
        return end_rows(later, reader);
    case CKPTS:
        (void)rpc_call_send(later->call, &later->ckpts->base);
        return ST_OK;
    }
    return ST_INVALID;
}

static void refuse(const struct later *later, enum status why)
{
    struct reason reason;
    enum rpc_code code = RPC_INTERNAL;
    if (why == ST_NOT_FOUND) {
        code = RPC_NOT_FOUND;
        reason_set(&reason, "the job was forgotten");
    } else if (why == ST_INVALID) {
        code = rpc_code_from_status(why);
        reason_set(&reason, "listing checkpoints: %s", status_string(why));
    } else {
        reason_set(&reason, "job '%s' can't be read from the journal: %s", later->id,
                   status_string(why));
    }
    rpc_call_finish(later->call, code, reason.text);
}

enum status later_end(struct later *later, struct later_reader *reader)
{
    const enum status st = answer(later, reader);
    if (st != ST_OK)
        refuse(later, st);
    release(later);
    return st;
}

void later_fail(struct later *later, enum status why)
{
    refuse(later, why);
    release(later);
}

void later_read_ahead(struct later_reader *reader)
{
    rows_read_ahead(&reader->rows, coord_options(reader->coord)->journal);
}

void later_reader_release(struct later_reader *reader)
{
    rows_release(&reader->rows);
}

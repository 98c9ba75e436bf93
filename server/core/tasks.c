/* What the checkpoint store is asked: tasks made from actions, with what the journal holds for
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"

/* ---- reports ---- */

static bool take_hash(const ProtobufCBinaryData *in, struct ckpt_hash *out)
{
    if (in->len != sizeof out->byte)
        return false;
    memcpy(out->byte, in->data, sizeof out->byte);
    return true;
}

static enum status take_run(const Cairn__V1__PieceRun *in, struct ckpt_piece_run *out)
{
    size_t count = in->xxh3_128.len / sizeof(struct ckpt_hash);
    if (in->xxh3_128.len % sizeof(struct ckpt_hash) != 0)
        return ST_INVALID;
    *out = (struct ckpt_piece_run){ .buffer = in->buffer, .first = in->first, .count = count };
    if (count == 0)
        return ST_OK;
    out->hashes = malloc(in->xxh3_128.len);
    if (!out->hashes)
        return ST_NO_MEMORY;
    memcpy(out->hashes, in->xxh3_128.data, in->xxh3_128.len);
    return ST_OK;
}

/* out is released by the caller, whatever comes back. */
static enum status take_report(const Cairn__V1__SaveReport *in, struct ckpt_report *out)
{
    out->step = in->step;
    out->generation = in->generation;
    out->rank = in->rank;
    out->size = in->size;
    out->raw_bytes = in->raw_bytes;
    out->parent.step = in->parent_step;
    out->parent.generation = in->parent_generation;
    if (strlen(in->file) >= sizeof out->file || !take_hash(&in->xxh3_128, &out->hash) ||
        !take_hash(&in->scalars_xxh3_128, &out->scalars))
        return ST_INVALID;
    (void)snprintf(out->file, sizeof out->file, "%s", in->file);
    out->runs = calloc(in->n_pieces ? in->n_pieces : 1, sizeof *out->runs);
    if (!out->runs)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < in->n_pieces; i++) {
        enum status st = take_run(in->pieces[i], &out->runs[i]);
        if (st != ST_OK)
            return st;
        out->run_count++;
    }
    return ST_OK;
}

struct reports_read {
    struct store_task *task;
    uint32_t capacity;
    enum status status;
};

static bool read_report(void *arg, uint32_t rank, const void *data, size_t size)
{
    struct reports_read *read = arg;
    struct store_task *task = read->task;
    Cairn__V1__SaveReport *report = cairn__v1__save_report__unpack(NULL, size, data);
    read->status = ST_CORRUPT;
    if (report && report->rank == rank && task->report_count < read->capacity) {
        struct ckpt_report *out = &task->reports[task->report_count++];
        read->status = take_report(report, out);
    }
    cairn__v1__save_report__free_unpacked(report, NULL);
    return read->status == ST_OK;
}

static enum status load_reports(struct core *core, struct core_job *job, struct store_task *task)
{
    uint32_t ranks = job->m.config.ranks;
    task->reports = calloc(ranks, sizeof *task->reports);
    if (!task->reports)
        return ST_NO_MEMORY;
    struct reports_read read = { .task = task, .capacity = ranks, .status = ST_OK };
    enum status st = journal_each_report(core->options.journal, job->id, task->step,
                                         task->generation, read_report, &read);
    if (st == ST_OK)
        st = read.status;
    if (st == ST_OK && task->report_count != ranks)
        st = ST_INCOMPLETE;
    return st;
}

/* ---- the decision, read back ---- */

static bool read_decision(void *arg, const struct journal_save *save)
{
    struct store_task *task = arg;
    if (save->step != task->step || save->generation != task->generation ||
        save->state != MACHINE_SAVE_COMMITTING)
        return true;
    task->status = buf_append(&task->manifest, save->manifest, save->manifest_size);
    task->wall_ms = save->wall_ms;
    (void)snprintf(task->digest, sizeof task->digest, "%s", save->digest);
    task->bytes = save->bytes;
    task->raw_bytes = save->raw_bytes;
    task->shards = save->shards;
    task->parent.step = save->parent_step;
    task->parent.generation = save->parent_generation;
    return false;
}

static enum status load_decision(struct core *core, struct core_job *job, struct store_task *task)
{
    task->status = ST_NOT_FOUND;
    enum status st = journal_each_save(core->options.journal, job->id, read_decision, task);
    return st == ST_OK ? task->status : st;
}

/* ---- tasks ---- */

/* What a sweep leaves alone, whatever became of its manifest. */
static enum status list_kept(const struct core_job *job, struct store_task *task)
{
    const struct machine *m = &job->m;
    task->kept = calloc(m->catalog_count + 1, sizeof *task->kept);
    if (!task->kept)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < m->catalog_count; i++) {
        struct ckpt_folder_name *kept = &task->kept[task->kept_count++];
        *kept = (struct ckpt_folder_name){ .step = m->catalog[i].step,
                                           .generation = m->catalog[i].generation,
                                           .retry = m->catalog[i].retry };
    }
    return ST_OK;
}

void core_submit_store(struct core *core, struct core_job *job, const struct machine_action *act)
{
    struct store_task *task = store_task_new(act->task);
    if (!task) {
        core_fail(core, ST_NO_MEMORY, "asking the store");
        return;
    }
    (void)snprintf(task->job, sizeof task->job, "%s", job->id);
    (void)snprintf(task->store, sizeof task->store, "%s", job->spec->checkpoint.store);
    task->step = act->step;
    task->shard = act->shard;
    task->generation = act->generation;
    task->retry = machine_folder_try(&job->m, act->step, act->generation);
    (void)snprintf(task->mark, sizeof task->mark, "%s", job->m.store_mark);
    task->holds = machine_newest(&job->m) != NULL;
    task->given_up = job->m.store_away;
    task->wall_ms = clock_wall_ms(core->options.clock);
    core_nonce(core, task->nonce, sizeof task->nonce);
    ckpt_call_name(job->m.generation, task->nonce, task->call);
    enum status st = core_ckpt_dir(job, act->step, act->generation, task->dir, sizeof task->dir);
    if (task->kind == MACHINE_TASK_FOLDER) {
        const struct machine_save *save = machine_find_save(&job->m, act->step, act->generation);
        task->need_bytes = machine_expected_bytes(&job->m, !save || save->base_generation == 0);
    }
    if (st == ST_OK && task->kind == MACHINE_TASK_SWEEP)
        st = list_kept(job, task);
    if (st == ST_OK && task->kind == MACHINE_TASK_CHECK)
        st = load_reports(core, job, task);
    if (st == ST_OK && task->kind == MACHINE_TASK_PUBLISH)
        st = load_decision(core, job, task);
    if (st != ST_OK) { /* our own records contradict each other */
        store_task_free(task);
        core_fail(core, st, "reading back what the store is to be asked");
        return;
    }
    job->tasks++;
    core_post_task(core, task);
}

/* What the checkpoint store answers: events made from tasks that are done. */
#include <stdio.h>

#include "server/core/internal.h"

static bool take_metrics(void *arg, uint64_t step, const void *data, size_t size)
{
    struct machine_ckpt *ckpt = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (!row)
        return false;
    if (step == ckpt->step)
        ckpt->loss = (double)row->loss;
    if (row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL) {
        ckpt->eval_loss = row->eval->loss;
        ckpt->eval_accuracy = row->eval->accuracy;
    }
    cairn__v1__metric_row__free_unpacked(row, NULL);
    return false;
}

/* What is known of its step: rank 0 sent its row before it began to save. */
static void note_metrics(struct core *core, struct core_job *job, struct machine_ckpt *ckpt)
{
    struct journal *journal = core->options.journal;
    ckpt->loss = ckpt->eval_loss = ckpt->eval_accuracy = __builtin_nan("");
    core_flush_rows(core, job);
    enum status st = journal_each_metric(journal, job->id, ckpt->step, 1, take_metrics, ckpt);
    if (st == ST_OK)
        st = journal_last_eval(journal, job->id, ckpt->step, take_metrics, ckpt);
    if (st != ST_OK)
        core_fail(core, st, "reading the metrics of a checkpoint");
}

void core_store_done(struct core *core, struct store_task *task)
{
    struct core_job *job = core_job_at(core, task->job);
    if (job && job->tasks > 0)
        job->tasks--;
    core->retire_needed = true;
    if (job && core->failed == ST_OK) {
        struct machine_event event = core_event(core, MACHINE_EV_STORE);
        event.answer = (struct machine_answer){ .task = task->kind,
                                                .step = task->step,
                                                .shard = task->shard,
                                                .generation = task->generation,
                                                .retry = task->retry,
                                                .status = task->status,
                                                .message = task->message,
                                                .away = task->away,
                                                .mark = task->mark,
                                                .record = task,
                                                .swept = task->swept };
        struct machine_ckpt ckpt = { .step = task->step,
                                     .generation = task->generation,
                                     .retry = task->retry,
                                     .shards = task->shards,
                                     .state = MACHINE_CKPT_GOOD,
                                     .bytes = task->bytes,
                                     .raw_bytes = task->raw_bytes,
                                     .wall_ms = task->wall_ms,
                                     .parent_step = task->parent.step,
                                     .parent_generation = (uint32_t)task->parent.generation };
        (void)snprintf(ckpt.digest, sizeof ckpt.digest, "%s", task->digest);
        if (task->kind == MACHINE_TASK_PUBLISH)
            note_metrics(core, job, &ckpt);
        event.answer.ckpt = task->kind == MACHINE_TASK_PUBLISH ? &ckpt : NULL;
        (void)core_apply(core, job, &event);
    }
    store_task_free(task);
    core_schedule(core);
}

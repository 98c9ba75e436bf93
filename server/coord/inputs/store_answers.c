/* The answers of the checkpoint store: each becomes an event of its job. */
#include <stdio.h>

#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/index.h"

static bool take_metrics(void *arg, uint64_t step, const void *data, size_t size)
{
    struct fsm_ckpt *ckpt = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (row == NULL)
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

/* Adds the metrics of the checkpoint's step: rank 0 sent its row before it began to save. */
static void note_metrics(struct coord *coord, struct coord_job *job, struct fsm_ckpt *ckpt)
{
    struct journal *journal = coord->options.journal;
    ckpt->loss = ckpt->eval_loss = ckpt->eval_accuracy = __builtin_nan("");
    coord_flush_rows(coord, job);
    enum status st = journal_each_metric(journal, job->id, ckpt->step, 1, take_metrics, ckpt);
    if (st == ST_OK)
        st = journal_last_eval(journal, job->id, ckpt->step, take_metrics, ckpt);
    if (st != ST_OK)
        coord_fail(coord, st, "reading the metrics of a checkpoint");
    for (size_t i = 0; i < job->rows.count; i++) { /* rows that can't be journalled now */
        const struct coord_row *row = &job->rows.list[i];
        if (row->step == ckpt->step || (row->eval && row->step < ckpt->step))
            (void)take_metrics(ckpt, row->step, row->data, row->size);
    }
}

void coord_store_done(struct coord *coord, struct store_task *task)
{
    struct coord_job *job = coord_job_at(coord, task->job);
    if (job != NULL && job->tasks > 0)
        job->tasks--;
    coord->retire_needed = true;
    if (job != NULL && coord->failed == ST_OK) {
        struct fsm_event event = coord_event(coord, FSM_EV_STORE);
        event.answer = (struct fsm_answer){ .task = task->kind,
                                            .step = task->step,
                                            .shard = task->shard,
                                            .generation = task->generation,
                                            .try_number = task->try_number,
                                            .status = task->status,
                                            .message = task->message,
                                            .mark_mismatch = task->mark_mismatch,
                                            .mark = task->mark,
                                            .record = task,
                                            .swept = task->swept };
        struct fsm_ckpt ckpt = { .step = task->step,
                                 .generation = task->generation,
                                 .try_number = task->try_number,
                                 .shards = task->shards,
                                 .state = FSM_CKPT_GOOD,
                                 .bytes = task->bytes,
                                 .raw_bytes = task->raw_bytes,
                                 .wall_ms = task->wall_ms,
                                 .parent_step = task->parent.step,
                                 .parent_generation = (uint32_t)task->parent.generation };
        (void)snprintf(ckpt.digest, sizeof(ckpt.digest), "%s", task->digest);
        if (task->kind == FSM_TASK_PUBLISH)
            note_metrics(coord, job, &ckpt);
        event.answer.ckpt = task->kind == FSM_TASK_PUBLISH ? &ckpt : NULL;
        (void)coord_apply(coord, job, &event);
    }
    store_task_free(task);
    coord_bound_group(coord);
}

/* Tasks for the checkpoint store, made from actions, with what the journal holds for them. */
#include "server/coord/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/base.h"
#include "server/coord/outbox.h"

/* ---- the decision, read back ---- */

static bool read_decision(void *arg, const struct journal_save *save)
{
    struct store_task *task = arg;
    if (save->step != task->step || save->generation != task->generation ||
        save->state != FSM_SAVE_COMMITTING)
        return true;
    task->status = buf_append(&task->manifest, save->manifest, save->manifest_size);
    task->wall_ms = save->wall_ms;
    (void)snprintf(task->digest, sizeof(task->digest), "%s", save->digest);
    task->bytes = save->bytes;
    task->raw_bytes = save->raw_bytes;
    task->shards = save->shards;
    task->parent.step = save->parent_step;
    task->parent.generation = save->parent_generation;
    return false;
}

static enum status load_decision(struct coord *coord, struct coord_job *job,
                                 struct store_task *task)
{
    task->status = ST_NOT_FOUND;
    enum status st = journal_each_save(coord->options.journal, job->id, read_decision, task);
    return st == ST_OK ? task->status : st;
}

/* ---- tasks ---- */

/* Lists the folders that a sweep leaves alone, whatever became of their manifests. */
static enum status list_kept(const struct coord_job *job, struct store_task *task)
{
    const struct fsm *m = &job->m;
    task->kept = calloc(m->catalog_count + 1, sizeof(*task->kept));
    if (task->kept == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < m->catalog_count; i++) {
        struct ckpt_folder_name *kept = &task->kept[task->kept_count++];
        *kept = (struct ckpt_folder_name){ .step = m->catalog[i].step,
                                           .generation = m->catalog[i].generation,
                                           .try_number = m->catalog[i].try_number };
    }
    return ST_OK;
}

/* Refuses a task whose store has too long a path: the job was submitted before stores had to leave
 * room for what is made in them. */
static void refuse_long(const struct coord_job *job, struct store_task *task)
{
    struct reason reason;
    reason_set(&reason,
               "checkpoint.store: its %zu bytes leave no room for the names that are made in it; "
               "submit the job with a path of %d bytes or fewer",
               strlen(job->spec->checkpoint.store), LIMIT_STORE - 1);
    task->refused = ST_TOO_LONG;
    (void)snprintf(task->message, sizeof(task->message), "%s", reason.text);
}

void coord_submit_store(struct coord *coord, struct coord_job *job, const struct fsm_action *act)
{
    struct store_task *task = store_task_new(act->task);
    if (task == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "asking the store");
        return;
    }
    (void)snprintf(task->job, sizeof(task->job), "%s", job->id);
    (void)snprintf(task->store, sizeof(task->store), "%s", job->spec->checkpoint.store);
    task->step = act->step;
    task->shard = act->shard;
    task->generation = act->generation;
    task->try_number = fsm_folder_try(&job->m, act->step, act->generation);
    (void)snprintf(task->mark, sizeof(task->mark), "%s", job->m.store_id);
    task->holds = fsm_newest(&job->m) != NULL;
    task->given_up = job->m.mark_mismatch;
    task->wall_ms = clock_wall_ms(coord->options.clock);
    coord_nonce(coord, task->nonce, sizeof(task->nonce));
    ckpt_call_name(job->m.generation, task->nonce, task->call);
    enum status st = coord_ckpt_dir(job, act->step, act->generation, task->dir, sizeof(task->dir));
    if (task->kind == FSM_TASK_FOLDER) {
        const struct fsm_save *save = fsm_find_save(&job->m, act->step, act->generation);
        task->need_bytes = fsm_expected_bytes(&job->m, save == NULL || save->base_generation == 0);
    }
    if (st == ST_OK && task->kind == FSM_TASK_SWEEP)
        st = list_kept(job, task);
    (void)snprintf(task->journal, sizeof(task->journal), "%s",
                   journal_path(coord->options.journal));
    task->ranks = job->m.size;
    if (st == ST_OK && task->kind == FSM_TASK_PUBLISH)
        st = load_decision(coord, job, task);
    if (st == ST_TOO_LONG) { /* the job's mistake, not of our records: the job hears of it */
        refuse_long(job, task);
    } else if (st != ST_OK) { /* our own records contradict each other */
        store_task_free(task);
        coord_fail(coord, st, "reading back what the store is to be asked");
        return;
    }
    job->tasks++;
    coord_post_task(coord, task);
}

/* The store's model: folders with a file per rank and a manifest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/store/task.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

static struct sim_folder *folder_of_try(struct sim *sim, uint32_t job,
                                        const struct ckpt_folder_name *name)
{
    for (size_t i = 0; i < sim->folder_count; i++) {
        struct sim_folder *folder = &sim->folders[i];
        if (folder->job == job && folder->step == name->step &&
            folder->generation == name->generation && folder->try_number == name->try_number)
            return folder;
    }
    CHECK(sim->folder_count < SIM_FOLDERS);
    struct sim_folder *folder = &sim->folders[sim->folder_count++];
    *folder = (struct sim_folder){ .job = job,
                                   .step = name->step,
                                   .generation = (uint32_t)name->generation,
                                   .try_number = name->try_number };
    return folder;
}

struct sim_folder *sim_folder_of(struct sim *sim, uint32_t job, uint64_t step, uint32_t generation)
{
    struct sim_folder *found = NULL;
    for (size_t i = sim->folder_count; i > 0; i--) { /* most are asked for soon */
        struct sim_folder *folder = &sim->folders[i - 1];
        if (folder->step != step || folder->job != job || folder->generation != generation ||
            !folder->published)
            continue;
        found = folder;
        if (folder->manifest)
            break;
    }
    if (found != NULL)
        return found;
    struct ckpt_folder_name name = { .step = step, .generation = generation };
    return folder_of_try(sim, job, &name);
}

struct sim_folder *sim_folder_at(struct sim *sim, const char *dir)
{
    const char *slash = strrchr(dir, '/');
    struct ckpt_folder_name name;
    char id[16] = "";
    if (slash == NULL || slash - dir < 12)
        return NULL;
    memcpy(id, slash - 12, 12);
    int job = sim_job_at(sim, id);
    if (job < 0 || !ckpt_folder_parse(slash + 1, &name))
        return NULL;
    return folder_of_try(sim, (uint32_t)job, &name);
}

bool sim_folder_damaged(struct sim *sim, const struct sim_folder *folder)
{
    while (!folder->damaged && folder->parent_generation > 0) {
        folder = sim_folder_of(sim, folder->job, folder->parent_step, folder->parent_generation);
        if (!folder->there || !folder->manifest)
            return true;
    }
    return folder->damaged;
}

enum status sim_folder_read(struct sim *sim, struct sim_folder *folder, uint32_t file)
{
    if (!folder->there || !folder->manifest)
        return ST_NOT_FOUND;
    if (sim_folder_damaged(sim, folder))
        return ST_CORRUPT;
    CHECK(file < folder->shards);
    folder->read_files |= 1u << file;
    folder->read_back = folder->read_back || folder->read_files == (1u << folder->shards) - 1;
    return ST_OK;
}

/* Only undamaged committed ones: the world breaks what a disk may break. */
void sim_store_damage(struct sim *sim)
{
    for (int i = 0; i < 8 && sim->folder_count > 0; i++) {
        struct sim_folder *folder = &sim->folders[sim_below(sim, sim->folder_count)];
        if (!folder->there || !folder->manifest || folder->bad || folder->damaged)
            continue;
        folder->damaged = true;
        struct sim_job *job = &sim->jobs[folder->job];
        for (size_t at = 0; at < sim->folder_count; at++) {
            const struct sim_folder *other = &sim->folders[at];
            if (other->job == folder->job && other->step == job->acked && other->manifest &&
                sim_folder_damaged(sim, other))
                job->acked = 0; /* whoever relied on it may go back */
        }
        sim_say(sim, "disk damages %s step %llu g%u", job->id, (unsigned long long)folder->step,
                folder->generation);
        return;
    }
}

/* True if the step was removed because a later one was read back, and that one, or one that it is
 * read through, was damaged afterwards. */
bool sim_store_lost(struct sim *sim, uint32_t job, uint64_t step)
{
    bool later = false;
    for (size_t i = 0; i < sim->folder_count; i++) {
        const struct sim_folder *folder = &sim->folders[i];
        if (folder->job != job || !folder->published)
            continue;
        if (folder->step == step && folder->manifest && !sim_folder_damaged(sim, folder))
            return false;
        later =
            later || (folder->step > step && folder->read_back && sim_folder_damaged(sim, folder));
    }
    return later;
}

/* The coordinator has not given that save up: its reports must be there. */
static bool is_awaited(struct sim *sim, const struct store_task *task)
{
    struct coord *coord = sim->coordinator->coord;
    struct coord_job *job = coord != NULL ? coord_loaded(coord, task->job) : NULL;
    const struct fsm_save *save =
        job != NULL ? fsm_find_save(&job->m, task->step, task->generation) : NULL;
    return save != NULL && save->state == FSM_SAVE_CHECKING && save->try_number == task->try_number;
}

static enum status run_check(struct sim *sim, struct store_task *task, struct sim_folder *folder)
{
    uint64_t state = sim_state(folder->job, folder->step);
    if (!folder->there)
        return ST_NOT_FOUND;
    enum status st = store_task_read_reports(task);
    if (st == ST_INCOMPLETE && !is_awaited(sim, task))
        return st; /* it was dropped meanwhile */
    if (st != ST_OK)
        sim_fail(sim, "reports can't be read");
    for (uint32_t i = 0; i < task->report_count; i++) {
        const struct ckpt_report *report = &task->reports[i];
        if (report->rank >= SIM_RANKS || folder->file[report->rank] == 0)
            return ST_INCOMPLETE;
        if (report->size != folder->file[report->rank] % 100000)
            return ST_INCOMPLETE;
        if (report->generation != task->generation || report->step != task->step)
            sim_fail(sim, "a report of another save is checked");
        if (folder->file[report->rank] != sim_part(state, report->rank))
            sim_fail(sim, "a file of another state lies in the folder");
        task->bytes += report->size;
    }
    state ^= sim_audit_blend(folder->taint, task->report_count);
    task->shards = task->report_count;
    task->parent = task->reports[0].parent;
    folder->parent_step = task->parent.step;
    folder->parent_generation = (uint32_t)task->parent.generation;
    (void)snprintf(task->digest, sizeof(task->digest), "%032llx", (unsigned long long)state);
    return buf_printf(&task->manifest, "%s %lld", task->digest, (long long)task->wall_ms);
}

/* Checks that only one try of a step and generation is published. */
static void check_other_tries(struct sim *sim, const struct sim_folder *published)
{
    for (size_t i = 0; i < sim->folder_count; i++) {
        const struct sim_folder *other = &sim->folders[i];
        if (other != published && other->job == published->job && other->step == published->step &&
            other->generation == published->generation && other->manifest)
            sim_fail(sim, "two tries of step %llu of job %u are published",
                     (unsigned long long)other->step, other->job);
    }
}

static enum status run_publish(struct sim *sim, struct store_task *task, struct sim_folder *folder)
{
    unsigned long long digest;
    if (!folder->there)
        sim_fail(sim, "the folder of a decided checkpoint is gone: %s", task->dir);
    CHECK(task->manifest.size > 0);
    CHECK(sscanf(task->manifest.data, "%llx", &digest) == 1);
    if (folder->manifest && folder->digest != digest)
        sim_fail(sim, "two manifests for %s", task->dir);
    const uint64_t taint = sim_audit_blend(folder->taint, task->shards);
    if (digest != (sim_state(folder->job, folder->step) ^ taint))
        sim_fail(sim, "a commit of another state: %s", task->dir);
    check_other_tries(sim, folder);
    if (folder->parent_generation > 0) {
        const struct sim_folder *parent =
            sim_folder_of(sim, folder->job, folder->parent_step, folder->parent_generation);
        if (!parent->manifest && !parent->bad)
            sim_fail(sim, "%s is published, the one that it is read through is gone", task->dir);
    }
    if (!folder->manifest)
        sim->commits++;
    sim->jobs[folder->job].saved_at = sim->now;
    folder->manifest = true;
    folder->published = true;
    folder->shards = task->shards;
    folder->digest = digest;
    return ST_OK;
}

/* Audits found wrong what came last, and it may be of that. Also if only the coordinator has seen
 * it so far: it began with that. */
static bool is_distrusted(const struct sim *sim, const struct sim_folder *folder)
{
    const struct sim_job *known = &sim->jobs[folder->job];
    struct coord *coord = sim->coordinator->coord;
    const struct coord_job *of = coord != NULL ? coord_loaded(coord, known->id) : NULL;
    return folder->generation <= known->distrusted ||
           (of != NULL && folder->generation <= of->m.audit.generation &&
            folder->step > of->m.audit.good_step);
}

/* True if the folder is of a step after the last one that audits trust: nobody reads it any
 * more. */
static bool is_of_after(const struct sim *sim, const struct sim_folder *folder)
{
    const struct sim_job *known = &sim->jobs[folder->job];
    return folder->generation <= known->distrusted && folder->step > known->good_step;
}

/* A checkpoint goes only after a newer one was read back, not while another one is read through
 * it, and not if it is one of those that the job keeps. One whose own files are damaged, or those
 * that it is read through, is read by nobody any more: it is set aside, and may stay where it is if
 * the store hangs in that. Nor is one that audits found wrong. All of it counts when the store is
 * first asked: whatever is found damaged afterwards, a call that hangs may still remove it. */
static void check_removal(struct sim *sim, struct sim_folder *gone)
{
    bool read_back = false, best = true;
    uint32_t newer = 0;
    if (!gone->manifest || gone->removing || is_of_after(sim, gone))
        return;
    gone->removing = true;
    for (size_t i = 0; i < sim->folder_count; i++) {
        const struct sim_folder *other = &sim->folders[i];
        if (other->job != gone->job || other == gone || !(other->manifest || other->bad))
            continue;
        newer += other->step > gone->step;
        best = best && sim_loss(other->step) > sim_loss(gone->step);
        read_back = read_back || (other->step > gone->step && other->read_back && other->manifest);
        if (other->manifest && !sim_folder_damaged(sim, other) && other->parent_generation > 0 &&
            other->parent_generation == gone->generation && other->parent_step == gone->step)
            sim_fail(sim, "step %llu of job %u is removed, step %llu is read through it",
                     (unsigned long long)gone->step, gone->job, (unsigned long long)other->step);
    }
    if (!read_back)
        sim_fail(sim, "step %llu of job %u is removed and no newer one was read back",
                 (unsigned long long)gone->step, gone->job);
    /* One fewer of the last ones may be kept if the store had no room. */
    if (newer < SIM_KEEP_LAST - 1 || gone->step % SIM_KEEP_EVERY == 0 || best)
        sim_fail(sim, "step %llu of job %u is removed: %u newer ones, %s best",
                 (unsigned long long)gone->step, gone->job, newer, best ? "the" : "not the");
}

static bool is_kept(const struct store_task *task, const struct sim_folder *folder)
{
    for (uint32_t i = 0; i < task->kept_count; i++)
        if (task->kept[i].step == folder->step && task->kept[i].generation == folder->generation &&
            task->kept[i].try_number == folder->try_number)
            return true;
    return false;
}

/* Whether one of them is still to be published shows when it is (run_publish). */
static enum status run_sweep(struct sim *sim, struct store_task *task)
{
    int job = sim_job_at(sim, task->job);
    CHECK(job >= 0);
    for (size_t i = 0; i < sim->folder_count; i++) {
        struct sim_folder *folder = &sim->folders[i];
        if (folder->job != (uint32_t)job || !folder->there || folder->manifest || folder->bad ||
            folder->generation >= task->generation || is_kept(task, folder))
            continue;
        folder->there = false;
        memset(folder->file, 0, sizeof(folder->file));
        task->swept++;
        sim->swept++;
    }
    return ST_OK;
}

static void remove_folder(struct sim_folder *folder)
{
    folder->manifest = false;
    folder->there = false;
    memset(folder->file, 0, sizeof(folder->file));
}

void sim_store_run(struct sim *sim, struct store_task *task)
{
    bool all = task->kind == FSM_TASK_PROBE || task->kind == FSM_TASK_SWEEP;
    struct sim_folder *folder = all ? NULL : sim_folder_at(sim, task->dir);
    CHECK(folder != NULL || all);
    bool full = sim->store_full;
    switch (task->kind) {
    case FSM_TASK_PROBE:
        task->status = full ? ST_FULL : ST_OK;
        break;
    case FSM_TASK_FOLDER:
        task->status = full ? ST_FULL : folder->manifest ? ST_EXISTS : ST_OK;
        if (task->status == ST_OK) {
            memset(folder->file, 0, sizeof(folder->file));
            folder->there = true;
            folder->parent_generation = 0;
        }
        break;
    case FSM_TASK_CHECK:
        task->status = run_check(sim, task, folder);
        break;
    case FSM_TASK_PUBLISH:
        task->status = full ? ST_FULL : run_publish(sim, task, folder);
        break;
    case FSM_TASK_DROP:
        if (folder->manifest)
            sim_fail(sim, "the folder of a checkpoint is dropped: %s", task->dir);
        remove_folder(folder);
        task->status = ST_OK;
        break;
    case FSM_TASK_REMOVE:
        check_removal(sim, folder);
        remove_folder(folder);
        task->status = ST_OK;
        break;
    case FSM_TASK_VERIFY:
        if (task->shard > 0) {
            task->status = sim_folder_read(sim, folder, task->shard - 1);
            break;
        }
        task->status = !folder->there || !folder->manifest ? ST_NOT_FOUND
                       : sim_folder_damaged(sim, folder)   ? ST_CORRUPT
                                                           : ST_OK;
        folder->read_back = folder->read_back || task->status == ST_OK;
        break;
    case FSM_TASK_SWEEP:
        task->status = run_sweep(sim, task);
        break;
    case FSM_TASK_QUARANTINE:
        if (!sim_folder_damaged(sim, folder) && !is_distrusted(sim, folder))
            sim_fail(sim, "a good checkpoint is set aside: %s", task->dir);
        folder->bad = true;
        folder->there = false;
        folder->manifest = false;
        task->status = ST_OK;
        break;
    }
    (void)snprintf(task->message, sizeof(task->message), "%s", status_string(task->status));
}

/* ---- late ---- */

/* task->status: whether it goes on to change something. */
void sim_store_begin(struct sim *sim, struct store_task *task)
{
    bool all = task->kind == FSM_TASK_PROBE || task->kind == FSM_TASK_SWEEP;
    struct sim_folder *folder = all ? NULL : sim_folder_at(sim, task->dir);
    CHECK(folder != NULL || all);
    switch (task->kind) {
    case FSM_TASK_FOLDER:
        task->status = sim->store_full ? ST_FULL : folder->manifest ? ST_EXISTS : ST_OK;
        break;
    case FSM_TASK_PUBLISH:
        task->status = sim->store_full ? ST_FULL : ST_OK;
        break;
    case FSM_TASK_DROP:
        task->status = folder->manifest ? ST_EXISTS : ST_OK;
        break;
    case FSM_TASK_REMOVE:
        check_removal(sim, folder);
        task->status = ST_OK;
        break;
    case FSM_TASK_QUARANTINE:
        task->status =
            folder->there && (sim_folder_damaged(sim, folder) || is_distrusted(sim, folder))
                ? ST_OK
                : ST_NOT_FOUND;
        break;
    case FSM_TASK_SWEEP:
        task->status = ST_OK;
        break;
    case FSM_TASK_PROBE:
    case FSM_TASK_CHECK:
    case FSM_TASK_VERIFY:
        task->status = ST_INVALID;
        break;
    }
}

void sim_store_late(struct sim *sim, struct store_task *task)
{
    if (task->status != ST_OK)
        return;
    sim_say(sim, "%s: a late call comes: task %d of %s", task->job, (int)task->kind, task->dir);
    if (task->kind == FSM_TASK_SWEEP) {
        CHECK(run_sweep(sim, task) == ST_OK);
        return;
    }
    struct sim_folder *folder = sim_folder_at(sim, task->dir);
    CHECK(folder != NULL);
    switch (task->kind) {
    case FSM_TASK_FOLDER:
        memset(folder->file, 0, sizeof(folder->file));
        folder->late = folder->late || !folder->there;
        folder->there = true;
        folder->parent_generation = 0;
        break;
    case FSM_TASK_PUBLISH:
        if (folder->there)
            (void)run_publish(sim, task, folder);
        break;
    case FSM_TASK_DROP:
    case FSM_TASK_REMOVE:
        remove_folder(folder);
        break;
    case FSM_TASK_QUARANTINE:
        folder->bad = folder->bad || folder->there;
        folder->there = false;
        folder->manifest = false;
        break;
    case FSM_TASK_SWEEP:
    case FSM_TASK_PROBE:
    case FSM_TASK_CHECK:
    case FSM_TASK_VERIFY:
        break;
    }
}

void sim_store_check(struct sim *sim, const struct sim_folder *folder)
{
    const struct sim_job *job = &sim->jobs[folder->job];
    uint64_t state = sim_state(folder->job, folder->step);
    for (uint32_t i = 0; i < folder->shards; i++) {
        if (folder->file[i] != sim_part(state, i))
            sim_fail(sim, "%s: the checkpoint of step %llu g%u has lost the file of rank %u",
                     job->id, (unsigned long long)folder->step, folder->generation, i);
    }
}

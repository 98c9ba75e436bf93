/*
 * One job as its folder has it.
 *
 *     names        ─▶ the highest generation there was          ckpt_used_generation_max
 *     manifests    ─▶ checkpoints whose files are all there      [take_ckpts]
 *     the newest   ─▶ job file, pins, steps left out, epoch      [take_newest]
 *     all of these ─▶ the state machine, PAUSED or SUCCEEDED     [take_state]
 *
 * What is bad stays bad, and is passed by; what can't be read now ends all.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/findings.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/each_file.h"
#include "checkpoint/store/store.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "server/rebuild/internal.h"

#define TEXT_BYTES  ((size_t)LIMIT_JOB_FILE_BYTES)
#define ID_EPOCH_MS 1704067200000 /* 2024-01-01: an id has the ms since then, and 9 more bits */

struct reading {
    const struct io *io;
    struct rebuild_job *job;
    struct reason *reason;
    int64_t find_until;         /* names that another machine made are looked for */
    struct ckpt_scalars newest; /* of the newest checkpoint; its list isn't kept */
    struct jobspec *spec;
};

/* The bytes can't be used, or aren't there, and that won't change. */
static bool is_bad(enum status st)
{
    return ckpt_is_finding(st) || st == ST_NOT_FOUND || st == ST_INVALID;
}

/* Says that the path can't be read now. */
static enum status say_away(struct reading *r, const char *path, enum status st)
{
    struct reason why = { "" };
    io_explain(r->io, st, &why);
    reason_set(r->reason, "%.200s can't be read: %.250s", path, why.text);
    return st;
}

static void pass_by(struct reading *r, uint64_t step, uint64_t generation, const char *why)
{
    struct rebuild_job *job = r->job;
    job->passed++;
    reason_set(&job->passed_why, "step %llu of attempt %llu: %s", (unsigned long long)step,
               (unsigned long long)generation, why);
}

/* ---- checkpoints ---- */

struct files {
    struct reading *r;
    const char *dir;
    const struct ckpt_manifest *manifest;
    atomic_uint bad; /* 1 + a file that isn't as it should be */
};

/* A ckpt_file_fn. */
static enum status check_file(void *arg, uint32_t item)
{
    struct files *files = arg;
    const struct ckpt_file *file = &files->manifest->files[item];
    char path[LIMIT_PATH];
    struct io_stat info;
    enum status st = ckpt_path(files->dir, file->name, path);
    if (st == ST_OK)
        st = io_find(files->r->io, path, file->size, files->r->find_until, &info);
    if (st == ST_NOT_FOUND || (st == ST_OK && (info.is_dir || info.size != file->size))) {
        atomic_store(&files->bad, item + 1);
        return ST_INCOMPLETE;
    }
    return st;
}

/* Returns a manifest's time in ms, whose fractions don't count. 0: it says none. */
static int64_t wall_of(const char *created_at)
{
    struct tm tm = { 0 };
    if (strptime(created_at, "%Y-%m-%dT%H:%M:%S", &tm) == NULL)
        return 0;
    const time_t time = timegm(&tm);
    return time > 0 ? (int64_t)time * 1000 : 0;
}

static struct fsm_ckpt describe(const struct ckpt_entry *entry,
                                const struct ckpt_manifest *manifest)
{
    const double unknown = __builtin_nan("");
    struct fsm_ckpt ckpt = { .step = entry->step,
                             .generation = (uint32_t)entry->generation,
                             .try_number = entry->try_number,
                             .shards = manifest->file_count,
                             .state = FSM_CKPT_GOOD,
                             .raw_bytes = manifest->raw_bytes,
                             .wall_ms = wall_of(manifest->created_at),
                             .parent_step = manifest->parent.step,
                             .parent_generation = (uint32_t)manifest->parent.generation,
                             .loss = unknown,
                             .eval_loss = unknown,
                             .eval_accuracy = unknown };
    for (uint32_t i = 0; i < manifest->file_count; i++)
        ckpt.bytes += manifest->files[i].size;
    ckpt_hash_text(&manifest->digest, ckpt.digest);
    return ckpt;
}

/* Older ones were looked at before: what this one is a difference to is among them. */
static enum status check_ckpt(struct reading *r, const struct ckpt_entry *entry,
                              const struct ckpt_manifest *manifest, struct reason *why)
{
    const struct fsm *m = &r->job->m;
    struct files files = { .r = r, .dir = entry->dir, .manifest = manifest };
    enum status st = ckpt_each_file(manifest->file_count, check_file, &files);
    const uint32_t bad = atomic_load(&files.bad);
    if (st == ST_INCOMPLETE && bad > 0) {
        reason_set(why, "%s is missing or of another size", manifest->files[bad - 1].name);
        return st;
    }
    if (st != ST_OK)
        return say_away(r, entry->dir, st);
    const struct ckpt_parent *parent = &manifest->parent;
    if (parent->generation > UINT32_MAX ||
        (parent->generation > 0 &&
         fsm_find_ckpt(m, parent->step, (uint32_t)parent->generation) == NULL)) {
        reason_set(why, "it is a difference to step %llu of attempt %llu, which is missing",
                   (unsigned long long)parent->step, (unsigned long long)parent->generation);
        return ST_INCOMPLETE;
    }
    if (fsm_find_ckpt(m, entry->step, (uint32_t)entry->generation) != NULL) {
        reason_set(why, "there are two of it");
        return ST_INCOMPLETE;
    }
    return ST_OK;
}

static enum status take_ckpt(struct reading *r, const struct ckpt_entry *entry)
{
    struct ckpt_manifest manifest;
    struct reason why = { "" };
    enum status st = ckpt_manifest_read(r->io, entry->dir, &manifest, &why);
    if (is_bad(st)) {
        pass_by(r, entry->step, entry->generation, why.text[0] ? why.text : status_string(st));
        return ST_OK;
    }
    if (st != ST_OK)
        return say_away(r, entry->dir, st);
    st = check_ckpt(r, entry, &manifest, &why);
    if (st == ST_OK) {
        const struct fsm_ckpt ckpt = describe(entry, &manifest);
        st = fsm_add_ckpt(&r->job->m, &ckpt);
    } else if (st == ST_INCOMPLETE) {
        pass_by(r, entry->step, entry->generation, why.text);
        st = ST_OK;
    }
    ckpt_manifest_release(&manifest);
    return st;
}

/* The oldest first. */
static enum status take_ckpts(struct reading *r)
{
    const struct rebuild_found *found = r->job->found;
    auto_free struct ckpt_entry *entries = NULL;
    size_t count = 0;
    enum status st = ckpt_list(r->io, found->store, found->id, &entries, &count);
    if (st != ST_OK)
        return say_away(r, found->store, st);
    for (size_t i = count; st == ST_OK && i > 0; i--) {
        const struct ckpt_entry *entry = &entries[i - 1];
        if (entry->quarantined || entry->manifest == ST_NOT_FOUND || entry->generation > UINT32_MAX)
            continue; /* set aside, or never finished, or nobody's */
        if (entry->manifest != ST_OK && !is_bad(entry->manifest))
            return say_away(r, entry->dir, entry->manifest);
        if (entry->committed) {
            st = take_ckpt(r, entry);
        } else {
            pass_by(r, entry->step, entry->generation,
                    entry->manifest == ST_VERSION ? "another version wrote it"
                                                  : "its manifest is damaged, or another's");
        }
    }
    return st;
}

/* ---- the newest ---- */

static enum status take_blobs(struct reading *r, struct ckpt_reader *reader)
{
    struct rebuild_job *job = r->job;
    size_t size = 0;
    enum status st = ckpt_read_blob(reader, "job.yaml", &job->job_file, &size);
    if (st == ST_OK && strlen(job->job_file) != size)
        st = ST_CORRUPT;
    if (st == ST_OK)
        st = ckpt_read_blob(reader, "pins.json", &job->pins, &size);
    if (st == ST_NOT_FOUND && job->job_file != NULL) {
        job->pins = strdup(""); /* the checkpoint is of before there were pins */
        st = job->pins != NULL ? ST_OK : ST_NO_MEMORY;
    }
    if (st != ST_OK)
        return st;
    struct fsm *m = &job->m;
    const uint64_t *skip;
    uint64_t count;
    r->newest = *ckpt_reader_scalars(reader);
    (void)ckpt_skips_older(&r->newest, &skip, &count);
    m->numeric.skip_count = 0;
    for (uint64_t i = 0; i < count && i < FSM_SKIPS_MAX; i++)
        m->numeric.skip[m->numeric.skip_count++] = skip[i];
    r->newest.skip = NULL;
    return ST_OK;
}

/* A ckpt_finding_fn: the first. */
static void take_finding(void *arg, const char *line)
{
    struct reason *why = arg;
    if (why->text[0] == '\0')
        reason_set(why, "%s", line);
}

/* Takes the newest checkpoint that opens; those newer than it are bad. */
static enum status take_newest(struct reading *r)
{
    const struct rebuild_found *found = r->job->found;
    struct fsm *m = &r->job->m;
    while (m->catalog_count > 0) {
        const struct fsm_ckpt *ckpt = &m->catalog[m->catalog_count - 1];
        char dir[LIMIT_PATH];
        struct ckpt_reader *reader = NULL;
        struct reason why = { "" };
        enum status st = ckpt_folder_path(found->store, found->id, ckpt->step, ckpt->generation,
                                          ckpt->try_number, dir, sizeof(dir));
        if (st == ST_OK)
            st = ckpt_open(r->io, dir, take_finding, &why, &reader);
        if (st == ST_OK) {
            st = take_blobs(r, reader);
            ckpt_close(reader);
        }
        if (st == ST_OK)
            return ST_OK;
        free(r->job->job_file);
        r->job->job_file = NULL;
        if (!is_bad(st))
            return say_away(r, dir, st);
        pass_by(r, ckpt->step, ckpt->generation,
                why.text[0] ? why.text : "the job file in it can't be read");
        m->catalog_count--;
    }
    reason_set(&r->job->left, "%s%s%s",
               r->job->passed > 0 ? "none of its checkpoints can be used: " : "no checkpoint",
               r->job->passed_why.text,
               r->job->passed > 0 ? "" : " was ever finished there: submit the job again");
    return ST_OK;
}

/* ---- the job file ---- */

static bool same_folder(const char *a, const char *b)
{
    if (strcmp(a, b) == 0)
        return true;
    if (ckpt_store_is_object(a) || ckpt_store_is_object(b))
        return false;
    auto_free char *real = realpath(a, NULL);
    return real != NULL && strcmp(real, b) == 0;
}

/* Has the job go on saving where its checkpoints were found. */
static enum status move_store(struct reading *r)
{
    struct rebuild_job *job = r->job;
    char *store = r->spec->checkpoint.store;
    const size_t end = strlen(store);
    if (end > 1 && store[end - 1] == '/')
        store[end - 1] = '\0';
    if (same_folder(store, job->found->store))
        return ST_OK;
    (void)snprintf(job->store_before, sizeof(job->store_before), "%s", store);
    (void)snprintf(store, sizeof(r->spec->checkpoint.store), "%s", job->found->store);
    struct buf text;
    buf_init(&text, TEXT_BYTES);
    enum status st = jobspec_print(r->spec, &text);
    char *file = st == ST_OK ? buf_take(&text, NULL) : NULL;
    buf_release(&text);
    if (file == NULL)
        return st == ST_OK ? ST_NO_MEMORY : st;
    free(job->job_file);
    job->job_file = file;
    return ST_OK;
}

static enum status take_file(struct reading *r)
{
    struct rebuild_job *job = r->job;
    auto_buf struct buf errors;
    buf_init(&errors, TEXT_BYTES);
    enum status st = jobspec_parse(job->job_file, strlen(job->job_file), "its job file", "/", NULL,
                                   0, r->spec, &errors);
    if (st == ST_CONFIG || st == ST_INVALID) {
        const char *text = errors.size > 0 ? errors.data : "its job file can't be read";
        reason_set(&job->left, "%.*s (as version %s reads it)", (int)strcspn(text, "\n"), text,
                   CAIRN_VERSION);
        return ST_OK;
    }
    if (st != ST_OK)
        return st;
    (void)snprintf(job->name, sizeof(job->name), "%s", r->spec->name);
    /* Then most of the list are steps that the scaler left out. They aren't the coordinator's to
     * count, or to order: computed again without the scale's change another step would overflow. */
    if (jobspec_scale_is_dynamic(r->spec))
        job->m.numeric.skip_count = 0;
    return move_store(r);
}

/* ---- the state ---- */

/* Counts the job's steps as the checkpoint tells them: epochs have no length before the first is
 * over. */
static void count_steps(const struct reading *r, uint64_t *total, uint64_t *per_epoch)
{
    const struct ckpt_scalars *at = &r->newest;
    const struct jobspec_duration *duration = &r->spec->train.duration;
    double steps = 0;
    *per_epoch =
        at->epoch > 0 && at->step > at->epoch_step ? (at->step - at->epoch_step) / at->epoch : 0;
    switch (duration->unit) {
    case JOBSPEC_STEPS:
        steps = duration->value;
        break;
    case JOBSPEC_EPOCHS:
        steps = duration->value * (double)*per_epoch;
        break;
    case JOBSPEC_MS: /* when that was over isn't in a checkpoint */
    case JOBSPEC_AUTO:
        break;
    }
    *total = steps > 0 && steps <= 1e15 ? (uint64_t)steps : 0;
    if (*total == 0 && steps > 0)
        *total = 1;
}

/* Sets the job's times. A job is held to its pins by having started. */
static void take_walls(struct fsm *m, int64_t seq, bool pinned)
{
    m->submitted_wall = (seq >> 9) + ID_EPOCH_MS;
    m->started_wall = pinned ? m->submitted_wall : 0;
    for (size_t i = 0; i < m->catalog_count; i++) {
        const int64_t wall = m->catalog[i].wall_ms;
        m->due.saved_wall = wall > m->due.saved_wall ? wall : m->due.saved_wall;
    }
}

static enum status take_state(struct reading *r, uint32_t used)
{
    struct rebuild_job *job = r->job;
    struct fsm *m = &job->m;
    const struct fsm_ckpt *newest = fsm_newest(m);
    uint64_t total, per_epoch;
    count_steps(r, &total, &per_epoch);
    take_walls(m, job->found->seq, job->pins[0] != '\0');
    m->step_max = newest->step;
    m->config.ranks = (uint32_t)r->spec->workers.count; /* the machine was made with one */
    const bool over = total > 0 && newest->step >= total;
    if (over || per_epoch > 0) { /* else the workers say it; half of that would contradict them */
        m->total_steps = total;
        m->steps_per_epoch = per_epoch;
    }
    enum status st = ckpt_store_id_read(r->io, job->found->store, job->found->id, m->store_id);
    if (st == ST_NOT_FOUND || st == ST_CORRUPT) {
        m->store_id[0] = '\0'; /* the next probe makes or refuses it */
    } else if (st != ST_OK) {
        return say_away(r, job->found->store, st);
    }
    if (over) {
        m->state = FSM_SUCCEEDED;
        m->generation = used;
        m->ended_wall = newest->wall_ms;
        memcpy(m->final_digest, newest->digest, sizeof(m->final_digest));
        return ST_OK;
    }
    m->state = FSM_PAUSED;
    m->generation = used + FSM_RESTORE_GAP;
    m->restore.memory_from = m->generation;
    (void)snprintf(m->reason, sizeof(m->reason),
                   "the journal was lost, and this job made anew from its checkpoints: 'cairn "
                   "resume' goes on from step %llu",
                   (unsigned long long)newest->step);
    st = ckpt_used_generation_write(r->io, job->found->store, job->found->id, m->generation);
    if (st != ST_OK) {
        struct reason why = { "" };
        io_explain(r->io, st, &why);
        reason_set(&job->left, "its folder must be writable, to note which attempts there were: %s",
                   why.text);
    }
    return ST_OK;
}

enum status rebuild_read(const struct io *io, const struct rebuild_found *found, int64_t wall_ms,
                         struct rebuild_job *out, struct reason *reason)
{
    const struct fsm_config config = { .ranks = 1 };
    uint64_t used = 0;
    *out = (struct rebuild_job){ .found = found };
    auto_free struct jobspec *spec = calloc(1, sizeof(*spec));
    if (spec == NULL)
        return ST_NO_MEMORY;
    struct reading r = {
        .io = io, .job = out, .reason = reason, .find_until = io_find_until(), .spec = spec
    };
    enum status st = fsm_init(&out->m, found->id, &config, 0, wall_ms);
    if (st == ST_OK) {
        st = ckpt_used_generation_max(io, found->store, found->id, &used);
        if (st != ST_OK)
            return say_away(&r, found->store, st);
    }
    if (st == ST_OK && used > UINT32_MAX - 2 * (uint64_t)FSM_RESTORE_GAP) {
        reason_set(&out->left,
                   "a name in its folder speaks of attempt %llu, and no higher number "
                   "is left",
                   (unsigned long long)used);
        return ST_OK;
    }
    if (st == ST_OK)
        st = take_ckpts(&r);
    if (st == ST_OK)
        st = take_newest(&r);
    if (st == ST_OK && out->left.text[0] == '\0')
        st = take_file(&r);
    if (st == ST_OK && out->left.text[0] == '\0')
        st = take_state(&r, (uint32_t)used);
    return st;
}

void rebuild_job_release(struct rebuild_job *job)
{
    free(job->job_file);
    free(job->pins);
    fsm_release(&job->m);
    *job = (struct rebuild_job){ 0 };
}

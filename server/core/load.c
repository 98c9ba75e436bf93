/* The journal read at the start, and what it says resumed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

/* The number of newest rows that tell the pace (server/pace/pace.h). Of a job that goes on, all
 * that may count are read; of one that has ended, those that its last pace is told by. */
#define ROWS_LIVE 1000
#define ROWS_OVER (2 * PACE_WINDOW)

struct load {
    struct core *core;
    struct core_job *job;
    enum status status;
};

static void say_loading(const struct core *core)
{
    if (core->options.loading)
        core->options.loading(core->options.loading_arg);
}

/* Says the first line of what the parser has to say. */
static void say_unparsed(const struct buf *errors, struct reason *out)
{
    const char *text = errors->size > 0 ? errors->data : "";
    reason_set(out, "its job file: %.*s", (int)strcspn(text, "\n"), text);
}

/* Parses the normalised job file to the same job. ST_CONFIG: it doesn't parse any more. */
static enum status parse_spec(const char *id, const char *text, struct job **out,
                              struct reason *reason)
{
    struct job *spec = calloc(1, sizeof *spec);
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)LIMIT_JOB_FILE_BYTES);
    enum status st =
        spec ? job_parse(text, strlen(text), id, "/", NULL, 0, spec, &errors) : ST_NO_MEMORY;
    if (st == ST_OK) {
        *out = spec;
        return ST_OK;
    }
    free(spec);
    say_unparsed(&errors, reason);
    return st;
}

static bool load_rank(void *arg, uint32_t rank, const struct machine_rank_row *row)
{
    struct load *load = arg;
    if (rank >= machine_capacity(&load->job->m)) {
        load->status = ST_CORRUPT;
        return false;
    }
    machine_load_rank(&load->job->m, rank, row);
    load->job->recorded_ranks[rank] = *row;
    return true;
}

static enum status read_state(struct core *core, struct core_job *job, const char *text)
{
    struct load load = { .core = core, .job = job, .status = ST_OK };
    enum status st = machine_decode(&job->m, text);
    if (st == ST_OK)
        st = journal_each_rank(core->options.journal, job->id, load_rank, &load);
    return st == ST_OK ? load.status : st;
}

static enum status read_job(struct core *core, const struct journal_job *row, struct core_job **out,
                            struct reason *reason)
{
    struct job *spec = NULL;
    enum status st = parse_spec(row->id, row->job_file, &spec, reason);
    if (st != ST_OK)
        return st;
    st = core_job_new(core, row, spec, out);
    if (st != ST_OK)
        return st;
    st = read_state(core, *out, row->state);
    if (st != ST_OK) {
        core_job_free(*out);
        reason_set(reason, "its state in the journal (%s)", status_string(st));
    }
    return st;
}

/* Makes a job whose file says nothing, with so many ranks. */
static enum status make_unread(struct core *core, const struct journal_job *row, size_t ranks,
                               struct core_job **out)
{
    struct job *spec = calloc(1, sizeof *spec);
    if (!spec)
        return ST_NO_MEMORY;
    spec->workers.count = (int64_t)ranks;
    return core_job_new(core, row, spec, out);
}

static bool count_rank(void *arg, uint32_t rank, const struct machine_rank_row *row)
{
    size_t *count = arg;
    (void)row;
    *count = (size_t)rank + 1;
    return true;
}

/* Counts a job's ranks as far as the journal has them, in rows and in the state, which may have
 * places that nobody ever had. It returns 0 if none had a place, or it isn't known any more. */
static size_t count_ranks(struct core *core, const struct journal_job *row)
{
    size_t count = 0;
    if (journal_each_rank(core->options.journal, row->id, count_rank, &count) != ST_OK)
        return 0;
    const size_t encoded = machine_encoded_ranks(row->state);
    return count > encoded ? count : encoded;
}

/* Makes what is known of a job without its file: its row and, if the state can be read, who runs
 * where. Without that, nobody is known to hold a slot. */
static enum status keep_job(struct core *core, const struct journal_job *row,
                            const struct reason *why, struct core_job **out)
{
    const size_t counted = count_ranks(core, row), ranks = counted > 0 ? counted : 1;
    enum status st = ST_CORRUPT;
    if (ranks <= LIMIT_RANKS) {
        st = make_unread(core, row, ranks, out);
        if (st != ST_OK)
            return st;
        st = read_state(core, *out, row->state);
        if (st != ST_OK)
            core_job_free(*out); /* half of it was filled in */
    }
    if (st != ST_OK)
        st = make_unread(core, row, 1, out);
    if (st != ST_OK)
        return st;
    struct reason reason;
    reason_set(&reason,
               "version %s can't read %s. It is kept as it is: start a version that can, or "
               "'cairn kill' it",
               CAIRN_VERSION, why->text);
    (void)snprintf((*out)->unreadable, sizeof(*out)->unreadable, "%s", reason.text);
    LOG_ERROR(core->options.log, "%s: %s", row->id, (*out)->unreadable);
    return ST_OK;
}

static bool load_job(void *arg, const struct journal_job *row)
{
    struct load *load = arg;
    struct core_job *job;
    struct reason reason = { "" };
    load->status = read_job(load->core, row, &job, &reason);
    if (load->status == ST_CONFIG || load->status == ST_CORRUPT || load->status == ST_INVALID)
        load->status = keep_job(load->core, row, &reason, &job);
    if (load->status == ST_OK) {
        job->ended = row->ended;
        /* Retention may not have been through with it. */
        job->m.read_back.due = row->ended == JOURNAL_LEFT;
        load->status = core_add_job(load->core, job);
        if (load->status != ST_OK)
            core_job_free(job);
    }
    say_loading(load->core);
    return load->status == ST_OK;
}

static bool load_ckpt(void *arg, const struct machine_ckpt *ckpt)
{
    struct load *load = arg;
    load->status = machine_add_ckpt(&load->job->m, ckpt);
    return load->status == ST_OK;
}

static bool load_save(void *arg, const struct journal_save *row)
{
    struct load *load = arg;
    struct machine_save save = { .state = (enum machine_save_state)row->state,
                                 .step = row->step,
                                 .generation = row->generation,
                                 .retry = row->retry,
                                 .base_step = row->base_step,
                                 .base_generation = row->base_generation };
    machine_load_save(&load->job->m, &save);
    return true;
}

struct load_reports {
    struct machine *m;
    uint64_t step;
    uint32_t generation;
};

static bool load_report(void *arg, uint32_t rank, const void *report, size_t size)
{
    struct load_reports *load = arg;
    (void)report;
    (void)size;
    machine_load_report(load->m, load->step, load->generation, rank);
    return true;
}

/* The newest row tells loss and pace until the next one comes. */
static bool load_metric(void *arg, uint64_t step, const void *data, size_t size)
{
    struct core_job *job = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (!row)
        return true;
    core_show_row(job, step, row);
    cairn__v1__metric_row__free_unpacked(row, NULL);
    return true;
}

static enum status load_rest(struct core *core, struct core_job *job)
{
    struct journal *journal = core->options.journal;
    struct load load = { .core = core, .job = job, .status = ST_OK };
    enum status st = journal_each_ckpt(journal, job->id, load_ckpt, &load);
    if (st == ST_OK)
        st = load.status;
    if (st == ST_OK)
        st = journal_each_save(journal, job->id, load_save, &load);
    for (int i = 0; st == ST_OK && i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &job->m.saves[i];
        struct load_reports reports = { &job->m, save->step, save->generation };
        if (save->state == MACHINE_SAVE_COLLECTING || save->state == MACHINE_SAVE_COMMITTING) {
            st = journal_each_report(journal, job->id, save->step, save->generation, load_report,
                                     &reports);
        }
    }
    const uint32_t rows = machine_state_final(job->m.state) ? ROWS_OVER : ROWS_LIVE;
    uint64_t from = 0;
    if (st == ST_OK && journal_metric_back(journal, job->id, rows, &from) == ST_OK)
        st = journal_each_metric(journal, job->id, from, rows, load_metric, job);
    return st;
}

/* Nodes that jobs ran on are waited for before they are called silent. */
static void await_nodes(struct core *core, const struct core_job *job)
{
    for (uint32_t i = 0; i < job->m.count; i++) {
        const struct machine_rank *rank = &job->m.ranks[i];
        struct core_node *node =
            machine_holds_slot(&job->m, i) ? core_node_at(core, rank->node) : NULL;
        if (!node)
            continue;
        node->heard_at = core->grace_until;
        core_node_moved(core, node);
    }
}

static enum status record_restored(struct core *core, struct core_job *job)
{
    if (!job->m.dirty)
        return ST_OK;
    struct reason reason;
    reason_set(&reason,
               "the journal was restored from a backup: what happened after that was made is not "
               "known; attempts are numbered from %u on",
               job->m.generation);
    struct journal_event event = { .wall_ms = clock_wall_ms(core->options.clock),
                                   .generation = job->m.generation,
                                   .step = job->m.step_max,
                                   .kind = "restored",
                                   .message = reason.text };
    enum status st = core_record_state(core, job);
    if (st == ST_OK)
        st = journal_put_event(core->options.journal, job->id, &event);
    job->m.dirty = false;
    return st;
}

/* Called when the journal is an older one that was put in place. */
static enum status take_restored(struct core *core)
{
    LOG_WARN(core->options.log, "the journal is a backup that was put in place: attempts of before "
                                "are ended, and what they saved since is not used");
    enum status st = journal_begin(core->options.journal);
    for (size_t i = 0; st == ST_OK && i < core->job_count; i++) {
        struct core_job *job = core->jobs[i];
        job->m.dirty = false;
        machine_restored(&job->m);
        st = record_restored(core, job);
        say_loading(core);
    }
    return st == ST_OK ? journal_end_restore(core->options.journal) : st;
}

/* ---- jobs that ended ---- */

void core_drop_job(struct core *core, struct core_job *job, const char *why)
{
    core_send_over(core, job, MACHINE_ALL_RANKS, why);
    core_forget_dirty(core, job);
    core_remove_job(core, job);
    core_job_free(job);
}

/* True if nobody points at the job, and nothing of it is only in memory. */
static bool may_go(const struct core_job *job)
{
    bool used = job->ended == JOURNAL_LIVE || job->dirty || job->tasks > 0 || job->held > 0 ||
                job->rows.count > 0 || core_is_kept(job);
    for (uint32_t i = 0; !used && i < machine_capacity(&job->m); i++)
        used = job->ranks[i].conn != NULL;
    return !used;
}

bool core_retire(struct core *core, size_t room)
{
    const size_t max = core->options.ended_max ? core->options.ended_max : CORE_ENDED_MAX;
    core->retire_needed = false;
    for (;;) {
        struct core_job *oldest = NULL;
        size_t count = 0;
        for (size_t i = 0; i < core->job_count; i++) {
            struct core_job *job = core->jobs[i];
            count += job->ended != JOURNAL_LIVE;
            if (may_go(job) && (!oldest || job->used < oldest->used))
                oldest = job;
        }
        if (count + room <= max || !oldest)
            return count + room <= max;
        core_drop_job(core, oldest, "the job has ended");
    }
}

/* Reads a job that ended into memory as it is, not resumed. */
static enum status read_ended(struct core *core, const char *id, struct core_job **out)
{
    struct load load = { .core = core, .status = ST_OK };
    enum status st = journal_get_job(core->options.journal, id, load_job, &load);
    if (st == ST_OK)
        st = load.status;
    struct core_job *job = st == ST_OK ? core_job_at(core, id) : NULL;
    if (!job)
        return st == ST_OK ? ST_CORRUPT : st;
    st = load_rest(core, job);
    if (st != ST_OK) {
        core_drop_job(core, job, "the job can't be read");
        return st;
    }
    *out = job;
    return ST_OK;
}

enum status core_look(struct core *core, const char *id, core_look_fn *fn, void *arg)
{
    struct core_job *job = core_job_at(core, id);
    const bool brought = job == NULL;
    const enum status st = brought ? read_ended(core, id, &job) : ST_OK;
    if (st != ST_OK)
        return st;
    fn(arg, job);
    if (brought)
        core_drop_job(core, job, "it was only looked at");
    return ST_OK;
}

enum status core_bring(struct core *core, const char *id, struct core_job **out)
{
    (void)core_retire(core, 1); /* with all of them in use there is one more for a while */
    enum status st = read_ended(core, id, out);
    if (st != ST_OK)
        return st;
    if (!(*out)->unreadable[0] && core->failed == ST_OK)
        core_resume(core, *out);
    return core->failed;
}

enum status core_summarise(struct core *core, const char *id, struct buf *out)
{
    struct core_job *job;
    CHECK(core->options.summary && !core_job_at(core, id));
    enum status st = read_ended(core, id, &job);
    if (st != ST_OK)
        return st;
    const enum journal_ended ended = job->ended;
    st = core->options.summary(core->options.summary_arg, job, out);
    core_drop_job(core, job, "it was only looked at");
    if (st != ST_OK)
        return st;
    st = core_begin(core);
    if (st == ST_OK)
        st = journal_put_ended(core->options.journal, id, ended, out->data, out->size);
    if (st != ST_OK)
        core_fail(core, st, "journalling what lists show of a job");
    return st;
}

/* Looks at the next job that may have left something; later, if all that may be in memory are in
 * use. */
static void look_at_left(struct core *core)
{
    char id[16];
    int64_t seq = core->left_seq;
    struct core_job *job = NULL;
    core->left_at = core_now(core) + CORE_LEFT_MS;
    enum status st = journal_next_left(core->options.journal, &seq, id);
    if (st == ST_OK && !core_job_at(core, id)) {
        if (!core_retire(core, 1))
            return;
        st = core_bring(core, id, &job);
    }
    if (st == ST_OK)
        core->left_seq = seq;
    if (st == ST_NOT_FOUND) {
        core->left_at = INT64_MAX;
    } else if (st != ST_OK) {
        core_fail(core, st, "reading a job that ended");
    }
}

/* Tells of a job that ended and gave room in the journal. */
static enum status tell_tidied(struct core *core, const struct journal_tidied *done)
{
    struct core_job *job = core_job_at(core, done->id);
    struct reason reason;
    if (done->forgotten) {
        LOG_INFO(core->options.log, "%s is forgotten: the journal is as large as it may be",
                 done->id);
        core->stored--;
        if (job)
            core_drop_job(core, job, "the job was forgotten");
        return ST_OK;
    }
    reason_set(&reason,
               "%lld rows of its metrics were dropped, as the journal is as large as it "
               "may be; every few steps one is left",
               (long long)done->rows);
    LOG_INFO(core->options.log, "%s: %s", done->id, reason.text);
    if (job) {
        job->version++;
        job->rows_version++;
    }
    const struct journal_event event = { .wall_ms = clock_wall_ms(core->options.clock),
                                         .kind = "thinned",
                                         .message = reason.text };
    return journal_put_event(core->options.journal, done->id, &event);
}

static void tidy(struct core *core)
{
    struct journal_tidied done = { .more = false };
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = journal_tidy(core->options.journal, &done);
    if (st == ST_OK && done.id[0])
        st = tell_tidied(core, &done);
    core->tidy_at = done.more ? core_now(core) + CORE_TIDY_MS : INT64_MAX;
    if (st != ST_OK)
        core_fail(core, st, "deleting old rows");
}

void core_chores_tick(struct core *core)
{
    const int64_t now = core_now(core);
    if (core->failed == ST_OK && now >= core->left_at)
        look_at_left(core);
    if (core->failed == ST_OK && now >= core->tidy_at)
        tidy(core);
}

/* ---- the start ---- */

/* Takes a forgotten node, with an entry of its own, which lists show, as long as there is room for
 * one. */
static bool load_forgotten(void *arg, const char *name, int64_t time_s)
{
    struct load *load = arg;
    struct core *core = load->core;
    struct core_node *node = core_node_at(core, name);
    load->status = core_put_withdrawn(core, name, time_s);
    if (!node && core->node_count < LIMIT_NODES)
        node = core_node_make(core, name);
    if (node) {
        node->silent = true;
        core_node_moved(core, node);
    }
    return load->status == ST_OK;
}

static bool load_drain(void *arg, const char *name, const char *reason, int64_t until_ms)
{
    struct load *load = arg;
    struct core *core = load->core;
    const int64_t left = until_ms - clock_wall_ms(core->options.clock);
    struct core_node *node = core_node_at(core, name);
    if (!node)
        node = core_node_make(core, name);
    const int64_t until = core_now(core) + (left > 0 ? left : 0);
    if (node) {
        core_node_drain(core, node, reason, until_ms == 0 ? 0 : until);
    } else {
        load->status = ST_FULL;
    }
    return node != NULL;
}

/* Reads all that the journal has of nodes, or nothing is begun: half of what people withdrew or
 * keep free is worse than none. */
static enum status load_nodes(struct core *core)
{
    struct load load = { .core = core, .status = ST_OK };
    enum status st = journal_each_drain(core->options.journal, load_drain, &load);
    if (st == ST_OK && load.status == ST_OK)
        st = journal_each_forgotten_node(core->options.journal, load_forgotten, &load);
    return st == ST_OK ? load.status : st;
}

enum status core_load(struct core *core)
{
    struct load load = { .core = core, .status = ST_OK };
    enum status st = journal_each_job(core->options.journal, load_job, &load);
    if (st == ST_OK)
        st = load.status;
    for (size_t i = 0; st == ST_OK && i < core->job_count; i++) {
        st = load_rest(core, core->jobs[i]);
        say_loading(core);
    }
    int64_t seq = 0;
    if (st == ST_OK)
        st = load_nodes(core);
    if (st == ST_OK)
        st = journal_count_jobs(core->options.journal, &core->stored, &seq);
    if (seq > core->seq_last)
        core->seq_last = seq;
    if (st == ST_OK && journal_is_restored(core->options.journal))
        st = take_restored(core);
    if (st != ST_OK)
        return st;
    bool resumes = false;
    for (size_t i = 0; i < core->job_count; i++)
        resumes = resumes || !machine_state_final(core->jobs[i]->m.state);
    core->promised_at = core_now(core); /* resuming thousands takes a while: see core_wake */
    for (size_t i = 0; i < core->job_count && core->failed == ST_OK; i++) {
        if (!core->jobs[i]->unreadable[0])
            core_resume(core, core->jobs[i]);
        say_loading(core);
    }
    core->started_at = core_now(core);
    core->left_at = core->started_at + CORE_LEFT_MS;
    core->tidy_at = core->started_at + CORE_TIDY_MS;
    core->grace_until = core->started_at + CORE_GRACE_MS;
    core->expects_until = resumes ? core->grace_until : 0;
    for (size_t i = 0; i < core->job_count; i++)
        await_nodes(core, core->jobs[i]);
    core->awaits_nodes = resumes;
    return core->failed;
}

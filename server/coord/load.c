/* The journal read at the start, and what it says resumed. */
#include "server/coord/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/leaving.h"
#include "server/coord/metrics.h"
#include "server/coord/orders.h"
#include "server/coord/record.h"
#include "server/jobfsm/persist.h"

/* The number of newest rows that tell the throughput (server/throughput/throughput.h). Of a job
 * that goes on, all that may count are read; of one that has ended, those that its last
 * throughput is told by. */
#define ROWS_LIVE 1000
#define ROWS_OVER (2 * THROUGHPUT_WINDOW)

struct load {
    struct coord *coord;
    struct coord_job *job;
    enum status status;
};

static void say_loading(const struct coord *coord)
{
    if (coord->options.loading != NULL)
        coord->options.loading(coord->options.loading_arg);
}

/* Says the first line of what the parser has to say. */
static void say_unparsed(const struct buf *errors, struct reason *out)
{
    const char *text = errors->size > 0 ? errors->data : "";
    reason_set(out, "its job file: %.*s", (int)strcspn(text, "\n"), text);
}

/* Parses the normalised job file to the same job. ST_CONFIG: it doesn't parse any more. */
static enum status parse_spec(const char *id, const char *text, struct jobspec **out,
                              struct reason *reason)
{
    struct jobspec *spec = calloc(1, sizeof(*spec));
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)LIMIT_JOB_FILE_BYTES);
    enum status st = spec != NULL
                         ? jobspec_parse(text, strlen(text), id, "/", NULL, 0, spec, &errors)
                         : ST_NO_MEMORY;
    if (st == ST_OK) {
        struct jobspec *less = realloc(spec, jobspec_bytes(spec));
        *out = less != NULL ? less : spec;
        return ST_OK;
    }
    free(spec);
    say_unparsed(&errors, reason);
    return st;
}

static bool load_rank(void *arg, uint32_t rank, const struct fsm_rank_row *row)
{
    struct load *load = arg;
    if (rank >= fsm_capacity(&load->job->m)) {
        load->status = ST_CORRUPT;
        return false;
    }
    fsm_load_rank(&load->job->m, rank, row);
    load->job->recorded_ranks[rank] = *row;
    return true;
}

static enum status read_state(struct coord *coord, struct coord_job *job, const char *text)
{
    struct load load = { .coord = coord, .job = job, .status = ST_OK };
    enum status st = fsm_decode(&job->m, text);
    if (st == ST_OK)
        st = journal_each_rank(coord->options.journal, job->id, load_rank, &load);
    return st == ST_OK ? load.status : st;
}

static enum status read_job(struct coord *coord, const struct journal_job *row,
                            struct coord_job **out, struct reason *reason)
{
    struct jobspec *spec = NULL;
    enum status st = parse_spec(row->id, row->job_file, &spec, reason);
    if (st != ST_OK)
        return st;
    st = coord_job_new(coord, row, spec, out);
    if (st != ST_OK)
        return st;
    st = read_state(coord, *out, row->state);
    if (st != ST_OK) {
        coord_job_free(*out);
        reason_set(reason, "its state in the journal (%s)", status_string(st));
    }
    return st;
}

/* Makes a job whose file says nothing, with so many ranks. */
static enum status make_unread(struct coord *coord, const struct journal_job *row, size_t ranks,
                               struct coord_job **out)
{
    struct jobspec *spec = calloc(1, sizeof(*spec));
    if (spec == NULL)
        return ST_NO_MEMORY;
    spec->workers.count = (int64_t)ranks;
    return coord_job_new(coord, row, spec, out);
}

static bool count_rank(void *arg, uint32_t rank, const struct fsm_rank_row *row)
{
    size_t *count = arg;
    (void)row;
    *count = (size_t)rank + 1;
    return true;
}

/* Counts a job's ranks as far as the journal has them, in rows and in the state, which may have
 * places that nobody ever had. It returns 0 if none had a place, or it isn't known any more. */
static size_t count_ranks(struct coord *coord, const struct journal_job *row)
{
    size_t count = 0;
    if (journal_each_rank(coord->options.journal, row->id, count_rank, &count) != ST_OK)
        return 0;
    const size_t encoded = fsm_encoded_ranks(row->state);
    return count > encoded ? count : encoded;
}

/* Makes what is known of a job without its file: its row and, if the state can be read, who runs
 * where. Without that, nobody is known to hold a slot. */
static enum status keep_job(struct coord *coord, const struct journal_job *row,
                            const struct reason *why, struct coord_job **out)
{
    const size_t counted = count_ranks(coord, row), ranks = counted > 0 ? counted : 1;
    enum status st = ST_CORRUPT;
    if (ranks <= LIMIT_RANKS) {
        st = make_unread(coord, row, ranks, out);
        if (st != ST_OK)
            return st;
        st = read_state(coord, *out, row->state);
        if (st != ST_OK)
            coord_job_free(*out); /* half of it was filled in */
    }
    if (st != ST_OK)
        st = make_unread(coord, row, 1, out);
    if (st != ST_OK)
        return st;
    struct reason reason;
    reason_set(&reason,
               "version %s can't read %s. It is kept as it is: start a version that can, or "
               "'cairn kill' it",
               CAIRN_VERSION, why->text);
    (void)snprintf((*out)->unreadable, sizeof((*out)->unreadable), "%s", reason.text);
    LOG_ERROR(coord->options.log, "%s: %s", row->id, (*out)->unreadable);
    return ST_OK;
}

static bool load_job(void *arg, const struct journal_job *row)
{
    struct load *load = arg;
    struct coord_job *job;
    struct reason reason = { "" };
    load->status = read_job(load->coord, row, &job, &reason);
    if (load->status == ST_CONFIG || load->status == ST_CORRUPT || load->status == ST_INVALID)
        load->status = keep_job(load->coord, row, &reason, &job);
    if (load->status == ST_OK) {
        job->ended = row->ended;
        /* Retention may not have been through with it. */
        job->m.read_back.due = row->ended == JOURNAL_LEFT;
        load->status = coord_add_job(load->coord, job);
        if (load->status != ST_OK)
            coord_job_free(job);
    }
    say_loading(load->coord);
    return load->status == ST_OK;
}

static bool load_ckpt(void *arg, const struct fsm_ckpt *ckpt)
{
    struct load *load = arg;
    load->status = fsm_add_ckpt(&load->job->m, ckpt);
    return load->status == ST_OK;
}

static bool load_save(void *arg, const struct journal_save *row)
{
    struct load *load = arg;
    struct fsm_save save = { .state = (enum fsm_save_state)row->state,
                             .step = row->step,
                             .generation = row->generation,
                             .try_number = row->try_number,
                             .base_step = row->base_step,
                             .base_generation = row->base_generation };
    fsm_load_save(&load->job->m, &save);
    return true;
}

struct load_reports {
    struct fsm *m;
    uint64_t step;
    uint32_t generation;
};

static bool load_report(void *arg, uint32_t rank, const void *report, size_t size)
{
    struct load_reports *load = arg;
    (void)report;
    (void)size;
    fsm_load_report(load->m, load->step, load->generation, rank);
    return true;
}

/* The newest row tells loss and throughput until the next one comes. */
static bool load_metric(void *arg, uint64_t step, const void *data, size_t size)
{
    struct coord_job *job = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (row == NULL)
        return true;
    coord_show_row(job, step, row);
    cairn__v1__metric_row__free_unpacked(row, NULL);
    return true;
}

static enum status load_rest(struct coord *coord, struct coord_job *job)
{
    struct journal *journal = coord->options.journal;
    struct load load = { .coord = coord, .job = job, .status = ST_OK };
    enum status st = journal_each_ckpt(journal, job->id, load_ckpt, &load);
    if (st == ST_OK)
        st = load.status;
    if (st == ST_OK)
        st = journal_each_save(journal, job->id, load_save, &load);
    for (int i = 0; st == ST_OK && i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &job->m.saves[i];
        struct load_reports reports = { &job->m, save->step, save->generation };
        if (save->state == FSM_SAVE_COLLECTING || save->state == FSM_SAVE_COMMITTING) {
            st = journal_each_report(journal, job->id, save->step, save->generation, load_report,
                                     &reports);
        }
    }
    const uint32_t rows = fsm_state_final(job->m.state) ? ROWS_OVER : ROWS_LIVE;
    uint64_t from = 0;
    if (st == ST_OK && journal_metric_back(journal, job->id, rows, &from) == ST_OK)
        st = journal_each_metric(journal, job->id, from, rows, load_metric, job);
    return st;
}

/* Nodes that jobs ran on are waited for before they are called silent. */
static void await_nodes(struct coord *coord, const struct coord_job *job)
{
    for (uint32_t i = 0; i < job->m.count; i++) {
        const struct fsm_rank *rank = &job->m.ranks[i];
        struct coord_node *node =
            fsm_holds_slot(&job->m, i) ? coord_node_at(coord, rank->node) : NULL;
        if (node == NULL)
            continue;
        node->heard_at = coord->grace_until;
        coord_node_moved(coord, node);
    }
}

static enum status record_restored(struct coord *coord, struct coord_job *job)
{
    if (!job->m.dirty)
        return ST_OK;
    struct reason reason;
    reason_set(&reason,
               "the journal was restored from a backup: what happened after that was made is not "
               "known; attempts are numbered from %u on",
               job->m.generation);
    struct journal_event event = { .wall_ms = clock_wall_ms(coord->options.clock),
                                   .generation = job->m.generation,
                                   .step = job->m.step_max,
                                   .kind = "restored",
                                   .message = reason.text };
    enum status st = coord_record_state(coord, job);
    if (st == ST_OK)
        st = journal_put_event(coord->options.journal, job->id, &event);
    job->m.dirty = false;
    return st;
}

/* Called when the journal is an older one that was put in place. */
static enum status take_restored(struct coord *coord)
{
    LOG_WARN(coord->options.log,
             "the journal is a backup that was put in place: attempts of before "
             "are ended, and what they saved since is not used");
    enum status st = journal_begin(coord->options.journal);
    for (size_t i = 0; st == ST_OK && i < coord->job_count; i++) {
        struct coord_job *job = coord->jobs[i];
        job->m.dirty = false;
        fsm_restored(&job->m);
        st = record_restored(coord, job);
        say_loading(coord);
    }
    return st == ST_OK ? journal_end_restore(coord->options.journal) : st;
}

/* ---- jobs that ended ---- */

void coord_drop_job(struct coord *coord, struct coord_job *job, const char *why)
{
    coord_send_over(coord, job, FSM_ALL_RANKS, why);
    coord_forget_dirty(coord, job);
    coord_remove_job(coord, job);
    coord_job_free(job);
}

/* True if nobody points at the job, and nothing of it is only in memory. */
static bool may_go(const struct coord_job *job)
{
    bool used = job->ended == JOURNAL_LIVE || job->dirty || job->tasks > 0 || job->held > 0 ||
                job->rows.count > 0 || coord_is_unreadable(job);
    for (uint32_t i = 0; !used && i < fsm_capacity(&job->m); i++)
        used = job->ranks[i].conn != NULL;
    return !used;
}

bool coord_retire(struct coord *coord, size_t room)
{
    const size_t max = coord->options.ended_max ? coord->options.ended_max : COORD_ENDED_MAX;
    coord->retire_needed = false;
    for (;;) {
        struct coord_job *oldest = NULL;
        size_t count = 0;
        for (size_t i = 0; i < coord->job_count; i++) {
            struct coord_job *job = coord->jobs[i];
            count += job->ended != JOURNAL_LIVE;
            if (may_go(job) && (oldest == NULL || job->used < oldest->used))
                oldest = job;
        }
        if (count + room <= max || oldest == NULL)
            return count + room <= max;
        coord_drop_job(coord, oldest, "the job has ended");
    }
}

/* Reads a job that ended into memory as it is, not resumed. */
static enum status read_ended(struct coord *coord, const char *id, struct coord_job **out)
{
    struct load load = { .coord = coord, .status = ST_OK };
    enum status st = journal_get_job(coord->options.journal, id, load_job, &load);
    if (st == ST_OK)
        st = load.status;
    struct coord_job *job = st == ST_OK ? coord_job_at(coord, id) : NULL;
    if (job == NULL)
        return st == ST_OK ? ST_CORRUPT : st;
    st = load_rest(coord, job);
    if (st != ST_OK) {
        coord_drop_job(coord, job, "the job can't be read");
        return st;
    }
    *out = job;
    return ST_OK;
}

enum status coord_look(struct coord *coord, const char *id, coord_look_fn *fn, void *arg)
{
    struct coord_job *job = coord_job_at(coord, id);
    const bool brought = job == NULL;
    const enum status st = brought ? read_ended(coord, id, &job) : ST_OK;
    if (st != ST_OK)
        return st;
    fn(arg, job);
    if (brought)
        coord_drop_job(coord, job, "it was only looked at");
    return ST_OK;
}

enum status coord_bring(struct coord *coord, const char *id, struct coord_job **out)
{
    (void)coord_retire(coord, 1); /* with all of them in use there is one more for a while */
    enum status st = read_ended(coord, id, out);
    if (st != ST_OK)
        return st;
    if (!(*out)->unreadable[0] && coord->failed == ST_OK)
        coord_resume(coord, *out);
    return coord->failed;
}

enum status coord_summarise(struct coord *coord, const char *id, struct buf *out)
{
    struct coord_job *job;
    CHECK(coord->options.summary != NULL && coord_job_at(coord, id) == NULL);
    enum status st = read_ended(coord, id, &job);
    if (st != ST_OK)
        return st;
    const enum journal_ended ended = job->ended;
    st = coord->options.summary(coord->options.summary_arg, job, out);
    coord_drop_job(coord, job, "it was only looked at");
    if (st != ST_OK)
        return st;
    st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_put_ended(coord->options.journal, id, ended, out->data, out->size);
    if (st != ST_OK)
        coord_fail(coord, st, "journalling what lists show of a job");
    return st;
}

/* Looks at the next job that may have left something; later, if all that may be in memory are in
 * use. */
static void look_at_left(struct coord *coord)
{
    char id[16];
    int64_t seq = coord->left_seq;
    struct coord_job *job = NULL;
    coord->left_at = coord_now(coord) + COORD_LEFT_MS;
    enum status st = journal_next_left(coord->options.journal, &seq, id);
    if (st == ST_OK && coord_job_at(coord, id) == NULL) {
        if (!coord_retire(coord, 1))
            return;
        st = coord_bring(coord, id, &job);
    }
    if (st == ST_OK)
        coord->left_seq = seq;
    if (st == ST_NOT_FOUND) {
        coord->left_at = INT64_MAX;
    } else if (st != ST_OK) {
        coord_fail(coord, st, "reading a job that ended");
    }
}

/* Tells of a job that ended and gave room in the journal. */
static enum status tell_tidied(struct coord *coord, const struct journal_tidied *done)
{
    struct coord_job *job = coord_job_at(coord, done->id);
    struct reason reason;
    if (done->forgotten) {
        LOG_INFO(coord->options.log, "%s is forgotten: the journal is as large as it may be",
                 done->id);
        coord->stored--;
        if (job != NULL)
            coord_drop_job(coord, job, "the job was forgotten");
        return ST_OK;
    }
    reason_set(&reason,
               "%lld rows of its metrics were dropped, as the journal is as large as it "
               "may be; every few steps one is left",
               (long long)done->rows);
    LOG_INFO(coord->options.log, "%s: %s", done->id, reason.text);
    if (job != NULL) {
        job->version++;
        job->rows_version++;
    }
    const struct journal_event event = { .wall_ms = clock_wall_ms(coord->options.clock),
                                         .kind = "thinned",
                                         .message = reason.text };
    return journal_put_event(coord->options.journal, done->id, &event);
}

static void tidy(struct coord *coord)
{
    struct journal_tidied done = { .more = false };
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_tidy(coord->options.journal, &done);
    if (st == ST_OK && done.id[0])
        st = tell_tidied(coord, &done);
    coord->tidy_at = done.more ? coord_now(coord) + COORD_TIDY_MS : INT64_MAX;
    if (st != ST_OK)
        coord_fail(coord, st, "deleting old rows");
}

void coord_chores_tick(struct coord *coord)
{
    const int64_t now = coord_now(coord);
    if (coord->failed == ST_OK && now >= coord->left_at)
        look_at_left(coord);
    if (coord->failed == ST_OK && now >= coord->tidy_at)
        tidy(coord);
}

/* ---- the start ---- */

/* Takes a forgotten node, with an entry of its own, which lists show, as long as there is room for
 * one. */
static bool load_forgotten(void *arg, const char *name, int64_t time_s)
{
    struct load *load = arg;
    struct coord *coord = load->coord;
    struct coord_node *node = coord_node_at(coord, name);
    load->status = coord_put_withdrawn(coord, name, time_s);
    if (node == NULL && coord->node_count < LIMIT_NODES)
        node = coord_node_make(coord, name);
    if (node != NULL) {
        node->silent = true;
        coord_node_moved(coord, node);
    }
    return load->status == ST_OK;
}

static bool load_drain(void *arg, const char *name, const char *reason, int64_t until_ms)
{
    struct load *load = arg;
    struct coord *coord = load->coord;
    const int64_t left = until_ms - clock_wall_ms(coord->options.clock);
    struct coord_node *node = coord_node_at(coord, name);
    if (node == NULL)
        node = coord_node_make(coord, name);
    const int64_t until = coord_now(coord) + (left > 0 ? left : 0);
    if (node != NULL) {
        coord_node_drain(coord, node, reason, until_ms == 0 ? 0 : until);
    } else {
        load->status = ST_FULL;
    }
    return node != NULL;
}

/* Reads all that the journal has of nodes, or nothing is begun: half of what people withdrew or
 * keep free is worse than none. */
static enum status load_nodes(struct coord *coord)
{
    struct load load = { .coord = coord, .status = ST_OK };
    enum status st = journal_each_drain(coord->options.journal, load_drain, &load);
    if (st == ST_OK && load.status == ST_OK)
        st = journal_each_forgotten_node(coord->options.journal, load_forgotten, &load);
    return st == ST_OK ? load.status : st;
}

enum status coord_load(struct coord *coord)
{
    struct load load = { .coord = coord, .status = ST_OK };
    enum status st = journal_each_job(coord->options.journal, load_job, &load);
    if (st == ST_OK)
        st = load.status;
    for (size_t i = 0; st == ST_OK && i < coord->job_count; i++) {
        st = load_rest(coord, coord->jobs[i]);
        say_loading(coord);
    }
    int64_t seq = 0;
    if (st == ST_OK)
        st = load_nodes(coord);
    if (st == ST_OK)
        st = journal_count_jobs(coord->options.journal, &coord->stored, &seq);
    if (seq > coord->seq_last)
        coord->seq_last = seq;
    if (st == ST_OK && journal_is_restored(coord->options.journal))
        st = take_restored(coord);
    if (st != ST_OK)
        return st;
    bool resumes = false;
    for (size_t i = 0; i < coord->job_count; i++)
        resumes = resumes || !fsm_state_final(coord->jobs[i]->m.state);
    coord->promised_at = coord_now(coord); /* resuming thousands takes a while: see coord_wake */
    for (size_t i = 0; i < coord->job_count && coord->failed == ST_OK; i++) {
        if (!coord->jobs[i]->unreadable[0])
            coord_resume(coord, coord->jobs[i]);
        say_loading(coord);
    }
    coord->started_at = coord_now(coord);
    coord->left_at = coord->started_at + COORD_LEFT_MS;
    coord->tidy_at = coord->started_at + COORD_TIDY_MS;
    coord->grace_until = coord->started_at + COORD_GRACE_MS;
    coord->expects_until = resumes ? coord->grace_until : 0;
    for (size_t i = 0; i < coord->job_count; i++)
        await_nodes(coord, coord->jobs[i]);
    coord->awaits_nodes = resumes;
    return coord->failed;
}

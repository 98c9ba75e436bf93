/* `cairn why`: what happened to a job, and where each of its seconds went. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/render/render.h"
#include "server/story/story.h"

#define TEXT_MAX    ((size_t)512 * 1024)
#define EVENTS_MAX  200 /* events that are listed: the newest */
#define NODES_SHOWN 200 /* bytes of a list of nodes in a line; longer ones as numbers */
#define SHOWN_MAX   64  /* generations that are listed: the newest */

/*
 * Begun by the core's thread, which knows how the job is, ended by one that reads what happened to
 * it. The text's parts stand in another order than they are known in.
 */
struct explain {
    struct buf text;  /* the head, and in the end all of it */
    struct buf plan;  /* about checkpoints */
    struct buf times; /* the time line */
    struct buf *to;   /* the buffer where lines go */
    struct story story;
    enum status status;
    struct render_history of;
    char name[LIMIT_NAME];
    bool readable; /* its file can be read */
    bool spare_node, copies, command, saves;
    uint32_t count; /* of all generations that there were */
    Cairn__V1__ExplainJobReply *out;
    /* Events "saved" in a row are one line: how many, the steps of the first two, the last one. */
    uint32_t saved_count;
    uint64_t saved_steps[2];
    uint64_t saved_step;
    char saved_head[96];
    char saved[LIMIT_REASON];
};

static void __attribute__((format(printf, 2, 3)))
line(struct explain *page, const char *format, ...)
{
    char out[2 * LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out, sizeof(out), format, args);
    va_end(args);
    if (page->status == ST_OK)
        page->status = buf_append_text(page->to, out);
    if (page->status == ST_OK)
        page->status = buf_append_text(page->to, "\n");
}

static void append(struct explain *page, const struct buf *part)
{
    if (page->status == ST_OK && part->size > 0)
        page->status = buf_append(page->to, part->data, part->size);
}

/* ---- what the core knows ---- */

static void head(struct explain *page, const struct coord *coord, const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    struct reason reason;
    struct fsm_blocked blocked;
    char total[32] = ""; /* isn't known before the first generation */
    render_reason(coord, job, &reason);
    if (m->total_steps > 0)
        (void)snprintf(total, sizeof(total), " of %llu", (unsigned long long)m->total_steps);
    line(page, "%s (%s) is %s at step %llu%s, generation %u, %u restart%s.", job->name, job->id,
         fsm_state_name(m->state), (unsigned long long)fsm_step_now(m), total, m->generation,
         m->restarts, m->restarts == 1 ? "" : "s");
    if (m->since_wall > 0 && m->since_state == m->state) {
        char since[32];
        render_time(m->since_wall, since);
        line(page, "%s since %s.", fsm_state_name(m->state), since);
    }
    coord_blocked(coord, job, &blocked);
    if (blocked.text[0])
        line(page, "Now: %s", blocked.text);
    if (reason.text[0] && strcmp(reason.text, blocked.text) != 0)
        line(page, "%s: %s", blocked.text[0] ? "Reason" : "Now", reason.text);
    if (m->first_cause.kind != FSM_FAULT_NONE) {
        char who[32] = "";
        if (m->first_cause.rank != FSM_ALL_RANKS)
            (void)snprintf(who, sizeof(who), "rank %u ", m->first_cause.rank);
        bool broken = m->state == FSM_RECOVERING || m->state == FSM_FAILED;
        line(page, "%s: %s, %sat step %llu%s%s: %s", broken ? "First cause" : "Last failure",
             fsm_fault_name(m->first_cause.kind), who, (unsigned long long)m->first_cause.step,
             m->first_cause.phase[0] ? " in " : "", m->first_cause.phase, m->first_cause.message);
    }
}

static void seconds(struct explain *page, const struct fsm *m)
{
    static const char *const means[FSM_LOST_COUNT] = {
        [FSM_LOST_DETECT] = "until a failure was noticed",
        [FSM_LOST_FORM] = "ending the old and starting the new workers",
        [FSM_LOST_RESTORE] = "preparing and reading the checkpoint",
        [FSM_LOST_REPLAY] = "training again what had been trained",
        [FSM_LOST_STALL] = "waiting for snapshots",
        [FSM_LOST_WAIT] = "waiting for slots, or before trying again",
    };
    int64_t lost = 0;
    for (int i = 0; i < FSM_LOST_COUNT; i++)
        lost += m->accounts.lost_ms[i];
    line(page, "%s", "");
    line(page, "Where the time went: %.1f s training, %.1f s not.",
         (double)m->accounts.train_ms / 1e3, (double)lost / 1e3);
    for (int i = 0; i < FSM_LOST_COUNT; i++) {
        line(page, "  %8.1f s  %-8s %s", (double)m->accounts.lost_ms[i] / 1e3,
             fsm_lost_name((enum fsm_lost)i), means[i]);
    }
    const double goodput = fsm_goodput(m);
    if (!isnan(goodput)) {
        line(page,
             "Goodput: %.1f %% of the time since it ran first, without pauses, was training that "
             "counted.",
             100 * goodput);
    }
}

/* Writes when the next checkpoint is taken, and why then. */
static void checkpoints(struct explain *page, const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    const struct jobspec_duration *every = &job->spec->checkpoint.every;
    struct interval_facts facts = fsm_interval_facts(m);
    line(page, "%s", "");
    if (m->config.saves_nothing) {
        line(page, "Checkpoints: none; a program of its own begins anew, or with what it saved.");
        return;
    }
    if (every->unit == JOBSPEC_STEPS || every->unit == JOBSPEC_EPOCHS) {
        line(page, "Checkpoints: every %.16g %s%s.", every->value,
             every->unit == JOBSPEC_STEPS ? "step" : "epoch", every->value == 1 ? "" : "s");
    } else if (every->unit == JOBSPEC_MS) {
        line(page, "Checkpoints: every %.1f s.", every->value / 1e3);
    } else if (m->due.cost_us == 0) {
        line(page, "Checkpoints: auto; the first after %.0f s, as none was measured yet.",
             (double)fsm_interval_ms(m) / 1e3);
    } else {
        line(page, "Checkpoints: auto, every %.1f s.", (double)fsm_interval_ms(m) / 1e3);
        line(page, "  %10.3f s  of training are what one costs (waiting, and encoding it)",
             (double)m->due.cost_us / 1e6);
        line(page, "  %10.1f s  it takes from its begin until it is stored",
             (double)m->due.write_ms / 1e3);
        line(page,
             "  %10.0f s  between two failures are expected: %u in %.0f s of training on %u "
             "node%s, and one a day and node assumed beforehand",
             interval_mtbf_ms(&facts) / 1e3, m->failures, (double)facts.trained_ms / 1e3,
             facts.nodes, facts.nodes == 1 ? "" : "s");
        line(page, "  %10.1f s  between two is best for that (Young, Daly); kept within %d to %d s",
             interval_best_ms((double)m->due.cost_us / 1e3, interval_mtbf_ms(&facts)) / 1e3,
             INTERVAL_MIN_MS / 1000, INTERVAL_MAX_MS / 1000);
    }
    uint64_t read = 0, bytes = 0;
    if (fsm_reading(m, &read, &bytes)) {
        const struct fsm_read_back *it = &m->read_back;
        double took = (double)(it->moved_at - it->since) / 1e3;
        line(page, "  step %llu is read back by the workers: %.1f of %.1f MB, %.1f MB/s",
             (unsigned long long)it->step, (double)read / 1e6, (double)bytes / 1e6,
             took > 0 ? (double)read / 1e6 / took : 0);
    }
    if (m->store_full.refused > 0) {
        line(page, "  %llu had no room in the store, last: %s",
             (unsigned long long)m->store_full.refused, m->store_full.reason);
    }
}

static bool render_cause(const struct fsm_fault *cause, Cairn__V1__ExplainJobReply *out)
{
    if (cause->kind == FSM_FAULT_NONE)
        return true;
    Cairn__V1__FirstCause *one = malloc(sizeof(*one));
    if (one == NULL)
        return false;
    cairn__v1__first_cause__init(one);
    out->first_cause = one;
    one->rank = cause->rank == FSM_ALL_RANKS ? -1 : (int32_t)cause->rank;
    one->step = cause->step;
    one->kind = render_text(fsm_fault_name(cause->kind));
    one->phase = render_text(cause->phase);
    one->message = render_text(cause->message);
    return one->kind != NULL && one->phase != NULL && one->message != NULL;
}

static bool render_blocked(const struct coord *coord, const struct coord_job *job,
                           Cairn__V1__ExplainJobReply *out)
{
    struct fsm_blocked blocked;
    coord_blocked(coord, job, &blocked);
    if (blocked.by == FSM_BLOCK_NONE)
        return true;
    Cairn__V1__Blocked *one = malloc(sizeof(*one));
    if (one == NULL)
        return false;
    cairn__v1__blocked__init(one);
    out->blocked = one;
    one->by = render_text(fsm_block_name(blocked.by));
    one->text = render_text(blocked.text);
    one->seconds = (double)blocked.for_ms / 1e3;
    return one->by != NULL && one->text != NULL;
}

/* Fills in the part of the message that the core knows. */
static bool render_known(struct explain *page, const struct coord *coord, struct coord_job *job)
{
    const struct fsm *m = &job->m;
    Cairn__V1__ExplainJobReply *out = page->out;
    out->train_seconds = (double)m->accounts.train_ms / 1e3;
    out->since = render_time_text(m->since_state == m->state ? m->since_wall : 0);
    if (m->recovery.state == RECOVERY_ENDING) {
        out->ending = render_recovery(&m->recovery);
        if (out->ending == NULL)
            return false;
        out->ending__case = CAIRN__V1__EXPLAIN_JOB_REPLY__ENDING__ENDING;
    }
    out->job = render_job(coord, job, RENDER_CKPTS);
    return out->since != NULL && out->job != NULL && render_cause(&m->first_cause, out) &&
           render_blocked(coord, job, out);
}

static void write_known(struct explain *page, const struct coord *coord,
                        const struct coord_job *job)
{
    page->to = &page->text;
    head(page, coord, job);
    seconds(page, &job->m);
    page->readable = !job->unreadable[0];
    if (!page->readable)
        return;
    page->command = jobspec_is_command(job->spec);
    page->saves = !job->m.config.saves_nothing;
    page->copies = job->spec->checkpoint.memory_every > 0 || job->copies.every > 0;
    page->to = &page->plan;
    checkpoints(page, job);
}

void explain_free(struct explain *explain)
{
    if (explain == NULL)
        return;
    buf_release(&explain->text);
    buf_release(&explain->plan);
    buf_release(&explain->times);
    cairn__v1__explain_job_reply__free_unpacked(explain->out, NULL);
    free(explain);
}

struct explain *explain_begin(const struct coord *coord, struct coord_job *job, bool spare_node)
{
    struct explain *page = calloc(1, sizeof(*page));
    if (page == NULL)
        return NULL;
    page->out = malloc(sizeof(*page->out));
    if (page->out != NULL)
        cairn__v1__explain_job_reply__init(page->out);
    buf_init(&page->text, TEXT_MAX);
    buf_init(&page->plan, TEXT_MAX / 2);
    buf_init(&page->times, TEXT_MAX / 2);
    page->of = render_history_of(job);
    page->count = job->m.generation > 0 ? job->m.recoveries + 1 : 0;
    page->spare_node = spare_node;
    (void)snprintf(page->name, sizeof(page->name), "%s", job->name);
    write_known(page, coord, job);
    if (page->status == ST_OK && page->out != NULL && render_known(page, coord, job))
        return page;
    explain_free(page);
    return NULL;
}

/* ---- what the journal knows ---- */

static void losses(struct explain *page)
{
    auto_buf struct buf table;
    buf_init(&table, TEXT_MAX);
    if (page->status == ST_OK)
        page->status = story_losses(&page->story, &table);
    if (page->status != ST_OK || table.size == 0)
        return;
    line(page, "%s", "");
    line(page, "What was lost between generations, by cause:");
    append(page, &table);
}

static bool add_advice(Cairn__V1__ExplainJobReply *out, const struct story_advice *advice)
{
    Cairn__V1__Advice *one = malloc(sizeof(*one));
    if (one == NULL)
        return false;
    cairn__v1__advice__init(one);
    out->advice[out->n_advice++] = one;
    one->about = render_text(advice->about);
    one->text = render_text(advice->text.text);
    return one->about != NULL && one->text != NULL;
}

static void advice(struct explain *page)
{
    struct story_advice list[STORY_ADVICE];
    const struct story_facts facts = { .job = page->name,
                                       .spare_node = page->spare_node,
                                       .copies = page->copies,
                                       .command = page->command,
                                       .saves = page->saves };
    const uint32_t count = story_advise(&page->story, &facts, list);
    page->out->advice = calloc(STORY_ADVICE, sizeof(void *));
    if (page->out->advice == NULL)
        page->status = ST_NO_MEMORY;
    if (count > 0) {
        line(page, "%s", "");
        line(page, "What you can do:");
    }
    for (uint32_t i = 0; page->status == ST_OK && i < count; i++) {
        line(page, "  %s: %s", list[i].about, list[i].text.text);
        if (!add_advice(page->out, &list[i]))
            page->status = ST_NO_MEMORY;
    }
}

/* Writes what is known of how the job came to a generation; the line stands where it began. */
static void write_recovery(struct explain *page, const struct recovery *r)
{
    char at[32];
    auto_buf struct buf said;
    buf_init(&said, (size_t)4 * LIMIT_REASON);
    if (page->status != ST_OK)
        return;
    render_time(r->wall_ms, at);
    page->status = story_recovery(r, page->of.over, &said);
    if (page->status == ST_OK)
        line(page, "  %s  recovery: %s", at, said.data);
}

static bool add_recovery(void *arg, uint32_t generation, const char *text)
{
    struct explain *page = arg;
    struct recovery r;
    if (render_read_recovery(&page->of, generation, text, &r))
        story_add(&page->story, &r);
    return true;
}

static void write_generation(struct explain *page, const struct journal_generation *row,
                             const Cairn__V1__Generation *told)
{
    char where[256], how[LIMIT_REASON + 64] = "runs";
    struct recovery r;
    if (render_read_recovery(&page->of, row->generation, row->recovery, &r))
        write_recovery(page, &r);
    const double lasted = (double)render_lasted_ms(row) / 1e3;
    if (row->end_ms != 0 && row->cause[0]) {
        (void)snprintf(how, sizeof(how), "%.1f s, to step %llu: %s: %.400s", lasted,
                       (unsigned long long)row->end_step, row->cause, row->message);
    } else if (row->end_ms != 0) {
        (void)snprintf(how, sizeof(how), "%.1f s, to step %llu: ended as planned", lasted,
                       (unsigned long long)row->end_step);
    }
    if (strlen(row->nodes) <= NODES_SHOWN) {
        (void)snprintf(where, sizeof(where), "%s", row->nodes);
    } else {
        (void)snprintf(where, sizeof(where), "%u node%s (%u workers)", told->node_count,
                       told->node_count == 1 ? "" : "s", told->workers);
    }
    line(page, "  %s  generation %u from step %llu on %s: %s", told->begin, row->generation,
         (unsigned long long)row->restore_step, where, how);
}

/* "steps 100, 200 ... 900 (9 checkpoints); the last: step 900, ..." */
static void end_saved(struct explain *page)
{
    const unsigned long long first = page->saved_steps[0], second = page->saved_steps[1],
                             last = page->saved_step;
    if (page->saved_count == 1) {
        line(page, "%s%s", page->saved_head, page->saved);
    } else if (page->saved_count == 2) {
        line(page, "%ssteps %llu, %llu (2 checkpoints); the last: %s", page->saved_head, first,
             last, page->saved);
    } else if (page->saved_count > 2) {
        line(page, "%ssteps %llu, %llu %s %llu (%u checkpoints); the last: %s", page->saved_head,
             first, second, page->saved_count == 3 ? "and" : "...", last, page->saved_count,
             page->saved);
    }
    page->saved_count = 0;
}

static bool add_event(void *arg, const struct journal_event *row)
{
    struct explain *page = arg;
    char at[32], begin[96];
    render_time(row->wall_ms, at);
    (void)snprintf(begin, sizeof(begin), "  %s  g%-3u step %-8llu %-12.20s ", at, row->generation,
                   (unsigned long long)row->step, row->kind);
    if (strcmp(row->kind, "saved") == 0) {
        if (page->saved_count < 2)
            page->saved_steps[page->saved_count] = row->step;
        page->saved_step = row->step;
        page->saved_count++;
        (void)snprintf(page->saved_head, sizeof(page->saved_head), "%s", begin);
        (void)snprintf(page->saved, sizeof(page->saved), "%.*s", (int)strcspn(row->message, ";"),
                       row->message); /* what it took: `cairn ckpt ls -o wide` */
        return true;
    }
    end_saved(page);
    line(page, "%s%s", begin, row->message);
    return page->status == ST_OK;
}

static bool add_generation(void *arg, const struct journal_generation *row)
{
    struct explain *page = arg;
    Cairn__V1__ExplainJobReply *out = page->out;
    Cairn__V1__Generation *one = render_generation(row);
    if (one == NULL) {
        page->status = ST_NO_MEMORY;
        return false;
    }
    out->generations[out->n_generations++] = one;
    write_generation(page, row, one);
    return page->status == ST_OK;
}

/* The list and its time line; what all of them lost. */
static enum status read_generations(struct explain *page, struct journal *journal)
{
    page->out->generations = calloc(SHOWN_MAX, sizeof(void *));
    if (page->out->generations == NULL)
        return ST_NO_MEMORY;
    enum status st =
        journal_each_generation(journal, page->of.job, SHOWN_MAX, add_generation, page);
    if (st == ST_OK)
        st = journal_each_recovery(journal, page->of.job, LIMIT_GENERATIONS, add_recovery, page);
    const uint32_t shown = (uint32_t)page->out->n_generations;
    page->out->generations_left_out = page->count > shown ? page->count - shown : 0;
    return st;
}

static bool render_losses(const struct story *story, Cairn__V1__ExplainJobReply *out)
{
    out->lost_by_cause = calloc(STORY_FAULTS, sizeof(void *));
    for (uint32_t i = 0; out->lost_by_cause != NULL && i < STORY_FAULTS; i++) {
        const struct story_loss *loss = &story->of[i];
        if (loss->count == 0)
            continue;
        Cairn__V1__CauseLoss *one = malloc(sizeof(*one));
        if (one == NULL)
            return false;
        cairn__v1__cause_loss__init(one);
        out->lost_by_cause[out->n_lost_by_cause++] = one;
        one->cause = render_text(story_cause(i));
        one->count = loss->count;
        one->steps_lost = loss->steps;
        if (one->cause == NULL || !render_parts(loss->ms, &one->n_seconds, &one->seconds))
            return false;
    }
    return out->lost_by_cause != NULL;
}

/* Writes the rest, in this order, whatever is read first. */
static void write_rest(struct explain *page, struct journal *journal)
{
    page->to = &page->times;
    enum status st = read_generations(page, journal);
    if (page->of.recovery.state == RECOVERY_ENDING) {
        story_add(&page->story, &page->of.recovery);
        write_recovery(page, &page->of.recovery);
    }
    page->to = &page->text;
    losses(page);
    if (page->readable)
        advice(page);
    append(page, &page->plan);
    line(page, "%s", "");
    if (page->out->generations_left_out > 0) {
        line(page, "Time line (the newest %d generations; %u older ones are left out):", SHOWN_MAX,
             page->out->generations_left_out);
    } else {
        line(page, "Time line (the newest %d generations):", SHOWN_MAX);
    }
    append(page, &page->times);
    line(page, "%s", "");
    line(page, "What happened (the newest %d events):", EVENTS_MAX);
    if (st == ST_OK)
        st = journal_each_event(journal, page->of.job, EVENTS_MAX, add_event, page);
    end_saved(page);
    if (st != ST_OK)
        line(page, "  The journal can't be read: %s", status_string(st));
}

enum status explain_end(struct explain *explain, struct journal *journal,
                        Cairn__V1__ExplainJobReply **out)
{
    Cairn__V1__ExplainJobReply *reply = explain->out;
    size_t size;
    write_rest(explain, journal);
    reply->text = buf_take(&explain->text, &size);
    enum status st = render_history(&explain->of, journal, reply->job);
    if (st == ST_OK)
        st = explain->status;
    if (st == ST_OK && (reply->text == NULL || !render_losses(&explain->story, reply)))
        st = ST_NO_MEMORY;
    if (st == ST_OK) {
        *out = reply;
        explain->out = NULL;
    }
    explain_free(explain);
    return st;
}

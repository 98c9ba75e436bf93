/* `cairn why`: what happened to a job, and where each of its seconds went. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/render.h"

#define TEXT_MAX   ((size_t)256 * 1024)
#define EVENTS_MAX 200 /* that are listed: the newest */

struct page {
    struct buf text;
    enum status status;
    const struct core_job *job;
    Cairn__V1__ExplainJobReply *out;
    /* Events "saved" in a row are one line: how many, the first one's step, the last one. */
    uint32_t saved_count;
    uint64_t saved_from;
    char saved_head[96];
    char saved[LIMIT_REASON];
};

static void __attribute__((format(printf, 2, 3))) line(struct page *page, const char *format, ...)
{
    char out[2 * LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out, sizeof out, format, args);
    va_end(args);
    if (page->status == ST_OK)
        page->status = buf_append_text(&page->text, out);
    if (page->status == ST_OK)
        page->status = buf_append_text(&page->text, "\n");
}

static void head(struct page *page, const struct core *core)
{
    const struct core_job *job = page->job;
    const struct machine *m = &job->m;
    struct reason reason;
    core_reason(core, job, &reason);
    line(page, "%s (%s) is %s at step %llu of %llu, generation %u, %u restart%s.", job->name,
         job->id, machine_state_name(m->state), (unsigned long long)machine_step_now(m),
         (unsigned long long)m->total_steps, m->generation, m->restarts,
         m->restarts == 1 ? "" : "s");
    if (reason.text[0])
        line(page, "Now: %s", reason.text);
    if (m->first_cause.kind != MACHINE_FAULT_NONE) {
        char who[32] = "";
        if (m->first_cause.rank != MACHINE_ALL_RANKS)
            (void)snprintf(who, sizeof who, "rank %u ", m->first_cause.rank);
        bool broken = m->state == MACHINE_RECOVERING || m->state == MACHINE_FAILED;
        line(page, "%s: %s, %sat step %llu%s%s: %s", broken ? "First cause" : "Last failure",
             machine_fault_name(m->first_cause.kind), who, (unsigned long long)m->first_cause.step,
             m->first_cause.phase[0] ? " in " : "", m->first_cause.phase, m->first_cause.message);
    }
}

static void seconds(struct page *page)
{
    const struct machine *m = &page->job->m;
    static const char *const means[MACHINE_LOST_COUNT] = {
        [MACHINE_LOST_DETECT] = "until a failure was noticed",
        [MACHINE_LOST_FORM] = "ending the old and starting the new workers",
        [MACHINE_LOST_RESTORE] = "preparing and reading the checkpoint",
        [MACHINE_LOST_REPLAY] = "training again what had been trained",
        [MACHINE_LOST_STALL] = "waiting for snapshots",
        [MACHINE_LOST_WAIT] = "waiting for slots, or before trying again",
    };
    int64_t lost = 0;
    for (int i = 0; i < MACHINE_LOST_COUNT; i++)
        lost += m->accounts.lost_ms[i];
    line(page, "%s", "");
    line(page, "Where the time went: %.1f s training, %.1f s not.",
         (double)m->accounts.train_ms / 1e3, (double)lost / 1e3);
    for (int i = 0; i < MACHINE_LOST_COUNT; i++) {
        line(page, "  %8.1f s  %-8s %s", (double)m->accounts.lost_ms[i] / 1e3,
             machine_lost_name((enum machine_lost)i), means[i]);
    }
}

/* When the next checkpoint is taken, and why then. */
static void checkpoints(struct page *page)
{
    const struct machine *m = &page->job->m;
    const struct job_duration *every = &page->job->spec->checkpoint.every;
    struct interval_facts facts = machine_interval_facts(m);
    line(page, "%s", "");
    if (every->unit == JOB_STEPS || every->unit == JOB_EPOCHS) {
        line(page, "Checkpoints: every %.16g %s%s.", every->value,
             every->unit == JOB_STEPS ? "step" : "epoch", every->value == 1 ? "" : "s");
    } else if (every->unit == JOB_MS) {
        line(page, "Checkpoints: every %.1f s.", every->value / 1e3);
    } else if (m->due.cost_us == 0) {
        line(page, "Checkpoints: auto; the first after %.0f s, as none was measured yet.",
             (double)machine_interval_ms(m) / 1e3);
    } else {
        line(page, "Checkpoints: auto, every %.1f s.", (double)machine_interval_ms(m) / 1e3);
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
    if (machine_reading(m, &read, &bytes)) {
        const struct machine_read_back *it = &m->read_back;
        double took = (double)(it->moved_at - it->since) / 1e3;
        line(page, "  step %llu is read back by the workers: %.1f of %.1f MB, %.1f MB/s",
             (unsigned long long)it->step, (double)read / 1e6, (double)bytes / 1e6,
             took > 0 ? (double)read / 1e6 / took : 0);
    }
    if (m->room.refused > 0) {
        line(page, "  %llu had no room in the store, last: %s", (unsigned long long)m->room.refused,
             m->room.reason);
    }
}

static bool add_generation(void *arg, const struct journal_generation *row)
{
    struct page *page = arg;
    char begin[32], how[LIMIT_REASON + 64] = "runs";
    render_time(row->begin_ms, begin);
    if (row->end_ms != 0 && row->cause[0]) {
        (void)snprintf(how, sizeof how, "%.1f s, to step %llu: %s: %.400s",
                       (double)(row->end_ms - row->begin_ms) / 1e3,
                       (unsigned long long)row->end_step, row->cause, row->message);
    } else if (row->end_ms != 0) {
        (void)snprintf(how, sizeof how, "%.1f s, to step %llu: ended as planned",
                       (double)(row->end_ms - row->begin_ms) / 1e3,
                       (unsigned long long)row->end_step);
    }
    line(page, "  %s  generation %u from step %llu on %.200s: %s", begin, row->generation,
         (unsigned long long)row->restore_step, row->nodes, how);
    return page->status == ST_OK;
}

static void end_saved(struct page *page)
{
    if (page->saved_count == 1) {
        line(page, "%s%s", page->saved_head, page->saved);
    } else if (page->saved_count > 1) {
        line(page, "%s%u checkpoints from step %llu on; the last: %s", page->saved_head,
             page->saved_count, (unsigned long long)page->saved_from, page->saved);
    }
    page->saved_count = 0;
}

static bool add_event(void *arg, const struct journal_event *row)
{
    struct page *page = arg;
    char at[32], begin[96];
    render_time(row->wall_ms, at);
    (void)snprintf(begin, sizeof begin, "  %s  g%-3u step %-8llu %-12.20s ", at, row->generation,
                   (unsigned long long)row->step, row->kind);
    if (strcmp(row->kind, "saved") == 0) {
        page->saved_from = page->saved_count == 0 ? row->step : page->saved_from;
        page->saved_count++;
        (void)snprintf(page->saved_head, sizeof page->saved_head, "%s", begin);
        (void)snprintf(page->saved, sizeof page->saved, "%.*s", (int)strcspn(row->message, ";"),
                       row->message); /* what it took: `cairn ckpt ls -o wide` */
        return true;
    }
    end_saved(page);
    line(page, "%s%s", begin, row->message);
    return page->status == ST_OK;
}

/* ---- as a message ---- */

/* A list of messages grows by one; NULL: no memory. */
static Cairn__V1__Generation *append_generation(Cairn__V1__ExplainJobReply *out)
{
    void *list = realloc(out->generations, (out->n_generations + 1) * sizeof(void *));
    if (!list)
        return NULL;
    out->generations = list;
    Cairn__V1__Generation *one = malloc(sizeof *one);
    if (!one)
        return NULL;
    cairn__v1__generation__init(one);
    out->generations[out->n_generations++] = one;
    return one;
}

static bool render_generation(struct page *page, const struct journal_generation *row)
{
    char begin[32], end[32];
    Cairn__V1__Generation *one = append_generation(page->out);
    if (!one)
        return false;
    render_time(row->begin_ms, begin);
    render_time(row->end_ms, end);
    one->generation = row->generation;
    one->from_step = row->restore_step;
    one->to_step = row->end_ms != 0 ? row->end_step : 0;
    one->begin = render_text(begin);
    one->end = render_text(end);
    one->nodes = render_text(row->nodes);
    one->cause = render_text(row->cause);
    one->message = render_text(row->message);
    return one->begin && one->end && one->nodes && one->cause && one->message;
}

static bool render_cause(const struct machine_fault *cause, Cairn__V1__ExplainJobReply *out)
{
    if (cause->kind == MACHINE_FAULT_NONE)
        return true;
    Cairn__V1__FirstCause *one = malloc(sizeof *one);
    if (!one)
        return false;
    cairn__v1__first_cause__init(one);
    out->first_cause = one;
    one->rank = cause->rank == MACHINE_ALL_RANKS ? -1 : (int32_t)cause->rank;
    one->step = cause->step;
    one->kind = render_text(machine_fault_name(cause->kind));
    one->phase = render_text(cause->phase);
    one->message = render_text(cause->message);
    return one->kind && one->phase && one->message;
}

static bool add_each_generation(void *arg, const struct journal_generation *row)
{
    struct page *page = arg;
    if (!render_generation(page, row))
        page->status = ST_NO_MEMORY;
    return page->status == ST_OK && add_generation(page, row);
}

Cairn__V1__ExplainJobReply *explain_job(struct core *core, struct core_job *job)
{
    struct page page = { .job = job, .status = ST_OK, .out = malloc(sizeof *page.out) };
    if (!page.out)
        return NULL;
    cairn__v1__explain_job_reply__init(page.out);
    struct journal *journal = core_options(core)->journal;
    buf_init(&page.text, TEXT_MAX);
    head(&page, core);
    seconds(&page);
    if (!job->unreadable[0])
        checkpoints(&page);
    line(&page, "%s", "");
    line(&page, "Generations:");
    enum status st = journal_each_generation(journal, job->id, add_each_generation, &page);
    line(&page, "%s", "");
    line(&page, "What happened (the newest %d events):", EVENTS_MAX);
    if (st == ST_OK)
        st = journal_each_event(journal, job->id, EVENTS_MAX, add_event, &page);
    end_saved(&page);
    if (st != ST_OK)
        line(&page, "  The journal can't be read: %s", status_string(st));
    size_t size;
    page.out->text = buf_take(&page.text, &size);
    page.out->job = render_job(core, job, RENDER_CKPTS, true);
    page.out->train_seconds = (double)job->m.accounts.train_ms / 1e3;
    if (page.status != ST_NO_MEMORY && page.out->text && page.out->job &&
        render_cause(&job->m.first_cause, page.out))
        return page.out;
    cairn__v1__explain_job_reply__free_unpacked(page.out, NULL);
    return NULL;
}

/* `cairn why`: what happened to a job, and where each of its seconds went. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/render.h"

#define TEXT_MAX ((size_t)256 * 1024)

struct page {
    struct buf text;
    enum status status;
    const struct core_job *job;
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

static void head(struct page *page)
{
    const struct core_job *job = page->job;
    const struct job_machine *m = &job->m;
    line(page, "%s (%s) is %s at step %llu of %llu, generation %u, %u restart%s.", job->name,
         job->id, job_state_name(m->state), (unsigned long long)jm_step_now(m),
         (unsigned long long)m->total_steps, m->generation, m->restarts,
         m->restarts == 1 ? "" : "s");
    if (m->reason[0])
        line(page, "Now: %s", m->reason);
    if (m->first_cause.kind != FAULT_NONE) {
        char who[32] = "";
        if (m->first_cause.rank != JM_ALL)
            (void)snprintf(who, sizeof who, "rank %u ", m->first_cause.rank);
        bool broken = m->state == JOB_RECOVERING || m->state == JOB_FAILED;
        line(page, "%s: %s, %sat step %llu%s%s: %s", broken ? "First cause" : "Last failure",
             jm_fault_name(m->first_cause.kind), who, (unsigned long long)m->first_cause.step,
             m->first_cause.phase[0] ? " in " : "", m->first_cause.phase, m->first_cause.message);
    }
}

static void seconds(struct page *page)
{
    const struct job_machine *m = &page->job->m;
    static const char *const means[] = {
        "until a failure was noticed",
        "ending the old and starting the new workers",
        "preparing and reading the checkpoint",
        "training again what had been trained",
        "waiting for snapshots",
        "waiting for slots, or before trying again",
    };
    int64_t lost = 0;
    for (int i = 0; i < LOST_COUNT; i++)
        lost += m->lost_ms[i];
    line(page, "%s", "");
    line(page, "Where the time went: %.1f s training, %.1f s not.", (double)m->train_ms / 1e3,
         (double)lost / 1e3);
    for (int i = 0; i < LOST_COUNT; i++) {
        line(page, "  %8.1f s  %-8s %s", (double)m->lost_ms[i] / 1e3, jm_lost_name((enum jm_lost)i),
             means[i]);
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

static bool add_event(void *arg, const struct journal_event *row)
{
    struct page *page = arg;
    char at[32];
    render_time(row->wall_ms, at);
    line(page, "  %s  g%-3u step %-8llu %-12s %s", at, row->generation,
         (unsigned long long)row->step, row->kind, row->message);
    return page->status == ST_OK;
}

char *explain_job(struct core *core, struct core_job *job)
{
    struct page page = { .job = job, .status = ST_OK };
    struct journal *journal = core_options(core)->journal;
    buf_init(&page.text, TEXT_MAX);
    head(&page);
    seconds(&page);
    line(&page, "%s", "");
    line(&page, "Generations:");
    enum status st = journal_each_generation(journal, job->id, add_generation, &page);
    line(&page, "%s", "");
    line(&page, "What happened (the newest %d events):", 200);
    if (st == ST_OK)
        st = journal_each_event(journal, job->id, 200, add_event, &page);
    if (st != ST_OK)
        line(&page, "  The journal can't be read: %s", status_string(st));
    size_t size;
    char *text = buf_take(&page.text, &size);
    return text ? text : strdup("");
}

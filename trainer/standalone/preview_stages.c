#include "trainer/standalone/preview_stages.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/stage/stage.h"
#include "trainer/worker/memory_need.h"

#define MIB     (1024.0 * 1024.0)
#define NUMBERS 3 /* of workers that are measured */

struct stage_need {
    uint32_t begin[STAGE_CHUNKS_MAX], end[STAGE_CHUNKS_MAX];
    uint32_t chunks, stashes;
    struct memory_need need;
};

struct stages_need {
    const struct preview_stages *of;
    int64_t workers;
    struct jobspec_layout layout;
    struct stage_plan plan;
    enum pipeline_schedule schedule;
    struct stage_need stages[LIMIT_STAGES];
    uint32_t most;         /* the stage whose worker needs most */
    struct reason instead; /* of another schedule, why; or empty */
};

static enum status fail(enum status st, struct reason *reason)
{
    reason_set(reason, "preparing the model: %s", status_string(st));
    return st;
}

/* The rank of a stage with the most lanes. */
static uint32_t widest_rank(const struct stages_need *n, uint32_t stage)
{
    uint32_t first = 0, widest = 0;
    for (uint32_t i = 0; i < stage; i++)
        first += n->layout.workers[i];
    for (uint32_t r = 0; r < n->layout.workers[stage]; r++) {
        if (n->layout.shares[first + r] > n->layout.shares[first + widest])
            widest = r;
    }
    return first + widest;
}

static struct stage_options options_of(const struct stages_need *n, uint32_t rank)
{
    const struct preview_stages *p = n->of;
    return (struct stage_options){ .tape = p->tape,
                                   .device = p->device,
                                   .cost = p->cost,
                                   .schedule = n->schedule,
                                   .accumulate = p->settings->accumulate,
                                   .lanes = p->settings->lanes,
                                   .owns = p->job->parallel.zero > 0,
                                   .plan = &n->plan,
                                   .rank = rank,
                                   .shares = n->layout.shares };
}

static enum status measure_stage(struct stages_need *n, uint32_t index, struct reason *reason)
{
    const struct preview_stages *p = n->of;
    const uint32_t rank = widest_rank(n, index);
    const struct stage_options options = options_of(n, rank);
    struct stage_need *out = &n->stages[index];
    struct stage *stage = NULL;
    struct memory_need_options need = { .tape = p->tape,
                                        .settings = p->settings,
                                        .table = p->device->table,
                                        .backend = p->device->backend,
                                        .lane_count = n->layout.shares[rank],
                                        .evaluates = p->evaluates };
    if (n->layout.stage_count > 1) {
        enum status st = stage_open(&options, &stage, reason);
        if (st != ST_OK)
            return st == ST_NO_MEMORY ? fail(st, reason) : st;
        out->chunks = stage_chunks(stage);
        for (uint32_t c = 0; c < out->chunks; c++) {
            out->begin[c] = stage->node_begin[stage_part(stage, c)];
            out->end[c] = stage->node_begin[stage_part(stage, c) + 1];
        }
        out->stashes = stage->row->stashes;
        n->instead = stage->instead;
        need.stage = stage;
    } else if (p->job->parallel.zero > 0) {
        need.owners = n->layout.workers[0];
    }
    enum status st = memory_need_measure(&need, p->settings->micro_batch, &out->need);
    stage_close(stage);
    return st == ST_OK ? ST_OK : fail(st, reason);
}

static enum status measure(const struct preview_stages *preview, int64_t workers,
                           struct stages_need *n, struct reason *reason)
{
    const char *word = jobspec_pipeline_word(preview->job->parallel.schedule);
    *n = (struct stages_need){ .of = preview, .workers = workers };
    const bool known = pipeline_schedule_parse(word, &n->schedule);
    CHECK(known);
    enum status st = jobspec_layout_of(preview->job, workers, &n->layout);
    if (st != ST_OK)
        return fail(st, reason);
    n->plan.count = n->layout.stage_count;
    for (uint32_t i = 0; i < n->plan.count; i++) {
        n->plan.of[i].workers = n->layout.workers[i];
        n->plan.of[i].first_node = n->layout.first_node[i];
    }
    for (uint32_t i = 0; st == ST_OK && i < n->plan.count; i++) {
        st = measure_stage(n, i, reason);
        if (memory_need_total(&n->stages[i].need) > memory_need_total(&n->stages[n->most].need))
            n->most = i;
    }
    return st;
}

static const struct memory_need *most_of(const struct stages_need *n)
{
    return &n->stages[n->most].need;
}

/* The fewer there are, the more of the state each has; with one a stage each has the most
 * micro-batches under way. all: [NUMBERS]; all[0] was measured, with all the job is to have. */
static enum status measure_fewer(struct stages_need *all, uint32_t *out_count,
                                 struct reason *reason)
{
    const struct preview_stages *p = all->of;
    const int64_t min = p->job->workers.min, single = all->plan.count;
    enum status st = ST_OK;
    *out_count = 1;
    if (min < p->job->workers.count)
        st = measure(p, min, &all[(*out_count)++], reason);
    if (st == ST_OK && single > min && single < p->job->workers.count)
        st = measure(p, single, &all[(*out_count)++], reason);
    return st;
}

static enum status print_most(const struct stages_need *all, uint32_t count, struct buf *out)
{
    const struct stages_need *most = all;
    char text[MEMORY_NEED_TEXT];
    for (uint32_t i = 1; i < count; i++) {
        if (memory_need_total(most_of(&all[i])) > memory_need_total(most_of(most)))
            most = &all[i];
    }
    if (most == all) {
        return buf_printf(out, "worker     %.1f MiB at most: stage %u\n",
                          (double)memory_need_total(most_of(all)) / MIB, all->most);
    }
    memory_need_print(most_of(most), text, sizeof(text));
    return buf_printf(out, "worker     %.1f MiB at most, one of %lld worker%s: %s\n",
                      (double)memory_need_total(most_of(most)) / MIB, (long long)most->workers,
                      most->workers == 1 ? "" : "s", text);
}

static enum status print_notes(const struct stages_need *all, uint32_t count, struct buf *out)
{
    enum status st = ST_OK;
    if (all->instead.text[0] != '\0')
        return buf_printf(out, "note       %s\n", all->instead.text);
    for (uint32_t i = 1; st == ST_OK && i < count; i++) {
        if (all[i].instead.text[0] != '\0') {
            st = buf_printf(out, "note       with %lld workers: %s\n", (long long)all[i].workers,
                            all[i].instead.text);
        }
    }
    return st;
}

static enum status print_stage(const struct stages_need *n, uint32_t index, struct buf *out)
{
    const struct stage_need *stage = &n->stages[index];
    char text[MEMORY_NEED_TEXT];
    enum status st = buf_printf(out, "stage %-4u nodes ", index);
    for (uint32_t c = 0; st == ST_OK && c < stage->chunks; c++) {
        st =
            buf_printf(out, "%s%u to %u", c > 0 ? " and " : "", stage->begin[c], stage->end[c] - 1);
    }
    memory_need_print(&stage->need, text, sizeof(text));
    if (st != ST_OK)
        return st;
    return buf_printf(out, ": %.1f MiB with %u micro-batch%s at once: %s\n",
                      (double)memory_need_total(&stage->need) / MIB, stage->stashes,
                      stage->stashes == 1 ? "" : "es", text);
}

enum status preview_stages_print(const struct preview_stages *preview, struct buf *out,
                                 struct reason *reason)
{
    auto_free struct stages_need *all = calloc(NUMBERS, sizeof(*all));
    uint32_t count = 0;
    if (all == NULL)
        return fail(ST_NO_MEMORY, reason);
    enum status st = measure(preview, preview->job->workers.count, all, reason);
    if (st == ST_OK)
        st = measure_fewer(all, &count, reason);
    if (st == ST_OK)
        st = print_most(all, count, out);
    if (st == ST_OK)
        st = print_notes(all, count, out);
    for (uint32_t i = 0; st == ST_OK && i < all->plan.count; i++)
        st = print_stage(all, i, out);
    return st;
}

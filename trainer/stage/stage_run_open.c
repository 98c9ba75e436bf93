/* A stage's run: its memory. */
#include <stdlib.h>

#include "common/check.h"
#include "kernels/op.h"
#include "trainer/stage/stage_run_internal.h"

/* ---- memory ---- */

static enum status open_flight(struct stage_run *r, struct stage_flight *flight)
{
    const struct device *d = r->device;
    const struct stage *s = r->options.stage;
    struct memory_part parts[STAGE_CHUNKS_MAX + 1];
    size_t count = 0;
    void *memory = NULL;
    for (uint32_t c = 0; c < stage_chunks(s); c++) {
        const struct lane_extent *stats = &s->slice[stage_part(s, c)].part[LANE_STATS];
        if (stats->first < stats->end) {
            parts[count++] = (struct memory_part){ stats->first * sizeof(float),
                                                   (stats->end - stats->first) * sizeof(float) };
        }
    }
    parts[count++] = (struct memory_part){ r->layout.loss_at * sizeof(float),
                                           OPTIMIZER_SCALARS * sizeof(float) };
    enum status st =
        d->table->alloc_parts(d->backend, r->layout.count * sizeof(float), parts, count, &memory);
    flight->lane = memory;
    return st;
}

static enum status open_kept(struct stage_run *r, struct kept *kept)
{
    const struct device *d = r->device;
    const struct tape *tape = r->options.stage->options.tape;
    void *memory = NULL;
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < tape->input_count; i++) {
        if (stage_reads(r->options.stage, tape->inputs[i]))
            st = d->table->alloc(d->backend, r->input_bytes[i], &kept->inputs[i]);
    }
    if (st == ST_OK)
        st = d->table->alloc(d->backend, r->draw_bytes, &memory);
    kept->draw = memory;
    return st;
}

/* A micro-batch is in the other chunks between its forward and backward in the first one. */
uint32_t stage_run_kept(const struct stage *stage)
{
    const struct pipeline_row *row = stage->row;
    uint32_t live = 0, most = 0;
    for (uint32_t k = 0; k < row->count; k++) {
        const struct pipeline_action *a = &row->actions[k];
        live += a->chunk == 0 && a->kind == PIPELINE_F;
        most = live > most ? live : most;
        live -= a->chunk == 0 && (a->kind == PIPELINE_B || a->kind == PIPELINE_W);
    }
    return most;
}

/* Room for the gradients that go to the stage before. */
static enum status open_outboxes(struct stage_run *r)
{
    const struct device *d = r->device;
    size_t bytes = 0;
    enum status st = ST_OK;
    for (uint32_t c = 0; c < stage_chunks(r->options.stage); c++) {
        struct plan_border border;
        size_t all = 0;
        plan_border(r->plans[c], PLAN_BEFORE, PLAN_BACKWARD, 0, &border);
        for (int i = 0; i < border.count; i++)
            all += border.tensor[i].bytes;
        bytes = all > bytes ? all : bytes;
    }
    for (int i = 0; st == ST_OK && bytes > 0 && i < OUTBOXES; i++)
        st = d->table->alloc(d->backend, bytes, &r->outboxes[i].memory);
    return st;
}

enum status stage_run_open(const struct stage_run_options *options, struct stage_run **out)
{
    struct stage_run *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ST_NO_MEMORY;
    const struct stage *s = options->stage;
    const struct tape *tape = s->options.tape;
    r->options = *options;
    r->device = s->options.device;
    r->layout = lane_layout(tape);
    r->plans = options->plans;
    r->stashes = s->row->stashes;
    r->kept_count = stage_run_kept(s);
    r->draw_bytes = (OP_DRAW_SAMPLES + (size_t)options->batch) * sizeof(uint32_t);
    for (int i = 0; i < tape->input_count; i++) {
        r->input_bytes[i] = tape->values[tape->inputs[i]].tensor.bytes * (size_t)options->batch;
    }
    CHECK(r->stashes > 0 && r->kept_count > 0); /* each row has a forward */
    r->flights = calloc(r->stashes, sizeof(*r->flights));
    r->kept = calloc(r->kept_count, sizeof(*r->kept));
    enum status st = r->flights == NULL || r->kept == NULL ? ST_NO_MEMORY : ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < r->stashes; i++)
        st = open_flight(r, &r->flights[i]);
    for (uint32_t i = 0; st == ST_OK && i < r->kept_count; i++)
        st = open_kept(r, &r->kept[i]);
    if (st == ST_OK)
        st = open_outboxes(r);
    if (st != ST_OK) {
        stage_run_close(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void stage_run_close(struct stage_run *run)
{
    struct stage_run *r = run;
    if (r == NULL)
        return;
    const struct device *d = r->device;
    for (uint32_t i = 0; r->kept != NULL && i < r->kept_count; i++) {
        struct kept *kept = &r->kept[i];
        for (int k = 0; k < TAPE_INPUTS_MAX; k++) {
            if (kept->inputs[k] != NULL)
                d->table->free(d->backend, kept->inputs[k]);
        }
        if (kept->draw != NULL)
            d->table->free(d->backend, kept->draw);
    }
    for (uint32_t i = 0; r->flights != NULL && i < r->stashes; i++) {
        if (r->flights[i].lane != NULL) {
            d->table->free_parts(d->backend, r->flights[i].lane, r->layout.count * sizeof(float));
        }
    }
    for (int i = 0; i < OUTBOXES; i++) {
        if (r->outboxes[i].memory != NULL)
            d->table->free(d->backend, r->outboxes[i].memory);
    }
    free(r->flights);
    free(r->kept);
    free(r);
}

void stage_run_connect(struct stage_run *run, struct comm *pipe)
{
    run->pipe = pipe;
    run->asked = run->unasked = 0;
    for (uint32_t i = 0; i < run->stashes; i++) {
        struct stage_flight *flight = &run->flights[i];
        flight->value_in.count = flight->value_out.count = 0;
        flight->gradients_in.count = 0;
    }
    for (int i = 0; i < OUTBOXES; i++)
        run->outboxes[i].message.count = 0;
}

enum status stage_run_copy(struct stage_run *run, void *to, const void *from, size_t bytes)
{
    const struct device *d = run->device;
    return d->table->vector.copy(d->backend, to, from, bytes, d->compute);
}

/* Functions for opening a worker and for taking it from generation to generation. */
#include "trainer/worker/worker_internal.h"

#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "trainer/worker/memory_need.h"

enum status worker_fail(enum status st, const char *cause, struct reason *reason)
{
    reason_set(reason, "%s: %s", cause, status_string(st));
    return st;
}

enum status worker_fail_device(const struct worker *w, enum status st, const char *cause,
                               struct reason *reason)
{
    const struct device *d = &w->device;
    if (d->table->why == NULL)
        return worker_fail(st, cause, reason);
    reason_set(reason, "%s: %s: %s", cause, status_string(st), d->table->why(d->backend));
    return st;
}

enum status worker_note_of_node(const struct worker *w, enum status st)
{
    if (st != ST_OK && w->options.of_node != NULL)
        *w->options.of_node = true;
    return st;
}

struct memory_need_options worker_memory_options(const struct worker *w)
{
    return (struct memory_need_options){ .tape = w->tape,
                                         .settings = &w->settings,
                                         .table = w->device.table,
                                         .backend = w->device.backend,
                                         .lane_count = w->lane_count,
                                         .owners = w->ownership.options.owns ? w->options.size : 0,
                                         .evaluates = w->eval.dataset != NULL,
                                         .stage = w->stage };
}

enum status worker_out_of_memory(struct worker *w, const char *what, struct reason *reason)
{
    const struct memory_need_options options = worker_memory_options(w);
    struct memory_need need;
    char parts[256] = "";
    if (memory_need_measure(&options, w->settings.micro_batch, &need) == ST_OK)
        memory_need_print(&need, parts, sizeof(parts));
    reason_set(reason,
               "device %s: not enough memory for %s (%s); make train.micro_batch smaller%s%s",
               w->device.table->name, what, parts,
               w->settings.math == MATH_F32 ? ", set train.precision: bf16" : "",
               w->device.table->host_memory ? "" : ", or set workers.memory: managed");
    return ST_NO_MEMORY;
}

enum status worker_data_status(const struct worker *w, enum status st)
{
    return st == ST_CONFIG && w->options.data_known ? ST_CHANGED : st;
}

enum status worker_join_loader(const struct worker *w, struct worker_loader *loader,
                               struct reason *reason)
{
    if (loader->running)
        (void)pthread_join(loader->thread, NULL);
    loader->running = false;
    if (loader->st != ST_OK)
        *reason = loader->reason;
    return worker_data_status(w, loader->st);
}

/* Copies the scale to the device. The copy before has ended: every step waits for what decides
 * about its update, which comes after that copy on the stream. */
enum status worker_write_scale(struct worker *w)
{
    if (w->loss_scale == NULL)
        return ST_OK;
    *w->loss_scale_staged = (float)w->scaler.scale;
    return w->device.table->vector.copy(w->device.backend, w->loss_scale, w->loss_scale_staged,
                                        sizeof(float), w->device.compute);
}

static struct worker_group find_group(const struct worker_options *o)
{
    struct worker_group group = { .rank = o->rank, .size = o->size, .shares = o->shares };
    for (uint32_t i = 0; o->stages != NULL && i < o->stages->count; i++) {
        group.size = o->stages->of[i].workers;
        if (group.rank < group.size)
            break;
        group.rank -= group.size;
        group.first += group.size;
        group.shares += group.size;
    }
    return group;
}

enum status worker_cut_lanes(struct worker *w, struct reason *reason)
{
    const struct worker_options *o = &w->options;
    uint64_t lanes = 0;
    CHECK(o->size > 0);
    CHECK(o->rank < o->size);
    w->group = find_group(o);
    CHECK(w->group.rank < w->group.size);
    for (uint32_t r = 0; r < w->group.size; r++) {
        if (r == w->group.rank) {
            w->lanes = w->order + lanes;
            w->lane_count = w->group.shares[r];
        }
        if (w->group.shares[r] == 0)
            return worker_fail(ST_INVALID, "the plan gives a rank no lane", reason);
        lanes += w->group.shares[r];
    }
    CHECK(o->job->train.lanes <= LIMIT_LANES);
    if (lanes != (uint64_t)o->job->train.lanes)
        return worker_fail(ST_INVALID, "the plan's shares are not the job's lanes", reason);
    reducer_spread(w->group.shares, w->group.size, w->order);
    return ST_OK;
}

bool worker_is_staged(const struct worker *w)
{
    return w->options.stages != NULL && w->options.stages->count > 1;
}

void worker_each_comm(struct worker *w, void (*call)(struct comm *comm))
{
    struct worker_comms *c = &w->comms;
    struct comm *all[] = { c->world, c->group == c->world ? NULL : c->group, c->pipe };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] != NULL)
            call(all[i]);
    }
}

void worker_close_comms(struct worker *w)
{
    if (w->device.comm != NULL)
        worker_each_comm(w, w->device.comm->close);
    w->comms = (struct worker_comms){ NULL };
    w->comm = NULL;
}

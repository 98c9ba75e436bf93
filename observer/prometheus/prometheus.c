#include "observer/prometheus/prometheus.h"

#include "observer/prometheus/plan.h"
#include "observer/prometheus/put.h"

/* Bytes for the heads of all families, and for what the observer says of itself. A test compares it
 * with the tables. */
#define ALWAYS_BYTES ((size_t)64 * 1024)

static enum status put_of_jobs(const struct prometheus_family *family, enum prometheus_of of,
                               const struct prometheus_plan *plan, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < plan->jobs.count; i++) {
        const struct prometheus_subject one = prometheus_job_subject(&plan->jobs.list[i]);
        if (of == PROMETHEUS_OF_JOB) {
            st = prometheus_put_family(family, of, &one, out);
        } else if (plan->jobs.list[i].parts) {
            st = prometheus_put_parts(family, of, &one, out);
        }
    }
    return st;
}

static enum status put_of_nodes(const struct prometheus_family *family, enum prometheus_of of,
                                const struct prometheus_plan *plan, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < plan->nodes.count; i++) {
        const struct prometheus_subject one = prometheus_node_subject(&plan->nodes.list[i]);
        if (of == PROMETHEUS_OF_NODE) {
            st = prometheus_put_family(family, of, &one, out);
        } else if (plan->nodes.list[i].parts) {
            st = prometheus_put_parts(family, of, &one, out);
        }
    }
    return st;
}

static void cut(struct buf *out, size_t size)
{
    out->size = size;
    if (out->data != NULL)
        out->data[size] = '\0';
}

/* Writes one family: its head, and all its lines. Writes nothing if it has no lines. */
static enum status put_whole(const struct prometheus_family *family, enum prometheus_of of,
                             const struct prometheus_view *view, const struct prometheus_plan *plan,
                             struct buf *out)
{
    const struct prometheus_subject self = { .view = view,
                                             .left_out = &plan->left_out,
                                             .labels = "" };
    const size_t before = out->size;
    enum status st = buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help,
                                family->name, family->type);
    const size_t head = out->size;
    if (st != ST_OK)
        return st;
    switch (of) {
    case PROMETHEUS_OF_OBSERVER:
        st = prometheus_put_family(family, of, &self, out);
        break;
    case PROMETHEUS_OF_JOB:
    case PROMETHEUS_OF_WORKER:
        st = put_of_jobs(family, of, plan, out);
        break;
    case PROMETHEUS_OF_NODE:
    case PROMETHEUS_OF_GPU:
        st = put_of_nodes(family, of, plan, out);
        break;
    case PROMETHEUS_OF_COUNT:
        break;
    }
    if (st == ST_OK && out->size == head)
        cut(out, before);
    return st;
}

static enum status put_all(const struct prometheus_view *view, const struct prometheus_plan *plan,
                           struct buf *out)
{
    enum status st = ST_OK;
    for (enum prometheus_of of = PROMETHEUS_OF_OBSERVER; of < PROMETHEUS_OF_COUNT; of++) {
        const struct prometheus_table table = prometheus_families(of);
        for (size_t i = 0; st == ST_OK && i < table.count; i++)
            st = put_whole(&table.list[i], of, view, plan, out);
    }
    return st;
}

enum status prometheus_write(const struct prometheus_view *view, struct buf *out)
{
    const size_t before = out->size;
    size_t room = out->size_max - out->size;
    room = room < PROMETHEUS_BYTES_MAX ? room : PROMETHEUS_BYTES_MAX;
    if (room < ALWAYS_BYTES)
        return ST_FULL;
    struct prometheus_plan plan;
    enum status st = prometheus_plan_make(view, room - ALWAYS_BYTES, &plan);
    if (st == ST_OK)
        st = put_all(view, &plan, out);
    if (st != ST_OK)
        cut(out, before);
    prometheus_plan_release(&plan);
    return st;
}

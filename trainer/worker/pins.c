/* The pins, on which bits depend beside the job, as its workers report them. */
#include "trainer/worker/worker_internal.h"

/* Appends the pins of the data, which come last: server/coord tells them from the others. */
static enum status append_data_pins(const struct worker *w, struct buf *out)
{
    enum status st = buf_append_text(out, ",\"data\":{\"train\":");
    if (st == ST_OK)
        st = dataset_print_identity(w->train.dataset, out);
    if (st == ST_OK && w->eval.dataset != NULL)
        st = buf_append_text(out, ",\"eval\":");
    if (st == ST_OK && w->eval.dataset != NULL)
        st = dataset_print_identity(w->eval.dataset, out);
    return st == ST_OK ? buf_append_text(out, "}") : st;
}

/* Waits for the data, whose identity is known once they are loaded, in threads of their own. */
static enum status wait_for_data(struct worker *w, struct reason *reason)
{
    enum status st = worker_note_of_node(w, worker_join_loader(w, &w->train, reason));
    if (st == ST_OK)
        st = worker_note_of_node(w, worker_join_loader(w, &w->eval, reason));
    return st;
}

enum status worker_pins(struct worker *worker, struct buf *out, struct reason *reason)
{
    enum status st = wait_for_data(worker, reason);
    if (st == ST_OK)
        st = buf_printf(out, "{");
    if (st == ST_OK)
        st = worker->device.table->pins(worker->device.backend, out);
    if (st == ST_OK)
        st = buf_append_text(out, ",\"implementations\":");
    if (st == ST_OK)
        st = plan_pins(worker->plans[0], out);
    if (st == ST_OK && worker->options.job->train.micro_batch == 0)
        st = buf_printf(out, ",\"micro_batch\":%u", worker->settings.micro_batch);
    if (st == ST_OK && worker->model_pins[0] != '\0')
        st = buf_printf(out, ",\"model\":%s", worker->model_pins);
    if (st == ST_OK && worker_is_fast(worker))
        st = buf_append_text(out, ",\"reduction\":\"fast\"");
    if (st == ST_OK)
        st = append_data_pins(worker, out);
    if (st == ST_OK)
        st = buf_append_text(out, "}");
    if (st != ST_FULL)
        return st;
    reason_set(reason, "the names of the data's files are too long: move them to a folder with a "
                       "short name");
    return ST_CONFIG;
}

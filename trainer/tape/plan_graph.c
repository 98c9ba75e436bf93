/*
 * Recording pieces of a pass and playing them again.
 *
 * A piece's calls depend on the plan and on the pointers of the call alone (record_key), so they
 * are recorded once per such set. The first time it runs as usual, since libraries load code at its
 * first use; the second time it is recorded and played; from then on only played. Nothing else is
 * ever recorded: ready's callers, what is told to the host and the count of micro-batches are
 * outside.
 */
#include <string.h>

#include "trainer/tape/plan_internal.h"

static struct record_key key_of(const struct plan_call *call)
{
    struct record_key key;
    memset(&key, 0, sizeof key);
    memcpy(key.inputs, call->inputs, sizeof key.inputs);
    key.params = call->params;
    key.stats = call->stats;
    key.lane = call->lane;
    key.draw = call->draw;
    key.loss_scale = call->loss_scale;
    key.first = call->micro == 0;
    return key;
}

/* A record that was there before, or a new one with *out_new set; NULL: no room. */
static struct record *find(struct plan *plan, const struct record_key *key, struct piece piece,
                           bool *out_new)
{
    for (int i = 0; i < plan->record_count; i++) {
        struct record *record = &plan->records[i];
        if (record->piece.begin == piece.begin && record->piece.backward == piece.backward &&
            memcmp(&record->key, key, sizeof *key) == 0)
            return record;
    }
    if (plan->record_count == PLAN_RECORDS_MAX)
        return NULL;
    struct record *record = &plan->records[plan->record_count++];
    *record = (struct record){ .key = *key, .piece = piece, .graph = NO_GRAPH };
    *out_new = true;
    return record;
}

/* ST_INVALID: this backend records nothing; ST_FULL: no more. Nothing has run in both cases. */
static enum status record(struct plan *plan, const struct plan_call *call, struct piece piece,
                          int *out_graph)
{
    const struct plan_options *options = &plan->options;
    enum status st = options->table->capture_begin(options->backend, options->stream);
    if (st != ST_OK)
        return st;
    st = plan_run_piece(plan, call, piece);
    int graph = NO_GRAPH;
    enum status ended = options->table->capture_end(options->backend, options->stream, &graph);
    if (st != ST_OK)
        return st;
    if (ended == ST_OK)
        *out_graph = graph;
    return ended;
}

static enum status play(const struct plan *plan, const struct record *record)
{
    const struct plan_options *options = &plan->options;
    enum status st = options->table->replay(options->backend, record->graph, options->stream);
    if (st == ST_OK && options->progress != NULL) {
        const struct piece *piece = &record->piece;
        options->progress(options->progress_arg, piece->backward ? piece->begin : piece->end - 1,
                          piece->backward);
    }
    return st;
}

enum status plan_piece(struct plan *plan, const struct plan_call *call, struct piece piece)
{
    if (plan->records == NULL)
        return plan_run_piece(plan, call, piece);
    struct record_key key = key_of(call);
    bool is_new = false;
    struct record *at = find(plan, &key, piece, &is_new);
    if (at == NULL || is_new || at->refused)
        return plan_run_piece(plan, call, piece);
    if (at->graph == NO_GRAPH) {
        enum status st = record(plan, call, piece, &at->graph);
        if (st == ST_INVALID || st == ST_FULL) {
            at->refused = true;
            return plan_run_piece(plan, call, piece);
        }
        if (st != ST_OK)
            return st;
    }
    return play(plan, at);
}

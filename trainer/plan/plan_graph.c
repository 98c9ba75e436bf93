/*
 * Recording sections of a pass and playing them again.
 *
 * A section's calls depend on the plan and on the pointers of the call alone (struct
 * plan_recording_key), so they are recorded once per set of pointers:
 *
 *   first time    run as usual, since libraries load code at its first use
 *   second time   recorded, then played
 *   from then on  played
 *
 * On a backend that records nothing (the CPU) a section is always run.
 *
 * Copies of parameters (plan_refresh) are a section, too: a hundred casts in one call.
 *
 * Nothing else is ever recorded: what plan_backward's callback enqueues, what goes to the host and
 * the count of micro-batches stand outside of sections.
 */
#include <string.h>

#include "common/check.h"
#include "trainer/plan/plan_internal.h"

static struct plan_recording_key key_of(const struct plan_call *call)
{
    struct plan_recording_key key;
    memset(&key, 0, sizeof(key)); /* padding, too: keys are compared byte by byte */
    memcpy(key.inputs, call->inputs, sizeof(key.inputs));
    key.params = call->params;
    key.stats = call->stats;
    key.lane = call->lane;
    key.draw = call->draw;
    key.loss_scale = call->loss_scale;
    key.first = call->micro == 0;
    key.stash = (uint64_t)call->stash;
    return key;
}

/* Returns the recording of a section and key, or a new one with *out_new set; NULL: no room. */
static struct plan_recording *find_recording(struct plan *plan,
                                             const struct plan_recording_key *key,
                                             struct plan_section section, bool *out_new)
{
    for (int i = 0; i < plan->recording_count; i++) {
        struct plan_recording *recording = &plan->recordings[i];
        const struct plan_section *other = &recording->section;
        if (other->begin == section.begin && other->end == section.end &&
            other->pass == section.pass && memcmp(&recording->key, key, sizeof(*key)) == 0)
            return recording;
    }
    if (plan->recording_count == PLAN_RECORDINGS_MAX)
        return NULL;
    struct plan_recording *recording = &plan->recordings[plan->recording_count++];
    *recording = (struct plan_recording){ .key = *key, .section = section, .graph = NO_GRAPH };
    *out_new = true;
    return recording;
}

/* ST_INVALID: this backend records nothing; ST_FULL: no more. Nothing has run in both cases. */
static enum status record_section(struct plan *plan, const struct plan_call *call,
                                  struct plan_section section, int *out_graph)
{
    const struct plan_options *options = &plan->options;
    enum status st = options->table->capture_begin(options->backend, options->stream);
    if (st != ST_OK)
        return st;
    st = plan_nodes_run(plan, call, section);
    int graph = NO_GRAPH;
    enum status ended = options->table->capture_end(options->backend, options->stream, &graph);
    if (st != ST_OK)
        return st;
    if (ended == ST_OK)
        *out_graph = graph;
    return ended;
}

static enum status play(const struct plan *plan, const struct plan_recording *recording)
{
    const struct plan_options *options = &plan->options;
    enum status st = options->table->replay(options->backend, recording->graph, options->stream);
    const struct plan_section *section = &recording->section;
    const bool forward = section->pass == PLAN_PASS_FORWARD;
    const int last = forward ? section->end - 1 : section->begin;
    if (st != ST_OK || plan_refreshes(section->pass))
        return st;
    return plan_nodes_report(plan, last, !forward);
}

/* Nothing is recorded of a section that calls no kernel. */
static bool is_empty(const struct plan *plan, struct plan_section section)
{
    bool empty = section.pass != PLAN_PASS_FORWARD;
    for (int n = section.begin; empty && n < section.end; n++) {
        const struct plan_node *node = &plan->nodes[n];
        const bool inputs = node->din[0] != NO_REGION || node->din[1] != NO_REGION ||
                            node->adaptation_count > 0 || node->again_begin != NO_NODE;
        const bool params = plan->tape->nodes[n].param[0] >= 0;
        if (plan_refreshes(section.pass)) {
            empty = !plan_is_refreshed(node, section.pass);
            continue;
        }
        empty = !node->backward || (section.pass == PLAN_PASS_INPUTS && !inputs) ||
                (section.pass == PLAN_PASS_PARAMS && !params);
    }
    return empty;
}

enum status plan_section_run(struct plan *plan, const struct plan_call *call,
                             struct plan_section section)
{
    CHECK(section.begin < section.end);
    if (plan->recordings == NULL || is_empty(plan, section))
        return plan_nodes_run(plan, call, section);
    struct plan_recording_key key = key_of(call);
    bool is_new = false;
    struct plan_recording *recording = find_recording(plan, &key, section, &is_new);
    if (recording == NULL || is_new || recording->refused)
        return plan_nodes_run(plan, call, section);
    if (recording->graph == NO_GRAPH) {
        enum status st = record_section(plan, call, section, &recording->graph);
        if (st == ST_INVALID || st == ST_FULL) {
            recording->refused = true;
            return plan_nodes_run(plan, call, section);
        }
        if (st != ST_OK)
            return st;
    }
    return play(plan, recording);
}

/* CheckPaths: the paths between nodes, tried pair by pair (server/fleet/pairs.h), as they are done.
 * What isn't sent yet holds the check up, so a slow reader costs no memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/unconst.h"
#include "server/api/api.h"

/* The first update: what is tried, and what isn't. */
static void send_summary(struct api *api, struct rpc_call *call, bool of_all)
{
    const struct pairs *pairs = coord_pairs(api->coord);
    auto_free struct coord_node **nodes = calloc(LIMIT_NODES, sizeof(void *));
    auto_free struct reason *texts = calloc(LIMIT_NODES, sizeof(*texts));
    auto_free char **left_out = calloc(LIMIT_NODES, sizeof(void *));
    Cairn__V1__CheckPathsUpdate update = CAIRN__V1__CHECK_PATHS_UPDATE__INIT;
    update.nodes = pairs->count;
    update.pairs = pairs->total;
    update.ring = pairs->ring;
    update.left_out = left_out;
    const size_t count = of_all && nodes != NULL && texts != NULL && left_out != NULL
                             ? coord_nodes(api->coord, nodes, LIMIT_NODES)
                             : 0;
    for (size_t i = 0; i < count; i++) {
        const char *hinder = coord_pairs_hinder(api->coord, nodes[i]);
        if (hinder == NULL)
            continue;
        reason_set(&texts[i], "%.100s: %s", nodes[i]->name, hinder);
        left_out[update.n_left_out++] = texts[i].text;
    }
    (void)rpc_call_send(call, &update.base);
}

void api_check_paths(Cairn__V1__Control_Service *service, const Cairn__V1__CheckPathsRequest *in,
                     Cairn__V1__CheckPathsUpdate_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    struct reason reason = { "" };
    (void)reply;
    if (in->n_nodes > LIMIT_NODES) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "%d nodes at most", LIMIT_NODES);
        return;
    }
    struct api_stream *stream = api_stream_new(api, call, API_PAIRS, "");
    if (stream == NULL)
        return;
    const enum status st = coord_pairs_begin(api->coord, (const char *const *)in->nodes,
                                             in->n_nodes, in->all, &reason);
    stream->begun = st == ST_OK;
    if (st == ST_OK) {
        send_summary(api, call, in->n_nodes == 0);
    } else if (st == ST_AGAIN) {
        api_refuse(call, RPC_RESOURCE_EXHAUSTED,
                   "somebody else has the paths checked now: try again when that is done");
    } else {
        api_refuse(call, st == ST_REFUSED ? RPC_FAILED_PRECONDITION : rpc_code_from_status(st),
                   "%s", reason.text[0] ? reason.text : status_string(st));
    }
}

static void fill_row(const struct pairs *pairs, const struct pairs_try *done, int at,
                     struct reason *way_out, Cairn__V1__PathCheck *row)
{
    const struct pairs_side *side = &done->side[at];
    cairn__v1__path_check__init(row);
    pairs_way_out(pairs, done, at, way_out);
    row->from = pairs->names[done->node[at]];
    row->to = pairs->names[done->node[!at]];
    row->ok = pairs_side_ok(side);
    row->reach_ms = side->reached && side->reach_us > 0 ? (double)side->reach_us / 1e3 : NAN;
    row->megabytes_per_s = side->measured ? (double)side->bytes / (double)side->took_us : NAN;
    row->saw = unconst(side->saw);
    row->way_out = way_out->text;
}

void api_pairs_pump(struct api *api, struct api_stream *stream)
{
    const struct pairs *pairs = coord_pairs(api->coord);
    struct pairs_try done;
    if (!stream->begun)
        return;
    while (rpc_call_queued(stream->call) < API_QUEUE_MAX && coord_pairs_fetch(api->coord, &done)) {
        Cairn__V1__CheckPathsUpdate update = CAIRN__V1__CHECK_PATHS_UPDATE__INIT;
        Cairn__V1__PathCheck rows[2], *links[2] = { &rows[0], &rows[1] };
        struct reason way_out[2];
        for (int at = 0; at < 2; at++)
            fill_row(pairs, &done, at, &way_out[at], &rows[at]);
        update.paths = links;
        update.n_paths = 2;
        (void)rpc_call_send(stream->call, &update.base);
    }
    if (pairs_over(pairs)) {
        rpc_call_finish(stream->call, RPC_OK, NULL);
        stream->at = INT64_MAX;
    } else if (pairs->done_count > 0) {
        stream->at = clock_mono_ms(coord_options(api->coord)->clock) + API_BACKLOG_MS;
    }
}

void api_pairs_over(struct api *api, const struct api_stream *stream)
{
    if (stream->begun)
        coord_pairs_end(api->coord);
}

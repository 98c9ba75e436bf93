/* The communicators of a rank: opened for a generation, aborted by an order to park. */
#include <stdio.h>
#include <stdlib.h>

#include "trainer/program/rank_parts.h"

/* Ranks on one device wait for each other inside their collectives: those must leave room. */
#define SHARED_BLOCKS 4

/* The step thread unwinds, to park. */
void rank_abort_communication(void *arg, const char *reason)
{
    struct rank *r = arg;
    LOG_INFO(r->log, "generation %u ends: %s", r->generation, reason);
    progress_stop(&r->progress); /* computing alone ends with the micro-batch */
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->aborted = true;
    for (int i = 0; i < RANK_COMMS; i++) {
        if (r->comms[i].comm != NULL)
            r->comms[i].table->abort(r->comms[i].comm);
    }
    if (r->command != NULL)
        command_stop(r->command, COMMAND_PARKS);
    (void)pthread_mutex_unlock(&r->comm_mutex);
}

/* An order to park may have come before there was anything to abort. */
static void register_comm(struct rank *r, enum rank_comm_use use, const struct comm_table *table,
                          struct comm *comm)
{
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->comms[use] = (struct rank_comm){ table, comm };
    if (comm != NULL && r->aborted)
        table->abort(comm);
    (void)pthread_mutex_unlock(&r->comm_mutex);
}

void rank_disconnect(struct rank *r)
{
    register_comm(r, RANK_COMM_WORLD, NULL, NULL);
    register_comm(r, RANK_COMM_GROUP, NULL, NULL);
    register_comm(r, RANK_COMM_PIPE, NULL, NULL);
    if (r->worker != NULL)
        worker_disconnect(r->worker);
}

/* The environment of NCCL that the job gives, and where its work goes. A rank's reduction may be
 * under way before its last gradients have gone back, on which its peers' reduction waits: what
 * crosses stages is not behind it on one stream. */
static void comm_settings(struct rank *r, enum rank_comm_use use, struct comm_device *out)
{
    const struct device *device = &r->worker->device;
    for (int i = 0; i < JOBSPEC_ENV_MAX && r->job->nccl[i].name[0] != '\0'; i++) {
        (void)snprintf(r->nccl_text[i], sizeof(r->nccl_text[i]), "%s=%s", r->job->nccl[i].name,
                       r->job->nccl[i].value);
        r->nccl[i] = r->nccl_text[i];
        out->setting_count = (size_t)i + 1;
    }
    out->table = device->table;
    out->backend = device->backend;
    out->stream = use == RANK_COMM_PIPE ? device->pipe : device->communication;
    out->compute = device->compute;
    out->settings = r->nccl;
    out->device_shared = getenv("CAIRN_SHARED_DEVICE") != NULL;
    out->blocks_max = out->device_shared ? SHARED_BLOCKS : 0;
}

static struct comm_options comm_options_of(const struct rank *r, const char *round_name)
{
    return (struct comm_options){ .rendezvous = session_rendezvous(r->session),
                                  .round_name = round_name,
                                  .rank = (int)r->assignment.rank,
                                  .size = (int)r->assignment.size,
                                  .host = r->assignment.host,
                                  .secret = rank_token(r),
                                  .timeout_ms = RANK_COMM_OPEN_MS,
                                  .log = r->log };
}

static void note_not_met(struct rank *r, enum status st)
{
    reason_set(&r->reason, "the workers did not find each other at %s: %s", r->assignment.host,
               st == ST_FULL ? "no port of --ports is free there" : status_string(st));
}

/* Maps a failed socket to ST_PEER, since it is no failure of the store: the job tries again, later
 * or elsewhere. */
static enum status met_later(enum status st)
{
    return st == ST_FULL || st == ST_IO ? ST_PEER : st;
}

/* Opens one of the worker's communicators. members: its ranks; NULL: all. */
static enum status open_comm(struct rank *r, enum rank_comm_use use, const char *round_name,
                             const int *members, uint32_t count, const bool *connected,
                             struct comm **out)
{
    const struct device *device = &r->worker->device;
    struct comm_options options = comm_options_of(r, round_name);
    options.members = members;
    options.member_count = (int)count;
    options.connected = connected;
    comm_settings(r, use, &options.device);
    progress_collective_begin(&r->progress, "open");
    enum status st = device->comm->open(&options, out);
    if (st != ST_OK) {
        note_not_met(r, st);
        return met_later(st);
    }
    register_comm(r, use, device->comm, *out);
    progress_collective_end(&r->progress, "open");
    return ST_OK;
}

/* Opens the other communicators of a pipeline: all ranks come to each round. */
static enum status open_stage_comms(struct rank *r, struct worker_comms *comms)
{
    const struct worker_group *group = &r->worker->group;
    const uint32_t size = r->assignment.size;
    int members[LIMIT_RANKS];
    bool connected[LIMIT_RANKS];
    for (uint32_t i = 0; i < group->size; i++)
        members[i] = (int)(group->first + i);
    enum status st =
        open_comm(r, RANK_COMM_GROUP, "group", members, group->size, NULL, &comms->group);
    for (uint32_t i = 0; i < size; i++) {
        members[i] = (int)i;
        connected[i] = worker_is_neighbour(r->worker, i);
    }
    if (st == ST_OK)
        st = open_comm(r, RANK_COMM_PIPE, "pipe", members, size, connected, &comms->pipe);
    return st;
}

enum status rank_connect(struct rank *r)
{
    const struct device *device = &r->worker->device;
    struct worker_comms comms = { NULL };
    enum status st = ST_OK;
    if (r->assignment.size > 1 && device->comm == NULL) {
        reason_set(&r->reason, "device %s: the module was built without NCCL; set workers.count: 1",
                   device->table->name);
        return ST_CONFIG;
    }
    if (r->assignment.size > 1)
        st = open_comm(r, RANK_COMM_WORLD, "workers", NULL, 0, NULL, &comms.world);
    comms.group = comms.world;
    if (st == ST_OK && r->worker->stage != NULL)
        st = open_stage_comms(r, &comms);
    const enum status connected = worker_connect(r->worker, &comms, &r->reason);
    return st == ST_OK ? connected : st;
}

enum status rank_open_host_comm(struct rank *r, const char *round_name, struct comm **out)
{
    const struct comm_options options = comm_options_of(r, round_name);
    enum status st = comm_gloo()->open(&options, out);
    if (st == ST_OK) {
        register_comm(r, RANK_COMM_STATE, comm_gloo(), *out);
        return ST_OK;
    }
    note_not_met(r, st);
    return met_later(st);
}

void rank_close_host_comm(struct rank *r, enum status st)
{
    struct comm *comm = r->comms[RANK_COMM_STATE].comm;
    register_comm(r, RANK_COMM_STATE, NULL, NULL);
    if (comm == NULL)
        return;
    const int blamed = comm_gloo()->blamed(comm);
    if (st == ST_PEER && blamed >= 0 && r->blamed == 0)
        r->blamed = 1 + (uint32_t)blamed;
    if (st != ST_OK)
        comm_gloo()->abort(comm);
    comm_gloo()->close(comm);
}

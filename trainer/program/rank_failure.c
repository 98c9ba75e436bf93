/* Failures of a rank, as the coordinator and the exit code report them. */
#include "common/check.h"
#include "trainer/program/rank_parts.h"

#define OVER_MS INT64_C(10000) /* until the coordinator has said that all is over, or to park */

/* Report of a failure: to the coordinator, and as the exit code. */
struct failure {
    Cairn__V1__FaultKind kind;
    enum rank_exit code;
    bool wait; /* to be told that the generation is over */
};

static struct failure failure_of(enum status st, enum phase phase, bool at_store)
{
    const struct failure store = { CAIRN__V1__FAULT_KIND__STORE, RANK_CHECKPOINT, true };
    const struct failure unknown = { CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED, RANK_FAILED,
                                     true };
    const struct failure communication = { phase == PHASE_FORMING
                                               ? CAIRN__V1__FAULT_KIND__FORMATION
                                               : CAIRN__V1__FAULT_KIND__COMMUNICATION,
                                           RANK_COMMUNICATION, true };
    switch (st) {
    case ST_UNREACHABLE:
    case ST_CLOSED:
        return at_store ? store : unknown;
    case ST_CONFIG:
        if (at_store) /* its credentials, its bucket: it was good when it was written to */
            return store;
        return (struct failure){ CAIRN__V1__FAULT_KIND__USER, RANK_USER, false };
    case ST_TOO_LONG:
        return (struct failure){ CAIRN__V1__FAULT_KIND__USER, RANK_USER, false };
    case ST_CHANGED:
        return (struct failure){ CAIRN__V1__FAULT_KIND__DATA_CHANGED, RANK_FAILED, true };
    case ST_WRONG:
        return (struct failure){ CAIRN__V1__FAULT_KIND__WRONG, RANK_FAILED, true };
    case ST_NUMERIC:
        return (struct failure){ CAIRN__V1__FAULT_KIND__NUMERIC, RANK_NUMERIC, true };
    case ST_TIMED_OUT:
        return at_store ? store : communication;
    case ST_PEER:
    case ST_STALE:
        return communication;
    case ST_VERSION: /* nothing is known to be bad */
        return at_store ? store : unknown;
    case ST_CORRUPT:
    case ST_INCOMPLETE:
        return (struct failure){ CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT, RANK_CHECKPOINT, true };
    case ST_IO:
    case ST_AWAY:
    case ST_FORGOTTEN:
    case ST_FULL:
    case ST_NOT_FOUND:
    case ST_REFUSED:
    case ST_EXISTS:
        return store;
    case ST_NO_MEMORY:
        return (struct failure){ CAIRN__V1__FAULT_KIND__OUT_OF_MEMORY, RANK_FAILED, true };
    case ST_OK:
    case ST_AGAIN:
    case ST_INVALID:
    case ST_DEVICE:
        break;
    }
    return unknown;
}

/* Returns the communicator that knows which rank is to blame; else that of all ranks. */
static const struct rank_comm *find_failed(const struct rank *r)
{
    for (int i = 0; i < RANK_COMMS; i++) {
        const struct rank_comm *comm = &r->comms[i];
        if (i != RANK_COMM_STATE && comm->comm != NULL && comm->table->blamed(comm->comm) >= 0)
            return comm;
    }
    return &r->comms[RANK_COMM_WORLD];
}

int rank_report_failure(struct rank *r, enum status st)
{
    struct failure f = failure_of(st, r->progress.phase, r->at_store);
    const char *message = r->reason.text[0] != '\0' ? r->reason.text : status_string(st);
    struct session_fault fault = {
        .kind = f.kind,
        .of_node = st == ST_DEVICE || ((st == ST_CONFIG || st == ST_REFUSED) && r->of_node),
        .shard = r->damaged,
        .good_step = r->good_step,
    };
    uint32_t blamed = 0;
    struct reason named;
    const struct rank_comm *comm = find_failed(r);
    if (r->blamed > 0) {
        blamed = r->blamed - 1;
        fault.ranks = &blamed;
        fault.rank_count = 1;
    } else if (st == ST_PEER && comm->comm != NULL) {
        int peer = comm->table->blamed(comm->comm);
        blamed = peer >= 0 ? (uint32_t)peer : 0;
        fault.ranks = &blamed;
        fault.rank_count = peer >= 0 ? 1 : 0;
        reason_set(&named, "%.200s: %.280s", message, comm->table->why(comm->comm));
        message = named.text;
    }
    const bool node_known = r->assignment.nodes != NULL && !r->assignment.spare;
    if ((st == ST_CHANGED || (st == ST_CONFIG && fault.of_node)) && node_known) {
        reason_set(&named, "node %s: %.380s", r->assignment.nodes[r->assignment.rank], message);
        message = named.text;
    }
    LOG_ERROR(r->log, "%s", message);
    fault.message = message;
    session_fault(r->session, &fault);
    if (f.wait)
        (void)!session_await_end(r->session, OVER_MS); /* else it ends by itself */
    return f.code;
}

bool rank_can_park(const struct rank *r, enum status st)
{
    if (r->assignment.spare)
        return false; /* a spare's failure is its own */
    return st == ST_PEER || st == ST_STALE || (st == ST_TIMED_OUT && !r->at_store);
}

#include "trainer/program/store_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "common/check.h"

struct store_checked {
    const struct io *io;
    const char *store;
    const struct session_assignment *assignment;
    const char *node;
    struct reason *reason;
};

/* Checks that this node's store is the coordinator's. */
static enum status check_mark(const struct store_checked *it)
{
    char mark[CKPT_MARK];
    struct reason why;
    ckpt_store_id_await(it->io, it->store, it->assignment->job);
    enum status st = ckpt_store_id_read(it->io, it->store, it->assignment->job, mark);
    if (st == ST_OK && strcmp(mark, it->assignment->store_id) == 0)
        return ST_OK;
    if (st == ST_OK || st == ST_NOT_FOUND || st == ST_CORRUPT) {
        reason_set(it->reason,
                   "node %s sees at %.240s/%s another store than the coordinator, or none: its %s "
                   "is missing, or another's",
                   it->node, it->store, it->assignment->job, CKPT_MARK_NAME);
        return ST_UNREACHABLE;
    }
    io_explain(it->io, st, &why);
    reason_set(it->reason, "node %s, uid %u, cannot read the checkpoint store %.160s: %.255s",
               it->node, (unsigned)geteuid(), it->store, why.text);
    return st;
}

/* Whether this rank is the first on its node. */
static bool speaks_for_node(const struct session_assignment *assignment)
{
    if (assignment->nodes == NULL)
        return assignment->rank == 0;
    for (uint32_t i = 0; i < assignment->rank; i++) {
        if (strcmp(assignment->nodes[i], assignment->nodes[assignment->rank]) == 0)
            return false;
    }
    return true;
}

/* ".probe.g7.0123456789abcdef.tmp": one that is left behind is swept as any temporary name is. */
static enum status probe_path(const struct store_checked *it, char out[LIMIT_PATH])
{
    char call[IO_CALL], nonce[CKPT_CALL_DIGITS + 1], dir[LIMIT_PATH], base[LIMIT_PATH];
    uint64_t random = 0;
    CHECK(getrandom(&random, sizeof(random), 0) == sizeof(random));
    (void)snprintf(nonce, sizeof(nonce), "%016" PRIx64, random);
    ckpt_call_name(it->assignment->generation, nonce, call);
    struct io named = *it->io;
    named.call = call;
    enum status st = ckpt_path(it->store, it->assignment->job, dir);
    if (st == ST_OK)
        st = ckpt_path(dir, CKPT_PROBE, base);
    return st == ST_OK ? io_temporary(&named, base, out) : st;
}

static enum status check_rights(const struct store_checked *it)
{
    char path[LIMIT_PATH];
    int fd = -1;
    enum status st = probe_path(it, path);
    if (st == ST_OK)
        st = it->io->open(it->io->self, path, IO_CREATE_NEW, &fd);
    if (st == ST_OK) {
        (void)it->io->close(it->io->self, fd);
        st = it->io->unlink(it->io->self, path);
    }
    if (st != ST_REFUSED)
        return ST_OK;
    reason_set(it->reason,
               "node %s, uid %u, may not write to %.240s/%s: let this user write there, or let all "
               "nodes run as the user who may",
               it->node, (unsigned)geteuid(), it->store, it->assignment->job);
    return st;
}

enum status store_check(const struct io *io, const char *store,
                        const struct session_assignment *assignment, bool *of_node,
                        struct reason *reason)
{
    const struct store_checked it = {
        .io = io,
        .store = store,
        .assignment = assignment,
        .node = assignment->nodes != NULL ? assignment->nodes[assignment->rank] : "?",
        .reason = reason,
    };
    if (assignment->store_id[0] == '\0')
        return ST_OK;
    enum status st = check_mark(&it);
    if (st == ST_OK && !ckpt_store_is_object(store) && speaks_for_node(assignment))
        st = check_rights(&it);
    *of_node = st == ST_REFUSED;
    return st;
}

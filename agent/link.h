/*
 * The agent's stream to the coordinator: a thread that opens it, receives, and opens it again for
 * ever, within link_set_spread after it was lost, a second at first.
 *
 * What happens becomes events that the agent's loop takes with link_next; options.wake is called
 * when there are some. Every stream has a number, its epoch: a message that is meant for one stream
 * never goes into the next.
 *
 * Thread: all but wake by the loop's thread; wake is called by the link's.
 */
#pragma once

#include <stdint.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/log.h"
#include "common/status.h"
#include "identity/files.h"

struct link;

struct link_options {
    const char *target;
    const char *token_file;    /* NULL: none */
    struct identity_files tls; /* all NULL: plaintext */
    void (*wake)(void *arg);
    void *wake_arg;
    const struct log *log;
};

enum link_event_kind { LINK_NOTHING, LINK_UP, LINK_DOWN, LINK_ORDER };

struct link_event {
    enum link_event_kind kind;
    uint64_t epoch;
    Cairn__V1__AgentOrder *order; /* LINK_ORDER; owned by who takes the event */
};

/* Errors: ST_CONFIG  target unusable */
MUST_CHECK enum status link_start(const struct link_options *options, struct link **out);
/* Ends stream and thread; events not taken are dropped. NULL is fine. */
void link_stop(struct link *link);

struct link_event link_next(struct link *link);
/* A stream that is lost from now on is opened again within that time, at random: all agents lose
 * theirs at once. */
void link_set_spread(struct link *link, uint32_t ms);

#define LINK_PEER 256
/* The coordinator at the other end of that stream (rpc_stream_peer). ST_CLOSED: it is over. */
MUST_CHECK enum status link_peer(struct link *link, uint64_t epoch, char out[LINK_PEER]);

/*
 * Errors: ST_CLOSED  that stream is over
 *         ST_FULL    the coordinator doesn't read: the stream is ended, so that the hello of the
 *                    next one says everything anew
 */
MUST_CHECK enum status link_send(struct link *link, uint64_t epoch,
                                 const Cairn__V1__AgentMessage *message);

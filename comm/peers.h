/*
 * The connections between the ranks of a round, one for each pair that wants one, made before a
 * library gets to see them. Both sides of each have proved that they know the generation's secret
 * (identity/proof.h). One listener serves all. A connection that isn't a rank's is a stranger's,
 * and disturbs nobody: all are attended to side by side, each has PEERS_PROOF_MS, and where there
 * are too many the oldest goes.
 *
 * Every rank listens first, then says where (its part of a round), then connects: it dials the
 * ranks below its own and is dialled by those above. A connection that ends before it is proved is
 * dialled again, and so is a rank that doesn't answer; one that is refused for a second is an
 * error.
 *
 * Thread: one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "common/rendezvous.h"
#include "common/status.h"

#define PEERS_ADDRESS_MAX 18   /* bytes: of IPv6 16, of IPv4 4; and 2 of the port */
#define PEERS_PROOF_MS    2000 /* two round trips, with some loss */
#define PEERS_STRANGERS   64   /* at once, beside the ranks that may come */
#define PEERS_ROOM_MS     100  /* nobody is sent away for others before: a round trip or two */
#define PEERS_TOLD        5    /* strangers of one communicator that are logged one by one */

/* Borrowed until peers_free. */
struct peers_options {
    const struct rendezvous *rendezvous; /* tells when the generation is over */
    const char *secret;                  /* of the generation */
    const char *purpose;                 /* of these connections alone in it */
    const char *host;                    /* to listen at: numeric */
    int rank, size;
    const bool *wanted;    /* [size] ranks that this one is connected with, mutually; NULL: all */
    const struct log *log; /* NULL: nothing is said */
};

struct peers;

/*
 * Listens.
 * Errors: ST_INVALID no host or no secret; ST_NO_MEMORY; ST_IO and others: the host isn't this
 *         machine's, no port is free.
 */
MUST_CHECK enum status peers_new(const struct peers_options *options, struct peers **out);
/* Writes this rank's address, for the other ranks; returns its number of bytes. */
size_t peers_address(const struct peers *peers, uint8_t out[PEERS_ADDRESS_MAX]);
/*
 * Connects with the wanted ranks. got: of all ranks, [size]. out: for each a connection, the
 * caller's to close; -1 for the own rank and for those that aren't wanted. After an error all are
 * -1.
 * Errors: ST_PEER   with a rank there is no connection, or deadline_ms (of the system's clock) has
 *                   passed; logged
 *         ST_STALE  the generation is over
 */
MUST_CHECK enum status peers_connect(struct peers *peers, const struct rendezvous_got *got,
                                     int64_t deadline_ms, int *out);
/* Stops listening and frees peers. NULL is fine. */
void peers_free(struct peers *peers);

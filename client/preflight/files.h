/*
 * Whether what a job names can be used, looked at before it is submitted: files of data that can't
 * be read, a store that can't be made, an S3 store without credentials.
 *
 * Only what is known for sure is refused. The store is the coordinator's, too: where it runs beside
 * this process, with the same view of files and as the same user, what this process may not do it
 * may not do either. Data is read on nodes: it counts only where the one node there is runs beside
 * this process, too. Of a store that is full or away nothing is said.
 */
#pragma once

#include "client/base/client.h"
#include "jobspec/jobspec.h"

struct there {
    struct client *client;
    int64_t coordinator; /* the coordinator's pid; 0: it isn't on this machine */
    bool data;           /* nodes see what this process sees */
    uint64_t store_free; /* bytes in the store that was looked at; UINT64_MAX: not known */
};

/* Asks the coordinator; whatever goes wrong means that nothing is known. */
void preflight_find(struct client *client, struct there *out);
/* Returns the look that jobspec_parse_within wants, valid for as long as *there lives; notes in
 * *there what it sees. */
struct jobspec_look preflight_look(struct there *there);

/* Bytes that are free where a folder is or will be made; UINT64_MAX: not known. */
uint64_t preflight_free_bytes(const char *store);

/* `cairn reach STORE`, which the above runs in a process of its own: can the folder be made, or are
 * there credentials for S3 in its environment? If not, that is printed (EXIT_REFUSED); else, of a
 * folder, the bytes that are free. */
enum exit_code cmd_reach(struct client *client);

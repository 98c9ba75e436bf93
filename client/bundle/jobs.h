/*
 * What a bundle has from the coordinator: of the cluster, and of each job. Every call has a bound
 * in time; what isn't answered is a line in errors.txt, and the rest is asked for all the same.
 * Nothing is asked that changes anything.
 */
#pragma once

#include "client/base/client.h"
#include "client/bundle/parcel.h"
#include "rpc/rpc.h"

#define JOBS_OF_BUNDLE 8 /* where none is named: those that are not over, then the newest */

/* Versions, nodes, jobs. Returns how the coordinator answered; but for RPC_OK nothing else of it
 * can be had. ids: the jobs that a bundle takes where none is named, each for free(). */
enum rpc_code jobs_cluster(struct client *client, struct parcel *parcel, char *ids[JOBS_OF_BUNDLE],
                           size_t *out_count);

/* Everything of one job; name: as of `cairn show`. */
void jobs_one(struct client *client, struct parcel *parcel, const char *name);

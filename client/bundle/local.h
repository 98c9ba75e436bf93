/*
 * What a bundle has of this machine and of its home, without a coordinator: facts of the machine,
 * which variables are set, logs. Of other machines nothing of this is known.
 */
#pragma once

#include "client/base/client.h"
#include "client/bundle/parcel.h"

/* machine.txt: system, processors, memory, limits, driver. */
void local_machine(struct parcel *parcel);
/* environment.txt: variables of this process and of the home's, of secret ones the names only. */
void local_environment(const struct client *client, struct parcel *parcel);
/* logs/: what the home's programs wrote, the newest of it. */
void local_logs(const struct client *client, struct parcel *parcel);
/* jobs/ID/logs/ of the jobs of this home that are meant, by their ids, or of the newest where none
 * is named: for when no coordinator says which jobs there are. */
void local_workers(const struct client *client, struct parcel *parcel);

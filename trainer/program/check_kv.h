/* A rendezvous map between threads of one process (common/kv.h), for --check. */
#pragma once

#include "common/kv.h"

struct check_kv;

MUST_CHECK enum status check_kv_new(struct check_kv **out);
void check_kv_free(struct check_kv *map);
/* The table; borrowed from the map. A map that was made stale answers ST_STALE to all who wait. */
struct kv check_kv_table(struct check_kv *map);
void check_kv_go_stale(struct check_kv *map);

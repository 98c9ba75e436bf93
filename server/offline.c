#include "server/offline.h"

#include <stdio.h>
#include <stdlib.h>

#include "checkpoint/store/store.h"
#include "common/clock.h"
#include "common/paths.h"
#include "server/rebuild/rebuild.h"

/* "HOME/state/NAME", of the home that the environment says. */
static enum status find_path(const char *name, char out[LIMIT_PATH])
{
    struct paths paths;
    const enum status st = paths_open(&paths);
    return st == ST_OK ? paths_join(&paths, out, LIMIT_PATH, "state%s", name) : st;
}

static int end_with(enum status st, const char *what, const struct reason *reason)
{
    if (st == ST_OK)
        return EXIT_SUCCESS;
    (void)fprintf(stderr, "cairnd: %s: %s\n", what,
                  reason->text[0] ? reason->text : status_string(st));
    return EXIT_FAILURE;
}

int offline_back_up(const struct options *options)
{
    char path[LIMIT_PATH];
    struct reason reason = { "" };
    enum status st = find_path("/" REBUILD_JOURNAL, path);
    if (st == ST_OK)
        st = journal_backup(path, options->backup, &reason);
    return end_with(st, "no backup", &reason);
}

int offline_recover(const struct options *options)
{
    char state[LIMIT_PATH];
    struct reason reason = { "" };
    struct ckpt_store *store = NULL;
    enum status st = find_path("", state);
    if (st == ST_OK)
        st = ckpt_store_new(&store);
    if (st == ST_OK) {
        const struct rebuild_options rebuild = { .io = ckpt_store_io(store),
                                                 .state = options->state != NULL ? options->state
                                                                                 : state,
                                                 .stores = options->stores,
                                                 .store_count = options->store_count,
                                                 .wall_ms = clock_wall_ms(clock_system()),
                                                 .out = stdout };
        st = rebuild_run(&rebuild, &reason);
    }
    ckpt_store_free(store);
    return end_with(st, "nothing was made anew", &reason);
}

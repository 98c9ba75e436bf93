/* Signs in a home that there was a journal: other things that lie there. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "server/rebuild/rebuild.h"

/* True of names that a start leaves which was cut off before it had a journal, and of those that
 * come and go. */
static bool is_of_any_start(const char *name)
{
    static const char *const ends[] = { "",          ".lock",    "-shm",    ".new",
                                        ".new.lock", ".new-wal", ".new-shm" };
    if (name[0] == '.')
        return true;
    const size_t size = strlen(REBUILD_JOURNAL);
    for (size_t i = 0;
         strncmp(name, REBUILD_JOURNAL, size) == 0 && i < sizeof(ends) / sizeof(*ends); i++) {
        if (strcmp(name + size, ends[i]) == 0)
            return true;
    }
    return false;
}

/* An io_name_fn: the first sign. */
static bool take_sign(void *arg, const char *name)
{
    char *sign = arg;
    if (!is_of_any_start(name))
        (void)snprintf(sign, LIMIT_NAME, "%s", name);
    return sign[0] == '\0';
}

/* Finds a sign in one folder; one that isn't there has none. */
static enum status find_sign(const char *folder, char sign[LIMIT_NAME])
{
    const struct io *io = io_system();
    const enum status st = io->list(io->self, folder, take_sign, sign);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status rebuild_look(const char *state, const struct journal_watch *watch,
                         struct reason *reason)
{
    char path[LIMIT_PATH], home[LIMIT_PATH], jobs[LIMIT_PATH], sign[LIMIT_NAME] = "";
    const char *of = "state";
    enum status st = ckpt_path(state, REBUILD_JOURNAL, path);
    if (st == ST_OK)
        st = ckpt_dirname(state, home);
    if (st == ST_OK)
        st = ckpt_path(home, "jobs", jobs);
    if (st == ST_OK)
        st = find_sign(state, sign);
    if (st == ST_OK && sign[0] == '\0') {
        of = "jobs";
        st = find_sign(jobs, sign);
    }
    if (st != ST_OK)
        return st;
    struct reason why = { "" };
    st = journal_look(path, sign[0] != '\0', watch, &why);
    if (st == ST_NOT_FOUND && sign[0] != '\0') {
        reason_set(reason, "%s, but this home isn't new: %s/%s is there", why.text, of, sign);
    } else if (st != ST_OK) {
        *reason = why;
    }
    return st;
}

/* Folders that jobs with a command write to: one job at a time has one. */
#include <string.h>

#include "server/coord/state.h"

enum status coord_could_write(const struct coord *coord, const struct jobspec *spec,
                              struct reason *reason)
{
    const char *folder = spec->command.folder;
    for (size_t i = 0; folder[0] != '\0' && i < coord->live.count; i++) {
        const struct coord_job *other = coord->live.list[i].value;
        if (other->unreadable[0] != '\0' || strcmp(other->spec->command.folder, folder) != 0)
            continue;
        reason_set(reason,
                   "command.folder: %s (%s) writes to %.250s and isn't over: name another folder, "
                   "or wait for it",
                   other->name, other->id, folder);
        return ST_REFUSED;
    }
    return ST_OK;
}

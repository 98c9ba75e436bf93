#include "trainer/data/data_error.h"

enum status data_refuse(const char *path, const char *cause, struct reason *reason)
{
    reason_set(reason, "%s: %s", path, cause);
    return ST_CONFIG;
}

enum status data_unreadable(const char *path, enum status st, struct reason *reason)
{
    if (st == ST_NOT_FOUND)
        return data_refuse(path, "no such file; correct the path in the job file", reason);
    if (st == ST_REFUSED) {
        return data_refuse(path, "permission denied; make it readable for the agent's user",
                           reason);
    }
    reason_set(reason, "%s: cannot be read: %s", path, status_string(st));
    return st;
}

#include "server/place.h"

#include "common/limits.h"
#include "common/own/home.h"

enum status place_home(struct paths *paths, const struct log *log)
{
    struct reason done = { "" }, why = { "" };
    enum status st = paths_open(paths);
    if (st == ST_OK)
        st = private_home_claim(paths, &done, &why);
    if (st != ST_OK) {
        LOG_ERROR(log, "no usable home: %s; set CAIRN_HOME",
                  why.text[0] ? why.text : status_string(st));
    } else if (done.text[0]) {
        LOG_WARN(log, "%s", done.text);
    }
    return st;
}

enum status place_seal(const struct paths *paths, const struct log *log, char out[IDENTITY_TOKEN])
{
    char path[LIMIT_PATH];
    struct reason why = { "" };
    enum status st = paths_join(paths, path, sizeof(path), "state/seal");
    if (st == ST_OK)
        st = identity_key_at(path, out, &why);
    if (st != ST_OK)
        LOG_ERROR(log, "%s: %s", path, why.text[0] ? why.text : status_string(st));
    return st;
}

enum status place_token(const struct paths *paths, const struct log *log, char out[IDENTITY_TOKEN])
{
    char path[LIMIT_PATH];
    enum status st = paths_join(paths, path, sizeof(path), "token");
    if (st == ST_OK)
        st = identity_key_new(path, out);
    if (st != ST_OK)
        LOG_ERROR(log, "%s: %s", path, status_string(st));
    return st;
}

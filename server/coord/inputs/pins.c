/* Pins, which are what bits depend on: those of the job, and those of a worker that is ready. */
#include "server/coord/inputs/pins.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/apply.h"
#include "server/coord/base.h"

/* Returns where the pins' last member begins, which is what the data are known by; without one,
 * where the pins end. No other member has this text: in strings its quotes are escaped. */
static size_t data_at(const char *pins)
{
    const char *data = strstr(pins, ",\"data\":{");
    if (data != NULL)
        return (size_t)(data - pins);
    size_t size = strlen(pins);
    return size > 0 && pins[size - 1] == '}' ? size - 1 : size;
}

/* Makes these the job's pins from now on. */
static void keep_pins(struct coord *coord, struct coord_job *job, const char *pins)
{
    char *copy = strdup(pins);
    enum status st = copy != NULL ? coord_begin(coord) : ST_NO_MEMORY;
    if (st == ST_OK)
        st = journal_put_pins(coord->options.journal, job->id, pins);
    if (st != ST_OK) {
        free(copy);
        coord_fail(coord, st, "journalling the pins");
        return;
    }
    free(job->pins);
    job->pins = copy;
}

/* Names the first file that the job's data don't have: "PATH SIZE HASH", as the trainer wrote it.
 */
static void name_file(const char *data, const char *known, const char *node, struct reason *out)
{
    static const char files[] = "\"files\":[";
    for (const char *list = strstr(data, files); list != NULL; list = strstr(list, files)) {
        list += sizeof(files) - 1;
        while (*list == '"') {
            const char *end = list + 1;
            while (*end && (*end != '"' || end[-1] == '\\'))
                end++;
            char entry[2 * LIMIT_PATH];
            const size_t size = (size_t)(end - list) + 1;
            if (!*end || size >= sizeof(entry))
                break;
            (void)snprintf(entry, sizeof(entry), "%.*s", (int)size, list);
            if (strstr(known, entry) == NULL) {
                entry[size - 1] = '\0';
                reason_set(out, "node %s: the data are not those that the job began with: %s", node,
                           entry + 1);
                return;
            }
            list = end + 1;
            list += *list == ',';
        }
    }
    reason_set(out, "node %s: the data are not those that the job began with: other files", node);
}

/* "KEY.KEY", how deep they may be nested. */
#define KEY_BYTES 128
#define KEY_DEPTH 8

static void print_value(const json_t *value, char out[96])
{
    char *text =
        value != NULL ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    (void)snprintf(out, 96, "%.90s", text != NULL ? text : value != NULL ? "?" : "nothing");
    free(text);
}

/* Finds the first member, by its key, that differs: its whole key, and both values. */
static bool find_difference(const json_t *is, const json_t *was, char key[KEY_BYTES], int depth,
                            struct reason *out)
{
    const size_t size = strlen(key);
    const char *name;
    json_t *of;
    if (json_equal(is, was))
        return false;
    if (!json_is_object(is) || !json_is_object(was) || depth == KEY_DEPTH) {
        char now[96], before[96];
        print_value(is, now);
        print_value(was, before);
        reason_set(out, "%s is %s, was %s", key, now, before);
        return true;
    }
    for (int both = 0; both < 2; both++) { /* what is there, then what isn't any more */
        json_object_foreach(both == 0 ? (json_t *)is : (json_t *)was, name, of)
        {
            (void)snprintf(key + size, KEY_BYTES - size, "%s%s", size ? "." : "", name);
            if (find_difference(json_object_get(is, name), json_object_get(was, name), key,
                                depth + 1, out))
                return true;
        }
    }
    key[size] = '\0';
    return false;
}

static void name_difference(const char *pins, const char *known, struct reason *out)
{
    json_t *is = json_loads(pins, 0, NULL), *was = json_loads(known, 0, NULL);
    char key[KEY_BYTES] = "";
    struct reason found = { "" };
    if (is != NULL && was != NULL)
        (void)find_difference(is, was, key, 0, &found);
    reason_set(out, "what bits depend on differs from the job's first formation%s%.380s",
               found.text[0] ? ": " : "", found.text);
    json_decref(is);
    json_decref(was);
}

/* True if nothing was computed yet, and these pins are the first of the formation: pins that an
 * earlier one was told don't bind. */
static bool is_first(const struct coord_job *job)
{
    if (!job->pins[0])
        return true;
    for (uint32_t i = 0; i < job->m.size; i++) {
        if (job->m.ranks[i].ready)
            return false;
    }
    return job->m.started_wall == 0;
}

void coord_compare_pins(struct coord *coord, struct coord_job *job, const char *pins,
                        const char *node, struct fsm_ready *ready, struct reason *out)
{
    const size_t data = data_at(pins), known = data_at(job->pins);
    if (!pins[0] || strcmp(job->pins, pins) == 0)
        return;
    const bool same = data == known && strncmp(pins, job->pins, data) == 0;
    if (is_first(job) || (same && job->pins[known] != ',')) {
        keep_pins(coord, job, pins);
        return;
    }
    if (same) {
        name_file(pins + data, job->pins + known, node, out);
        ready->data_differ = out->text;
        return;
    }
    name_difference(pins, job->pins, out);
    ready->pins_differ = out->text;
}

/* Webhooks as the state file has them. */
#include "hook/known.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"

const char *hook_state_word(enum hook_state state)
{
    static const char *const words[] = {
        [HOOK_IDLE] = "ok",           [HOOK_WAITING] = "waiting",   [HOOK_FAILING] = "failing",
        [HOOK_RETRYING] = "retrying", [HOOK_DISABLED] = "disabled",
    };
    return words[state];
}

json_t *hook_known_json(const struct hook_known *known)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:s, s:s, s:s}", "name", known->name, "state",
                     hook_state_word(known->state), "waiting", (json_int_t)known->waiting, "missed",
                     (json_int_t)known->missed, "tried_ms", (json_int_t)known->tried_ms,
                     "delivered", known->delivered, "event", known->event, "job", known->job,
                     "what", known->what.text);
}

static bool read_text(const json_t *value, const char *key, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(value, key));
    int size = text == NULL ? -1 : snprintf(out, capacity, "%s", text);
    return size >= 0 && (size_t)size < capacity;
}

bool hook_known_from(const json_t *value, struct hook_known *out)
{
    char state[16];
    *out = (struct hook_known){ 0 };
    if (!json_is_object(value) || !read_text(value, "name", out->name, sizeof(out->name)) ||
        !read_text(value, "state", state, sizeof(state)) ||
        !read_text(value, "event", out->event, sizeof(out->event)) ||
        !read_text(value, "job", out->job, sizeof(out->job)) ||
        !read_text(value, "what", out->what.text, sizeof(out->what.text)))
        return false;
    while (out->state < HOOK_DISABLED && strcmp(state, hook_state_word(out->state)) != 0)
        out->state++;
    out->waiting = json_integer_value(json_object_get(value, "waiting"));
    out->missed = json_integer_value(json_object_get(value, "missed"));
    out->tried_ms = json_integer_value(json_object_get(value, "tried_ms"));
    out->delivered = json_is_true(json_object_get(value, "delivered"));
    return strcmp(state, hook_state_word(out->state)) == 0 && out->waiting >= 0 && out->missed >= 0;
}

enum status hook_known_read(const char *path, struct hook_known out[HOOK_MAX], size_t *out_count)
{
    auto_free char *text = NULL;
    size_t size = 0;
    *out_count = 0;
    enum status st = io_read_file(io_system(), path, HOOK_STATE_BYTES, &text, &size);
    if (st != ST_OK)
        return st;
    json_t *root = json_loadb(text, size, 0, NULL);
    const json_t *list = json_object_get(root, "webhooks");
    for (size_t i = 0; i < json_array_size(list) && *out_count < HOOK_MAX; i++) {
        if (hook_known_from(json_array_get(list, i), &out[*out_count]))
            ++*out_count;
    }
    st = root == NULL ? ST_CORRUPT : ST_OK;
    json_decref(root);
    return st;
}

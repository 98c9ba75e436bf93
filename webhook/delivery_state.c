/* Webhooks as the state file has them. */
#include "webhook/delivery_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"

const char *webhook_health_word(enum webhook_health state)
{
    static const char *const words[] = {
        [WEBHOOK_IDLE] = "ok",           [WEBHOOK_WAITING] = "waiting",
        [WEBHOOK_FAILING] = "failing",   [WEBHOOK_RETRYING] = "retrying",
        [WEBHOOK_DISABLED] = "disabled",
    };
    return words[state];
}

json_t *webhook_delivery_state_json(const struct webhook_delivery_state *known)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:s, s:s, s:s}", "name", known->name, "state",
                     webhook_health_word(known->state), "waiting", (json_int_t)known->waiting,
                     "missed", (json_int_t)known->missed, "tried_ms", (json_int_t)known->tried_ms,
                     "delivered", known->delivered, "event", known->event, "job", known->job,
                     "what", known->what.text);
}

static bool read_text(const json_t *value, const char *key, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(value, key));
    int size = text == NULL ? -1 : snprintf(out, capacity, "%s", text);
    return size >= 0 && (size_t)size < capacity;
}

bool webhook_delivery_state_from(const json_t *value, struct webhook_delivery_state *out)
{
    char state[16];
    *out = (struct webhook_delivery_state){ 0 };
    if (!json_is_object(value) || !read_text(value, "name", out->name, sizeof(out->name)) ||
        !read_text(value, "state", state, sizeof(state)) ||
        !read_text(value, "event", out->event, sizeof(out->event)) ||
        !read_text(value, "job", out->job, sizeof(out->job)) ||
        !read_text(value, "what", out->what.text, sizeof(out->what.text)))
        return false;
    while (out->state < WEBHOOK_DISABLED && strcmp(state, webhook_health_word(out->state)) != 0)
        out->state++;
    out->waiting = json_integer_value(json_object_get(value, "waiting"));
    out->missed = json_integer_value(json_object_get(value, "missed"));
    out->tried_ms = json_integer_value(json_object_get(value, "tried_ms"));
    out->delivered = json_is_true(json_object_get(value, "delivered"));
    return strcmp(state, webhook_health_word(out->state)) == 0 && out->waiting >= 0 &&
           out->missed >= 0;
}

enum status webhook_delivery_state_read(const char *path,
                                        struct webhook_delivery_state out[WEBHOOK_MAX],
                                        size_t *out_count)
{
    auto_free char *text = NULL;
    size_t size = 0;
    *out_count = 0;
    enum status st = io_read_file(io_system(), path, WEBHOOK_STATE_BYTES, &text, &size);
    if (st != ST_OK)
        return st;
    json_t *root = json_loadb(text, size, 0, NULL);
    const json_t *list = json_object_get(root, "webhooks");
    for (size_t i = 0; i < json_array_size(list) && *out_count < WEBHOOK_MAX; i++) {
        if (webhook_delivery_state_from(json_array_get(list, i), &out[*out_count]))
            ++*out_count;
    }
    st = root == NULL ? ST_CORRUPT : ST_OK;
    json_decref(root);
    return st;
}

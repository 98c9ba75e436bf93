#include "kernels/cuda/device/choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status choices_init(struct choices *choices, const char *stored)
{
    struct choice *list = calloc(CHOICES_MAX, sizeof(*list));
    char *copy = stored == NULL ? NULL : strdup(stored);
    if (list == NULL || (stored != NULL && copy == NULL)) {
        free(list);
        free(copy);
        return ST_NO_MEMORY;
    }
    *choices = (struct choices){ .list = list, .stored = copy };
    return ST_OK;
}

void choices_release(struct choices *choices)
{
    free(choices->list);
    free(choices->stored);
    *choices = (struct choices){ 0 };
}

const struct choice *choices_find(const struct choices *choices, const char *key)
{
    for (int i = 0; i < choices->count; i++) {
        if (strcmp(choices->list[i].key, key) == 0)
            return &choices->list[i];
    }
    return NULL;
}

/* Numbers with dots between, up to a closing quote: 1.2.3" */
static bool numbers_read(const char *text, struct choice *choice)
{
    for (;;) {
        char *end = NULL;
        if (choice->count == CHOICE_NUMBERS_MAX)
            return false;
        choice->numbers[choice->count++] = strtoll(text, &end, 10);
        if (end == text)
            return false;
        if (*end == '"')
            return true;
        if (*end != '.')
            return false;
        text = end + 1;
    }
}

bool choices_stored(const struct choices *choices, const char *key, struct choice *out)
{
    if (choices->stored == NULL || strlen(key) >= CHOICE_KEY_MAX)
        return false;
    char quoted[CHOICE_KEY_MAX + 8];
    (void)snprintf(quoted, sizeof(quoted), "\"%s\":\"", key);
    const char *at = strstr(choices->stored, quoted);
    if (at == NULL)
        return false;
    struct choice choice = { 0 };
    (void)snprintf(choice.key, sizeof(choice.key), "%s", key);
    if (!numbers_read(at + strlen(quoted), &choice))
        return false;
    *out = choice;
    return true;
}

enum status choices_add(struct choices *choices, const struct choice *choice)
{
    if (choices->count == CHOICES_MAX)
        return ST_FULL;
    choices->list[choices->count++] = *choice;
    return ST_OK;
}

enum status choices_print(const struct choices *choices, struct buf *out)
{
    enum status st = buf_append_text(out, "{");
    for (int i = 0; i < choices->count && st == ST_OK; i++) {
        const struct choice *choice = &choices->list[i];
        st = buf_printf(out, "%s\"%s\":\"", i > 0 ? "," : "", choice->key);
        for (int k = 0; k < choice->count && st == ST_OK; k++)
            st = buf_printf(out, "%s%lld", k > 0 ? "." : "", (long long)choice->numbers[k]);
        if (st == ST_OK)
            st = buf_append_text(out, "\"");
    }
    return st == ST_OK ? buf_append_text(out, "}") : st;
}

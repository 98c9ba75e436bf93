#include "observer/snapshot/job_texts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"
#include "proto/text/json.h"

#define TEXT_BYTES_MAX ((size_t)8 << 20) /* of one job with all its workers */

/* The text of one job, shared by all lists that hold it. */
struct text {
    atomic_uint refs;
    struct buf message, json;
    char id[]; /* with its end */
};

struct texts {
    atomic_uint refs;
    size_t count;
    struct text *list[];
};

static void unref_text(struct text *text)
{
    if (text == NULL || atomic_fetch_sub(&text->refs, 1) > 1)
        return;
    buf_release(&text->message);
    buf_release(&text->json);
    free(text);
}

struct texts *texts_ref(struct texts *texts)
{
    if (texts != NULL)
        (void)atomic_fetch_add(&texts->refs, 1);
    return texts;
}

void texts_unref(struct texts *texts)
{
    if (texts == NULL || atomic_fetch_sub(&texts->refs, 1) > 1)
        return;
    for (size_t i = 0; i < texts->count; i++)
        unref_text(texts->list[i]);
    free(texts);
}

/* The job's in texts (NULL: none); *at: where to begin, as both lists have the same order. */
static struct text *find(const struct texts *texts, const char *id, size_t *at)
{
    for (size_t i = 0; texts != NULL && i < texts->count; i++) {
        const size_t place = (*at + i) % texts->count;
        if (strcmp(texts->list[place]->id, id) != 0)
            continue;
        *at = place + 1;
        return texts->list[place];
    }
    return NULL;
}

static bool are_equal(const struct buf *a, const struct buf *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static bool pack(const Cairn__V1__Job *job, struct buf *out)
{
    static const char room[4096];
    const size_t size = cairn__v1__job__get_packed_size(job);
    while (out->size < size) {
        const size_t left = size - out->size;
        if (buf_append(out, room, left < sizeof(room) ? left : sizeof(room)) != ST_OK)
            return false;
    }
    if (size > 0)
        (void)cairn__v1__job__pack(job, (uint8_t *)out->data);
    return true;
}

/* Takes over the job as a message. NULL: no memory. */
static struct text *make_text(const Cairn__V1__Job *job, struct buf *message)
{
    const size_t size = strlen(job->id) + 1;
    struct text *text = calloc(1, sizeof(*text) + size);
    if (text == NULL)
        return NULL;
    atomic_init(&text->refs, 1);
    memcpy(text->id, job->id, size);
    text->message = *message;
    buf_init(message, TEXT_BYTES_MAX);
    buf_init(&text->json, TEXT_BYTES_MAX);
    json_t *value = json_from_message(&job->base);
    const enum status st = json_print(value, true, &text->json); /* NULL: no memory */
    json_decref(value);
    if (st != ST_OK) {
        unref_text(text);
        return NULL;
    }
    text->json.size--; /* the line's end */
    return text;
}

/* Returns the earlier text if the job is unchanged since, else a new one. */
static struct text *text_of(const Cairn__V1__Job *job, struct text *before)
{
    auto_buf struct buf message;
    buf_init(&message, TEXT_BYTES_MAX);
    if (!pack(job, &message))
        return NULL;
    if (before == NULL || !are_equal(&before->message, &message))
        return make_text(job, &message);
    (void)atomic_fetch_add(&before->refs, 1);
    return before;
}

struct texts *texts_new(Cairn__V1__Job *const *jobs, size_t count, const struct texts *before)
{
    struct texts *texts = calloc(1, sizeof(*texts) + count * sizeof(struct text *));
    size_t at = 0;
    if (texts == NULL)
        return NULL;
    atomic_init(&texts->refs, 1);
    for (; texts->count < count; texts->count++) {
        const Cairn__V1__Job *job = jobs[texts->count];
        struct text *text = text_of(job, find(before, job->id, &at));
        if (text == NULL)
            break;
        texts->list[texts->count] = text;
    }
    if (texts->count == count)
        return texts;
    texts_unref(texts);
    return NULL;
}

enum status texts_put(const struct texts *texts, const struct texts *known, struct buf *out,
                      size_t *out_count)
{
    enum status st = ST_OK;
    size_t at = 0;
    *out_count = 0;
    for (size_t i = 0; st == ST_OK && i < texts->count; i++) {
        const struct text *text = texts->list[i], *other = find(known, text->id, &at);
        if (other != NULL && are_equal(&other->message, &text->message))
            continue;
        if (*out_count > 0)
            st = buf_append(out, ",", 1);
        if (st == ST_OK)
            st = buf_append(out, text->json.data, text->json.size);
        (*out_count)++;
    }
    return st;
}

/*
 *     a buffer:  FREE    ─▶ FILLING    [begin_buffer]
 *                FILLING ─▶ SENDING    [send_filling]    a part is full
 *                SENDING ─▶ FREE       [send_part]       by a thread of the pool
 *
 * Invariants:
 *  (1) At most one buffer is FILLING, and it holds the bytes after those of all parts begun.
 *  (2) A SENDING buffer belongs to its task; its owner waits for it before anything is freed.
 *  (3) The object appears by s3_multipart_complete or s3_object_put_new, and by nothing else.
 */
#include "checkpoint/s3/upload.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define PART_STEP   ((uint64_t)1 << 20) /* parts are whole multiples of it */
#define BUFFERS_MAX (S3_PARTS_IN_FLIGHT_MAX + 1)

enum buffer_state { BUFFER_FREE, BUFFER_FILLING, BUFFER_SENDING };

struct buffer {
    struct s3_upload *upload;
    struct s3_task task;
    enum buffer_state state;
    uint32_t number;
    char *data;
    size_t capacity, size;
};

struct s3_upload {
    struct s3_upload_options options;
    struct s3_multipart multipart; /* id "": not begun */
    uint64_t size;                 /* bytes taken */
    uint32_t parts;                /* begun */
    bool finished;
    struct buffer *filling;
    struct buffer buffers[BUFFERS_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under mutex: */
    uint32_t sending;
    char (*etags)[S3_ETAG_MAX];
    uint32_t etag_capacity;
    enum status st; /* the first error */
    struct reason reason;
};

size_t s3_upload_part_bytes(size_t part_bytes, uint64_t file_bytes)
{
    const uint64_t step = S3_PARTS_MAX * PART_STEP;
    const uint64_t needed = (file_bytes / step + (file_bytes % step != 0)) * PART_STEP;
    return needed > part_bytes ? (size_t)needed : part_bytes;
}

enum status s3_upload_new(const struct s3_upload_options *options, const struct s3_place *place,
                          struct s3_upload **out)
{
    if (options->part_bytes < S3_PART_BYTES_MIN || options->parts_max < 1 ||
        options->parts_max > S3_PARTS_IN_FLIGHT_MAX)
        return ST_INVALID;
    struct s3_upload *upload = calloc(1, sizeof(*upload));
    if (upload == NULL)
        return ST_NO_MEMORY;
    upload->options = *options;
    upload->multipart.place = *place;
    for (size_t i = 0; i < BUFFERS_MAX; i++)
        upload->buffers[i].upload = upload;
    CHECK(pthread_mutex_init(&upload->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&upload->changed, NULL) == 0);
    *out = upload;
    return ST_OK;
}

void s3_upload_expect(struct s3_upload *upload, uint64_t size)
{
    if (upload->parts == 0 && upload->filling == NULL)
        upload->options.part_bytes = s3_upload_part_bytes(upload->options.part_bytes, size);
}

uint64_t s3_upload_size(const struct s3_upload *upload)
{
    return upload->size;
}

/* ---- sending ---- */

static void send_part(void *arg)
{
    struct buffer *buffer = arg;
    struct s3_upload *upload = buffer->upload;
    CHECK(buffer->state == BUFFER_SENDING);
    char etag[S3_ETAG_MAX] = "";
    struct reason reason = { "" };
    enum status st = s3_multipart_part(upload->options.client, &upload->multipart, buffer->number,
                                       buffer->data, buffer->size, etag);
    if (st != ST_OK)
        s3_client_explain(upload->options.client, st, &reason);
    CHECK(pthread_mutex_lock(&upload->mutex) == 0);
    if (st == ST_OK) {
        memcpy(upload->etags[buffer->number - 1], etag, sizeof(etag));
    } else if (upload->st == ST_OK) {
        upload->st = st;
        upload->reason = reason;
    }
    buffer->state = BUFFER_FREE;
    CHECK(upload->sending > 0);
    upload->sending--;
    (void)pthread_cond_broadcast(&upload->changed);
    (void)pthread_mutex_unlock(&upload->mutex);
}

/* Hands what a thread has to say to the caller's. */
static enum status pass_on(struct s3_upload *upload, enum status st)
{
    if (st != ST_OK && upload->reason.text[0] != '\0')
        s3_client_set_problem(upload->options.client, st, "%s", upload->reason.text);
    return st;
}

/* Waits until at most `most` parts are on their way. */
static enum status wait_for_parts(struct s3_upload *upload, uint32_t most)
{
    CHECK(pthread_mutex_lock(&upload->mutex) == 0);
    while (upload->sending > most)
        (void)pthread_cond_wait(&upload->changed, &upload->mutex);
    enum status st = upload->st;
    (void)pthread_mutex_unlock(&upload->mutex);
    return pass_on(upload, st);
}

/* Room for one more etag; under mutex. */
static bool reserve_etag(struct s3_upload *upload)
{
    if (upload->parts < upload->etag_capacity)
        return true;
    uint32_t capacity = upload->etag_capacity == 0 ? 64 : 2 * upload->etag_capacity;
    void *etags = realloc(upload->etags, (size_t)capacity * sizeof(*upload->etags));
    if (etags == NULL)
        return false;
    upload->etags = etags;
    upload->etag_capacity = capacity;
    return true;
}

/* Sends the buffer that is being filled as the next part. */
static enum status send_filling(struct s3_upload *upload)
{
    struct buffer *buffer = upload->filling;
    enum status st = ST_OK;
    CHECK(buffer != NULL);
    CHECK(buffer->state == BUFFER_FILLING);
    if (upload->multipart.id[0] == '\0') {
        st = s3_multipart_begin(upload->options.client, &upload->multipart.place,
                                &upload->multipart);
    }
    if (st == ST_OK)
        st = wait_for_parts(upload, upload->options.parts_max - 1);
    if (st != ST_OK)
        return st;
    CHECK(pthread_mutex_lock(&upload->mutex) == 0);
    st = reserve_etag(upload) ? ST_OK : ST_NO_MEMORY;
    if (st == ST_OK) {
        buffer->number = ++upload->parts;
        buffer->state = BUFFER_SENDING;
        buffer->task = (struct s3_task){ .run = send_part, .arg = buffer };
        upload->sending++;
    }
    (void)pthread_mutex_unlock(&upload->mutex);
    if (st != ST_OK)
        return st;
    upload->filling = NULL;
    st = s3_pool_submit(upload->options.pool, &buffer->task);
    if (st != ST_OK) { /* no thread at all: by this one */
        send_part(buffer);
        st = ST_OK;
    }
    return st;
}

/* ---- filling ---- */

static enum status begin_buffer(struct s3_upload *upload)
{
    if (upload->parts == S3_PARTS_MAX) {
        s3_client_set_problem(upload->options.client, ST_FULL,
                              "s3://%s/%.200s: larger than a file can be",
                              upload->multipart.place.bucket, upload->multipart.place.key);
        return ST_FULL;
    }
    struct buffer *buffer = NULL;
    CHECK(pthread_mutex_lock(&upload->mutex) == 0);
    for (size_t i = 0; i <= upload->options.parts_max && buffer == NULL; i++) {
        if (upload->buffers[i].state == BUFFER_FREE)
            buffer = &upload->buffers[i];
    }
    (void)pthread_mutex_unlock(&upload->mutex);
    CHECK(buffer != NULL); /* at most parts_max are on their way */
    size_t capacity = upload->options.part_bytes;
    if (buffer->capacity < capacity) {
        free(buffer->data);
        buffer->data = malloc(capacity);
        buffer->capacity = buffer->data == NULL ? 0 : capacity;
    }
    if (buffer->data == NULL)
        return ST_NO_MEMORY;
    buffer->state = BUFFER_FILLING;
    buffer->size = 0;
    upload->filling = buffer;
    return ST_OK;
}

enum status s3_upload_write(struct s3_upload *upload, const void *data, size_t size)
{
    const char *from = data;
    if (upload->finished)
        return ST_REFUSED;
    enum status st = wait_for_parts(upload, BUFFERS_MAX); /* an error stays */
    while (size > 0 && st == ST_OK) {
        struct buffer *buffer = upload->filling;
        if (buffer != NULL && buffer->size == upload->options.part_bytes) {
            st = send_filling(upload);
            continue;
        }
        if (buffer == NULL) {
            st = begin_buffer(upload);
            continue;
        }
        size_t room = upload->options.part_bytes - buffer->size;
        size_t now = size < room ? size : room;
        memcpy(buffer->data + buffer->size, from, now);
        buffer->size += now;
        upload->size += now;
        from += now;
        size -= now;
    }
    if (st != ST_OK) {
        CHECK(pthread_mutex_lock(&upload->mutex) == 0);
        upload->st = st;
        (void)pthread_mutex_unlock(&upload->mutex);
    }
    return st;
}

/* ---- the end ---- */

static enum status finish_small(struct s3_upload *upload)
{
    const struct buffer *buffer = upload->filling;
    return s3_object_put_new(upload->options.client, &upload->multipart.place,
                             buffer == NULL ? "" : buffer->data, buffer == NULL ? 0 : buffer->size);
}

enum status s3_upload_finish(struct s3_upload *upload)
{
    if (upload->finished)
        return ST_OK;
    enum status st = wait_for_parts(upload, BUFFERS_MAX);
    bool small = upload->parts == 0 && st == ST_OK;
    if (!small && st == ST_OK && upload->filling != NULL && upload->filling->size > 0)
        st = send_filling(upload);
    enum status sent = wait_for_parts(upload, 0);
    if (st == ST_OK)
        st = sent;
    if (st == ST_OK && small)
        st = finish_small(upload);
    if (st == ST_OK && !small) {
        st = s3_multipart_complete(upload->options.client, &upload->multipart, upload->etags,
                                   upload->parts, upload->size);
    }
    upload->finished = st == ST_OK;
    if (st != ST_OK) {
        CHECK(pthread_mutex_lock(&upload->mutex) == 0);
        upload->st = st; /* never tried again */
        (void)pthread_mutex_unlock(&upload->mutex);
    }
    return st;
}

void s3_upload_free(struct s3_upload *upload)
{
    if (upload == NULL)
        return;
    enum status st = wait_for_parts(upload, 0);
    if (!upload->finished && upload->multipart.id[0] != '\0') {
        struct reason reason;
        s3_client_explain(upload->options.client, st, &reason);
        s3_multipart_abort(upload->options.client, &upload->multipart);
        s3_client_set_problem(upload->options.client, st, "%s", reason.text);
    }
    for (size_t i = 0; i < BUFFERS_MAX; i++)
        free(upload->buffers[i].data);
    free(upload->etags);
    (void)pthread_mutex_destroy(&upload->mutex);
    (void)pthread_cond_destroy(&upload->changed);
    free(upload);
}

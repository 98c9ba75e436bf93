#include "checkpoint/s3/object.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "checkpoint/s3/xml.h"
#include "common/cleanup.h"

#define NEVER_OVER "If-None-Match: *"
#define BINARY     "Content-Type: application/octet-stream"
#define QUERY_MAX  8192

/* ---- one request each ---- */

enum status s3_object_head(struct s3_client *client, const struct s3_place *place,
                           struct s3_object *out)
{
    struct s3_call call = { .method = "HEAD", .bucket = place->bucket, .key = place->key };
    struct s3_http_answer answer;
    enum status st = s3_client_call(client, &call, &answer);
    if (st != ST_OK)
        return st;
    *out = (struct s3_object){ .size = answer.length, .modified_ms = answer.modified_ms };
    memcpy(out->etag, answer.etag, sizeof(out->etag));
    memcpy(out->nonce, answer.nonce, sizeof(out->nonce));
    s3_http_answer_release(&answer);
    return ST_OK;
}

enum status s3_object_read(struct s3_client *client, const struct s3_place *place, const char *etag,
                           uint64_t at, void *into, size_t size)
{
    char range[96], match[S3_ETAG_MAX + 16];
    (void)snprintf(range, sizeof(range), "Range: bytes=%" PRIu64 "-%" PRIu64, at, at + size - 1);
    (void)snprintf(match, sizeof(match), "If-Match: %s", etag);
    struct s3_call call = {
        .method = "GET",
        .bucket = place->bucket,
        .key = place->key,
        .header = { range, etag[0] == '\0' ? NULL : match },
        .into = into,
        .into_size = size,
    };
    enum status st = s3_client_do(client, &call);
    if (st == ST_EXISTS) {
        s3_client_set_problem(client, ST_IO, "s3://%s/%.200s was replaced while it was read",
                              place->bucket, place->key);
        st = ST_IO;
    }
    return st;
}

enum status s3_object_delete(struct s3_client *client, const struct s3_place *place)
{
    struct s3_call call = { .method = "DELETE", .bucket = place->bucket, .key = place->key };
    enum status st = s3_client_do(client, &call);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* ---- making objects ---- */

static enum status make_nonce(char out[S3_NONCE_TEXT])
{
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return ST_IO;
    for (size_t i = 0; i < sizeof(bytes); i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return ST_OK;
}

/* Decides what an attempt to make an object came to. st: what its call returned. */
static enum status settle_attempt(struct s3_client *client, const struct s3_place *place,
                                  const char *nonce, uint64_t size, enum status st)
{
    if (st == ST_OK || st == ST_REFUSED || st == ST_CONFIG || st == ST_CLOSED)
        return st;
    struct reason reason;
    s3_client_explain(client, st, &reason);
    struct s3_object object;
    enum status found = s3_object_head(client, place, &object);
    if (found == ST_OK && strcmp(object.nonce, nonce) == 0 && object.size == size)
        return ST_OK;
    if (found == ST_OK) {
        s3_client_set_problem(client, ST_EXISTS, "s3://%s/%.200s is there already", place->bucket,
                              place->key);
        return ST_EXISTS;
    }
    st = st == ST_EXISTS || st == ST_NOT_FOUND ? ST_IO : st;
    s3_client_set_problem(client, st, "%s", reason.text);
    return st;
}

enum status s3_object_put_new(struct s3_client *client, const struct s3_place *place,
                              const void *data, size_t size)
{
    char nonce[S3_NONCE_TEXT], mark[96];
    enum status st = make_nonce(nonce);
    if (st != ST_OK)
        return st;
    (void)snprintf(mark, sizeof(mark), "x-amz-meta-cairn-upload: %s", nonce);
    struct s3_call call = {
        .method = "PUT",
        .bucket = place->bucket,
        .key = place->key,
        .header = { BINARY, NEVER_OVER, mark },
        .body = data,
        .size = size,
    };
    return settle_attempt(client, place, nonce, size, s3_client_do(client, &call));
}

/* ---- lists ---- */

struct list_page {
    s3_name_fn fn;
    void *arg;
    size_t prefix_size;
    char token[S3_XML_TEXT]; /* of the next page; "" when there is none */
    bool truncated, stopped;
    char key[S3_XML_TEXT]; /* of the entry whose elements come by, encoded */
    uint64_t size;
};

/* Parses the size of a file in a list. */
static uint64_t size_of(const char *text)
{
    char *end = NULL;
    errno = 0;
    unsigned long long size = strtoull(text, &end, 10);
    bool good = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
    return good ? size : IO_SIZE_UNKNOWN;
}

static void hand_on_entry(struct list_page *page, bool is_folder)
{
    s3_url_decode(page->key);
    size_t size = strlen(page->key);
    if (size <= page->prefix_size)
        return; /* the folder's own marker, which some tools make */
    if (is_folder && page->key[size - 1] == '/')
        page->key[size - 1] = '\0';
    page->stopped = !page->fn(page->arg, page->key + page->prefix_size, is_folder, page->size);
}

static bool take_entry(void *arg, const char *path, const char *text)
{
    struct list_page *page = arg;
    bool file = strcmp(path, "ListBucketResult/Contents") == 0;
    bool folder = strcmp(path, "ListBucketResult/CommonPrefixes") == 0;
    if (strcmp(path, "ListBucketResult/IsTruncated") == 0) {
        page->truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        (void)snprintf(page->token, sizeof(page->token), "%s", text);
    } else if (strcmp(path, "ListBucketResult/Contents/Size") == 0) {
        page->size = size_of(text);
    } else if (strcmp(path, "ListBucketResult/Contents/Key") == 0 ||
               strcmp(path, "ListBucketResult/CommonPrefixes/Prefix") == 0) {
        (void)snprintf(page->key, sizeof(page->key), "%s", text);
    } else if (file || folder) {
        if (!page->stopped)
            hand_on_entry(page, folder);
        page->key[0] = '\0';
        page->size = IO_SIZE_UNKNOWN;
    }
    return true;
}

static enum status list_page(struct s3_client *client, const struct s3_place *folder,
                             const char *prefix, uint32_t size, struct list_page *page)
{
    char query[QUERY_MAX], encoded[3 * S3_KEY_MAX], token[S3_XML_TEXT];
    if (!s3_url_encode(prefix, false, encoded, sizeof(encoded)) ||
        !s3_url_encode(page->token, false, token, sizeof(token)))
        return ST_INVALID;
    int length = snprintf(query, sizeof(query),
                          "%s%s%sdelimiter=%%2F&encoding-type=url&list-type=2&max-keys=%" PRIu32
                          "&prefix=%s",
                          token[0] == '\0' ? "" : "continuation-token=", token,
                          token[0] == '\0' ? "" : "&", size, encoded);
    if (length < 0 || (size_t)length >= sizeof(query))
        return ST_INVALID;
    struct s3_call call = { .method = "GET", .bucket = folder->bucket, .key = "", .query = query };
    struct s3_http_answer answer;
    enum status st = s3_client_call(client, &call, &answer);
    if (st != ST_OK)
        return st;
    page->token[0] = '\0';
    page->truncated = false;
    st = s3_xml_walk(answer.body.data, answer.body.size, take_entry, page);
    if (st == ST_IO) {
        s3_client_set_problem(client, ST_IO, "listing s3://%s/%.200s: the answer is no list",
                              folder->bucket, prefix);
    }
    s3_http_answer_release(&answer);
    return st;
}

enum status s3_list(struct s3_client *client, const struct s3_place *folder, uint32_t page_size,
                    s3_name_fn fn, void *arg)
{
    char prefix[S3_KEY_MAX + 1];
    (void)snprintf(prefix, sizeof(prefix), "%s%s", folder->key, folder->key[0] == '\0' ? "" : "/");
    auto_free struct list_page *page = calloc(1, sizeof(*page));
    if (page == NULL)
        return ST_NO_MEMORY;
    page->fn = fn;
    page->arg = arg;
    page->size = IO_SIZE_UNKNOWN;
    page->prefix_size = strlen(prefix);
    do {
        enum status st = list_page(client, folder, prefix, page_size, page);
        if (st != ST_OK)
            return st;
    } while (page->truncated && page->token[0] != '\0' && !page->stopped);
    if (!page->truncated || page->stopped)
        return ST_OK;
    s3_client_set_problem(client, ST_IO,
                          "listing s3://%s/%.200s: the list breaks off, and the store doesn't say "
                          "where it goes on",
                          folder->bucket, prefix);
    return ST_IO;
}

/* ---- parts ---- */

static bool take_id(void *arg, const char *path, const char *text)
{
    struct s3_multipart *upload = arg;
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") != 0)
        return true;
    int size = snprintf(upload->id, sizeof(upload->id), "%s", text);
    if (size < 0 || (size_t)size >= sizeof(upload->id))
        upload->id[0] = '\0';
    return false;
}

enum status s3_multipart_begin(struct s3_client *client, const struct s3_place *place,
                               struct s3_multipart *out)
{
    struct s3_multipart upload = { .place = *place };
    char mark[96];
    enum status st = make_nonce(upload.nonce);
    if (st != ST_OK)
        return st;
    (void)snprintf(mark, sizeof(mark), "x-amz-meta-cairn-upload: %s", upload.nonce);
    struct s3_call call = {
        .method = "POST",
        .bucket = place->bucket,
        .key = place->key,
        .query = "uploads=",
        .header = { BINARY, mark },
    };
    struct s3_http_answer answer;
    st = s3_client_call(client, &call, &answer);
    if (st != ST_OK)
        return st;
    st = s3_xml_walk(answer.body.data, answer.body.size, take_id, &upload);
    s3_http_answer_release(&answer);
    if (st == ST_NO_MEMORY)
        return st;
    if (st != ST_OK || upload.id[0] == '\0') {
        s3_client_set_problem(client, ST_IO,
                              "s3://%s/%.200s: no number came for an upload in parts",
                              place->bucket, place->key);
        return ST_IO;
    }
    *out = upload;
    return ST_OK;
}

/* The query of a call on an upload; number 0: none. */
static bool upload_query(const struct s3_multipart *upload, uint32_t number, char out[QUERY_MAX])
{
    char id[3 * S3_UPLOAD_ID_MAX], part[32] = "";
    if (!s3_url_encode(upload->id, false, id, sizeof(id)))
        return false;
    if (number != 0)
        (void)snprintf(part, sizeof(part), "partNumber=%" PRIu32 "&", number);
    int size = snprintf(out, QUERY_MAX, "%suploadId=%s", part, id);
    return size >= 0 && size < QUERY_MAX;
}

enum status s3_multipart_part(struct s3_client *client, const struct s3_multipart *upload,
                              uint32_t number, const void *data, size_t size,
                              char etag[S3_ETAG_MAX])
{
    char query[QUERY_MAX];
    if (!upload_query(upload, number, query))
        return ST_INVALID;
    struct s3_call call = {
        .method = "PUT",
        .bucket = upload->place.bucket,
        .key = upload->place.key,
        .query = query,
        .header = { BINARY },
        .body = data,
        .size = size,
    };
    struct s3_http_answer answer;
    enum status st = s3_client_call(client, &call, &answer);
    if (st == ST_OK) {
        bool good = answer.etag[0] != '\0' && strpbrk(answer.etag, "<>&") == NULL;
        if (good)
            memcpy(etag, answer.etag, S3_ETAG_MAX);
        s3_http_answer_release(&answer);
        if (!good) {
            s3_client_set_problem(client, ST_IO, "s3://%s/%.200s: a part was taken without an ETag",
                                  upload->place.bucket, upload->place.key);
        }
        return good ? ST_OK : ST_IO;
    }
    if (st != ST_NOT_FOUND)
        return st;
    s3_client_set_problem(client, ST_IO,
                          "s3://%s/%.200s: its upload in parts is gone; is there a lifecycle rule "
                          "that ends uploads sooner than after a day?",
                          upload->place.bucket, upload->place.key);
    return ST_IO;
}

static enum status make_list(char (*etags)[S3_ETAG_MAX], uint32_t count, struct buf *out)
{
    enum status st = buf_append_text(out, "<CompleteMultipartUpload>");
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        st = buf_printf(out, "<Part><PartNumber>%" PRIu32 "</PartNumber><ETag>%s</ETag></Part>",
                        i + 1, etags[i]);
    }
    return st == ST_OK ? buf_append_text(out, "</CompleteMultipartUpload>") : st;
}

enum status s3_multipart_complete(struct s3_client *client, const struct s3_multipart *upload,
                                  char (*etags)[S3_ETAG_MAX], uint32_t count, uint64_t size)
{
    char query[QUERY_MAX];
    auto_buf struct buf body;
    buf_init(&body, S3_BODY_MAX);
    enum status st = make_list(etags, count, &body);
    if (st == ST_OK && !upload_query(upload, 0, query))
        st = ST_INVALID;
    if (st != ST_OK)
        return st;
    struct s3_call call = {
        .method = "POST",
        .bucket = upload->place.bucket,
        .key = upload->place.key,
        .query = query,
        .header = { "Content-Type: application/xml", NEVER_OVER },
        .body = body.data,
        .size = body.size,
        .patient = true,
        .conflict = true,
    };
    return settle_attempt(client, &upload->place, upload->nonce, size, s3_client_do(client, &call));
}

void s3_multipart_abort(struct s3_client *client, const struct s3_multipart *upload)
{
    char query[QUERY_MAX];
    if (!upload_query(upload, 0, query))
        return;
    struct s3_call call = {
        .method = "DELETE",
        .bucket = upload->place.bucket,
        .key = upload->place.key,
        .query = query,
    };
    (void)!s3_client_do(client, &call);
}

struct upload_sweep {
    struct s3_client *client;
    struct s3_multipart upload; /* the one whose elements come by */
    s3_is_left_fn is_left;
    void *arg;
    bool truncated;
    char key_marker[S3_KEY_MAX], id_marker[S3_UPLOAD_ID_MAX]; /* where the next page begins */
};

static void take_bounded(char *out, size_t capacity, const char *text)
{
    out[0] = '\0';
    if (strlen(text) < capacity)
        memcpy(out, text, strlen(text) + 1);
}

/* A key as it is; the answer has it encoded. */
static void take_key(char out[S3_KEY_MAX], const char *text)
{
    char key[S3_XML_TEXT];
    (void)snprintf(key, sizeof(key), "%s", text);
    s3_url_decode(key);
    take_bounded(out, S3_KEY_MAX, key);
}

static bool take_upload(void *arg, const char *path, const char *text)
{
    struct upload_sweep *sweep = arg;
    struct s3_multipart *upload = &sweep->upload;
    if (strcmp(path, "ListMultipartUploadsResult/IsTruncated") == 0) {
        sweep->truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "ListMultipartUploadsResult/NextKeyMarker") == 0) {
        take_key(sweep->key_marker, text);
    } else if (strcmp(path, "ListMultipartUploadsResult/NextUploadIdMarker") == 0) {
        take_bounded(sweep->id_marker, sizeof(sweep->id_marker), text);
    } else if (strcmp(path, "ListMultipartUploadsResult/Upload/Key") == 0) {
        take_key(upload->place.key, text);
    } else if (strcmp(path, "ListMultipartUploadsResult/Upload/UploadId") == 0) {
        take_bounded(upload->id, sizeof(upload->id), text);
    } else if (strcmp(path, "ListMultipartUploadsResult/Upload") == 0) {
        if (upload->id[0] != '\0' && upload->place.key[0] != '\0' &&
            sweep->is_left(sweep->arg, upload->place.key))
            s3_multipart_abort(sweep->client, upload);
        upload->id[0] = upload->place.key[0] = '\0';
    }
    return true;
}

/* The query of the sweep's next page: what is in it is sorted. */
static bool sweep_query(const struct upload_sweep *sweep, const char *folder, uint32_t page,
                        char out[QUERY_MAX])
{
    char prefix[3 * S3_KEY_MAX], key[3 * S3_KEY_MAX], id[3 * S3_UPLOAD_ID_MAX], marker[64] = "";
    if (!s3_url_encode(folder, false, prefix, sizeof(prefix)) ||
        !s3_url_encode(sweep->key_marker, false, key, sizeof(key)) ||
        !s3_url_encode(sweep->id_marker, false, id, sizeof(id)))
        return false;
    (void)snprintf(marker, sizeof(marker), "max-uploads=%" PRIu32 "&prefix=", page);
    const bool first = key[0] == '\0';
    int size = snprintf(out, QUERY_MAX, "encoding-type=url&%s%s%s%s%s%%2F%s%s&uploads=",
                        first ? "" : "key-marker=", key, first ? "" : "&", marker, prefix,
                        first || id[0] == '\0' ? "" : "&upload-id-marker=", first ? "" : id);
    return size >= 0 && size < QUERY_MAX;
}

static enum status sweep_page(struct upload_sweep *sweep, const struct s3_place *folder,
                              uint32_t page)
{
    char query[QUERY_MAX];
    if (!sweep_query(sweep, folder->key, page, query))
        return ST_INVALID;
    struct s3_call call = { .method = "GET", .bucket = folder->bucket, .key = "", .query = query };
    struct s3_http_answer answer;
    enum status st = s3_client_call(sweep->client, &call, &answer);
    if (st != ST_OK)
        return st;
    sweep->truncated = false;
    sweep->key_marker[0] = sweep->id_marker[0] = '\0';
    st = s3_xml_walk(answer.body.data, answer.body.size, take_upload, sweep);
    s3_http_answer_release(&answer);
    return st;
}

enum status s3_multipart_sweep(struct s3_client *client, const struct s3_place *folder,
                               uint32_t page, s3_is_left_fn is_left, void *arg)
{
    auto_free struct upload_sweep *sweep = calloc(1, sizeof(*sweep));
    if (sweep == NULL)
        return ST_NO_MEMORY;
    *sweep = (struct upload_sweep){ .client = client, .is_left = is_left, .arg = arg };
    sweep->upload.place = *folder;
    enum status st = ST_OK;
    for (int i = 0; i < S3_SWEEP_PAGES && st == ST_OK; i++) {
        st = sweep_page(sweep, folder, page);
        if (!sweep->truncated || sweep->key_marker[0] == '\0')
            break;
    }
    return st;
}

#include "checkpoint/s3/remove.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/s3/xml.h"
#include "common/cleanup.h"

/* ---- what is asked ---- */

/* Text of an element. ST_INVALID: XML has no way to write it. */
static enum status append_escaped(struct buf *out, const char *text)
{
    enum status st = ST_OK;
    for (const char *at = text; *at != '\0' && st == ST_OK; at++) {
        if ((unsigned char)*at < 0x20)
            return ST_INVALID;
        if (*at == '&' || *at == '<' || *at == '>') {
            st = buf_printf(out, "&#%d;", *at);
        } else {
            st = buf_append(out, at, 1);
        }
    }
    return st;
}

static enum status make_request(const struct s3_place *folder, const char *const *names,
                                uint32_t count, struct buf *out)
{
    enum status st = buf_append_text(
        out, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        st = buf_append_text(out, "<Object><Key>");
        if (st == ST_OK)
            st = append_escaped(out, folder->key);
        if (st == ST_OK && folder->key[0] != '\0')
            st = buf_append_text(out, "/");
        if (st == ST_OK)
            st = append_escaped(out, names[i]);
        if (st == ST_OK)
            st = buf_append_text(out, "</Key></Object>");
    }
    return st == ST_OK ? buf_append_text(out, "</Delete>") : st;
}

/* ---- what is answered: the errors alone ---- */

struct removal {
    const struct s3_place *folder;
    const char *const *names;
    uint32_t count;
    bool *gone;
    char key[S3_XML_TEXT]; /* of the error whose elements come by */
    bool complete;         /* the answer has come to its end */
    bool strange;          /* the answer names an object that wasn't asked for */
};

static void note_error(struct removal *r)
{
    const size_t size = strlen(r->folder->key);
    const char *name = r->key;
    bool known = strncmp(name, r->folder->key, size) == 0;
    name += known ? size : 0;
    if (known && size > 0)
        known = *name++ == '/';
    uint32_t i = 0;
    while (known && i < r->count && strcmp(r->names[i], name) != 0)
        i++;
    if (known && i < r->count) {
        r->gone[i] = false;
    } else {
        r->strange = true;
    }
}

static bool take_element(void *arg, const char *path, const char *text)
{
    struct removal *r = arg;
    if (strcmp(path, "DeleteResult/Error/Key") == 0) {
        (void)snprintf(r->key, sizeof(r->key), "%s", text);
    } else if (strcmp(path, "DeleteResult/Error") == 0) {
        note_error(r);
        r->key[0] = '\0';
    } else if (strcmp(path, "DeleteResult") == 0) {
        r->complete = true;
    }
    return true;
}

/* ---- */

enum status s3_remove_many(struct s3_client *client, const struct s3_place *folder,
                           const char *const *names, uint32_t count, bool *out_gone)
{
    auto_buf struct buf body;
    char sum[S3_MD5_TEXT], header[S3_MD5_TEXT + 32];
    buf_init(&body, S3_BODY_MAX);
    memset(out_gone, 0, count * sizeof(*out_gone));
    enum status st = make_request(folder, names, count, &body);
    if (st == ST_INVALID)
        return ST_OK; /* these alone can't be named */
    if (st == ST_OK && s3_md5(body.data, body.size, sum) != ST_OK)
        st = ST_INVALID; /* a machine that has no MD5: without it no store takes this */
    if (st != ST_OK)
        return st;
    (void)snprintf(header, sizeof(header), "Content-MD5: %s", sum);
    struct s3_call call = {
        .method = "POST",
        .bucket = folder->bucket,
        .key = "",
        .query = "delete=",
        .header = { "Content-Type: application/xml", header },
        .body = body.data,
        .size = body.size,
        .patient = true,
        .spare = true,
    };
    struct s3_http_answer answer;
    st = s3_client_call(client, &call, &answer);
    if (st != ST_OK)
        return st;
    struct removal r = { .folder = folder, .names = names, .count = count, .gone = out_gone };
    memset(out_gone, true, count * sizeof(*out_gone));
    st = s3_xml_walk(answer.body.data, answer.body.size, take_element, &r);
    s3_http_answer_release(&answer);
    if (st != ST_OK || !r.complete || r.strange)
        memset(out_gone, 0, count * sizeof(*out_gone));
    return st;
}

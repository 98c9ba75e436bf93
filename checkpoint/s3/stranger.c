#include "checkpoint/s3/stranger.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SAID_BYTES 100

/* The body's begin, behind blanks. */
static bool begins(const struct buf *body, const char *text)
{
    size_t at = 0;
    while (at < body->size && strchr(" \t\r\n", body->data[at]) != NULL)
        at++;
    const size_t size = strlen(text);
    return body->size - at >= size && strncasecmp(body->data + at, text, size) == 0;
}

static bool is_page(const struct buf *body)
{
    return begins(body, "<html") || begins(body, "<!doctype html");
}

static bool is_html(const struct s3_http_answer *answer)
{
    return strncasecmp(answer->type, "text/html", 9) == 0;
}

bool s3_is_stranger(const char *method, const struct s3_http_answer *answer,
                    const struct s3_error *error)
{
    const bool head = strcmp(method, "HEAD") == 0, get = strcmp(method, "GET") == 0;
    const bool empty = answer->body.size == 0;
    if (answer->known || error->code[0] != '\0')
        return false;
    switch (answer->status / 100) {
    case 2:
        return answer->etag[0] == '\0' &&
               (empty ? is_html(answer) && (head || get) : is_page(&answer->body));
    case 3:
        return answer->region[0] == '\0';
    case 4:
        return answer->status != 408 && answer->status != 429 && !empty &&
               (is_page(&answer->body) || !begins(&answer->body, "<"));
    default:
        return false;
    }
}

/* The text of a page without its tags; one blank for several. */
static void plain_text(const struct buf *body, char out[SAID_BYTES])
{
    size_t size = 0;
    bool tag = false;
    for (size_t i = 0; i < body->size && size + 1 < SAID_BYTES; i++) {
        const unsigned char c = (unsigned char)body->data[i];
        const bool blank = c <= ' ' || c == 0x7f || c == '>' || c == '<';
        tag = c == '<' || (tag && c != '>');
        if (tag || (blank && (size == 0 || out[size - 1] == ' ')))
            continue;
        out[size++] = (char)(blank ? ' ' : c > 0x7e ? '?' : c);
    }
    while (size > 0 && out[size - 1] == ' ')
        size--;
    out[size] = '\0';
}

void s3_stranger_say(const struct s3_http_answer *answer, char out[S3_STRANGER_TEXT])
{
    char said[SAID_BYTES];
    plain_text(&answer->body, said);
    const bool leads = answer->status / 100 == 3 && answer->location[0] != '\0';
    (void)snprintf(out, S3_STRANGER_TEXT, "%s%s%s%s%.100s", said[0] != '\0' ? ": '" : "", said,
                   said[0] != '\0' ? "'" : "", leads ? ", it leads to " : "",
                   leads ? answer->location : "");
}

const char *s3_stranger_hint(const char *endpoint, const struct s3_http_answer *answer)
{
    const bool plain = strncmp(endpoint, "http://", 7) == 0;
    const struct buf *body = &answer->body;
    if (plain && ((body->size > 0 && memmem(body->data, body->size, "HTTPS", 5) != NULL) ||
                  (answer->status / 100 == 3 && strncmp(answer->location, "https://", 8) == 0)))
        return "; write https:// in AWS_ENDPOINT_URL_S3";
    if (endpoint[0] == '\0') {
        return "; a proxy between here and the store, or a network that wants a login, answers "
               "instead";
    }
    return "; is AWS_ENDPOINT_URL_S3 right, and no proxy between here and the store?";
}

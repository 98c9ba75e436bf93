#include "tests/fuzz/http/http_answers.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/check.h"

enum { TEXT_MAX = 8 << 20 };

/* One answer within the text. */
struct answer {
    const char *head, *body;
    size_t head_size; /* with the empty line */
    int status;
};

static bool has(const struct answer *answer, const char *text)
{
    return memmem(answer->head, answer->head_size, text, strlen(text)) != NULL;
}

/* The library's own: what it says of a version and of an encoding that it doesn't know. */
static bool is_bad(int status)
{
    return status >= 500 && status != 503 && status != 501 && status != 505;
}

/* What stands where an answer should begin, and what came before. */
static void tell(const char *text, size_t size, const struct http_answers *answers)
{
    const size_t before = (size_t)(text - answers->text.data);
    (void)fprintf(stderr, "no status line after %zu bytes: [%.*s] of [%.*s]\n", before,
                  (int)(size < 512 ? size : 512), text, (int)(before < 4096 ? before : 4096),
                  answers->text.data);
}

static bool read_head(const char *text, size_t size, struct answer *answer,
                      const struct http_answers *answers)
{
    const char *end = size > 0 ? memmem(text, size, "\r\n\r\n", 4) : NULL;
    if (end == NULL)
        return false;
    *answer = (struct answer){ .head = text, .head_size = (size_t)(end - text) + 4 };
    answer->body = text + answer->head_size;
    if (strncmp(text, "HTTP/1.", 7) != 0)
        tell(text, size, answers);
    CHECK(strncmp(text, "HTTP/1.", 7) == 0);
    answer->status = (int)strtol(text + 9, NULL, 10);
    CHECK(!is_bad(answer->status));
    CHECK(!has(answer, "X-Evil"));
    return true;
}

/* The chunks' bytes to out; the size of all of them as they came, 0: they aren't all there. */
static size_t read_chunks(const char *text, size_t size, struct buf *out)
{
    for (size_t at = 0;;) {
        const char *line = size > at ? memmem(text + at, size - at, "\r\n", 2) : NULL;
        if (line == NULL)
            return 0;
        const size_t length = strtoul(text + at, NULL, 16);
        at = (size_t)(line - text) + 2;
        if (size - at < length + 2)
            return 0;
        CHECK(buf_append(out, text + at, length) == ST_OK);
        at += length + 2;
        if (length == 0)
            return at;
    }
}

static void check_body(const struct answer *answer, const char *body, size_t size)
{
    if (!has(answer, "Content-Type: application/json"))
        return;
    json_t *value = json_loadb(body, size, JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY, NULL);
    CHECK(value != NULL);
    json_decref(value);
}

/* Where the next one begins; 0: it isn't all there. */
static size_t read_one(const char *text, size_t size, const struct http_asked *asked,
                       struct http_answers *answers)
{
    struct answer answer;
    struct buf whole;
    if (!read_head(text, size, &answer, answers))
        return 0;
    const size_t left = size - answer.head_size;
    CHECK(!asked->posts || asked->may || answer.status >= 300 || answer.status == 100);
    answers->opened += answer.status == 303;
    if (asked->is_head || answer.status < 200 || answer.status == 204 || answer.status == 304)
        return answer.head_size;
    if (has(&answer, "text/event-stream")) {
        answers->stream = true;
        return 0;
    }
    const char *length = memmem(text, answer.head_size, "Content-Length: ", 16);
    if (length != NULL) {
        const size_t wanted = strtoul(length + 16, NULL, 10);
        if (left < wanted)
            return 0;
        check_body(&answer, answer.body, wanted);
        return answer.head_size + wanted;
    }
    if (!has(&answer, "chunked")) { /* an older client's ends with the connection */
        CHECK(has(&answer, "Connection: close"));
        if (!answers->whole)
            return 0;
        check_body(&answer, answer.body, left);
        return size;
    }
    buf_init(&whole, TEXT_MAX);
    const size_t used = read_chunks(answer.body, left, &whole);
    if (used > 0)
        check_body(&answer, whole.data, whole.size);
    buf_release(&whole);
    return used > 0 ? answer.head_size + used : 0;
}

/* A status line can't be within a body: what is there has no such line. */
static void look_at_lines(struct http_answers *answers)
{
    if (answers->text.size == 0)
        return;
    const char *at = answers->text.data, *end = at + answers->text.size;
    while (at < end && (at = memmem(at, (size_t)(end - at), "HTTP/1.", 7)) != NULL) {
        if ((at == answers->text.data || at[-1] == '\n') && end - at > 12) {
            const int status = (int)strtol(at + 9, NULL, 10);
            CHECK(!is_bad(status));
            answers->opened += status == 303;
        }
        at += 7;
    }
    answers->stream =
        memmem(answers->text.data, answers->text.size, "text/event-stream", 17) != NULL;
}

/* Reads what is there; false: no more comes, or not in time. */
static bool read_some(struct http_answers *answers, int fd, int wait_ms)
{
    char data[16384];
    struct pollfd in = { .fd = fd, .events = POLLIN };
    int ready;
    do {
        ready = poll(&in, 1, wait_ms);
    } while (ready < 0 && errno == EINTR); /* the fuzzer's own clock */
    if (ready <= 0) {
        answers->late = true;
        return false;
    }
    const ssize_t got = recv(fd, data, sizeof(data), MSG_DONTWAIT);
    if (got <= 0)
        answers->whole = true;
    return got > 0 && buf_append(&answers->text, data, (size_t)got) == ST_OK;
}

void http_answers_read(struct http_answers *answers, int fd, const struct http_asked *asked,
                       size_t count, int wait_ms)
{
    size_t at = 0, answered = 0;
    *answers = (struct http_answers){ .late = false };
    buf_init(&answers->text, TEXT_MAX);
    bool more = true;
    while (more && !answers->stream && (answered < count || count == 0)) {
        more = read_some(answers, fd, wait_ms);
        while (answered < count && !answers->stream && at < answers->text.size) {
            const char *next = answers->text.data + at;
            const size_t used = read_one(next, answers->text.size - at, &asked[answered], answers);
            if (used == 0)
                break;
            answered += strncmp(next + 8, " 100", 4) != 0;
            at += used;
        }
    }
    if (count == 0)
        look_at_lines(answers);
    answers->whole = answers->whole || (count > 0 && answered == count);
}

void http_answers_release(struct http_answers *answers)
{
    buf_release(&answers->text);
}

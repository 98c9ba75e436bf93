/* What a server of HTTP answers, read from a socket and looked at. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

/* One request of those that were sent, in their order. */
struct http_asked {
    bool posts, may; /* may: it is allowed to do something */
    bool is_head;
};

struct http_answers {
    struct buf text;
    size_t opened; /* answers that let somebody in */
    bool whole;    /* nothing more comes */
    bool late;     /* it was waited for in vain */
    bool stream;   /* events come, and weren't waited for */
};

/*
 * Reads until there are `count` answers, the peer has hung up, or nothing came for wait_ms; count
 * 0: it isn't known what was asked.
 *
 * Checks that no answer is a 5xx but 503, none of what may not act is a success, JSON is JSON, and
 * no header comes from elsewhere.
 */
void http_answers_read(struct http_answers *answers, int fd, const struct http_asked *asked,
                       size_t count, int wait_ms);
void http_answers_release(struct http_answers *answers);

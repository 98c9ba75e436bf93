#include "agent/net/measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"

#define CHUNK_BYTES ((size_t)256 * 1024)
#define WRITES      4 /* under way */

static const char chunk[CHUNK_BYTES];

struct measure {
    struct measure *next;
    struct measures *of;
    uint64_t id, begun_ns, sent, bytes_max;
    uint32_t ms, port;
    char host[LIMIT_NAME];
    uint8_t token[MEASURE_TOKEN], answer[MEASURE_ANSWER];
    size_t answered; /* bytes of it */
    uv_getaddrinfo_t resolve;
    uv_timer_t timer;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_write_t token_write, writes[WRITES];
    unsigned writing; /* of them */
    unsigned handles; /* that are not closed */
    bool resolving, sent_all, over;
    char saw[LIMIT_SAW];
};

/* ---- ends ---- */

static void free_if_over(struct measure *measure)
{
    struct measures *of = measure->of;
    if (!measure->over || measure->resolving || measure->handles > 0)
        return;
    struct measure **at = &of->list;
    while (*at != measure)
        at = &(*at)->next;
    *at = measure->next;
    of->count--;
    free(measure);
    if (of->list == NULL)
        of->empty(of->arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct measure *measure = handle->data;
    measure->handles--;
    free_if_over(measure);
}

static void end(struct measure *measure, const struct probe_result *result)
{
    if (measure->over)
        return;
    measure->over = true;
    if (!measure->of->closing)
        measure->of->done(measure->of->arg, result);
    uv_close((uv_handle_t *)&measure->timer, on_closed);
    uv_close((uv_handle_t *)&measure->tcp, on_closed);
}

static void fail(struct measure *measure, const char *why)
{
    (void)snprintf(measure->saw, sizeof(measure->saw), "%.60s port %" PRIu32 ": %.50s",
                   measure->host, measure->port, why);
    const struct probe_result result = { .id = measure->id, .saw = measure->saw };
    end(measure, &result);
}

static void on_late(uv_timer_t *timer)
{
    struct measure *measure = timer->data;
    (void)snprintf(measure->saw, sizeof(measure->saw),
                   "%.50s port %" PRIu32 ": connects, but of %" PRIu64 " bytes none arrived",
                   measure->host, measure->port, measure->sent);
    const struct probe_result result = { .id = measure->id, .saw = measure->saw };
    end(measure, &result);
}

/* ---- the answer ---- */

static uint64_t read_number(const uint8_t *bytes)
{
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--)
        number = number << 8 | bytes[i];
    return number;
}

static void write_number(uint64_t number, uint8_t *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(number >> 8 * i);
}

void measure_answer_write(uint64_t bytes, uint64_t us, uint8_t out[MEASURE_ANSWER])
{
    write_number(bytes, out);
    write_number(us, out + 8);
}

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct measure *measure = handle->data;
    (void)suggested;
    *buf = uv_buf_init((char *)measure->answer + measure->answered,
                       (unsigned)(MEASURE_ANSWER - measure->answered));
}

static void on_answer(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct measure *measure = stream->data;
    (void)buf;
    if (measure->over)
        return;
    if (size < 0) {
        fail(measure, uv_strerror((int)size));
        return;
    }
    measure->answered += (size_t)size;
    if (measure->answered < MEASURE_ANSWER)
        return;
    if (memcmp(measure->answer, measure->token, MEASURE_TOKEN) == 0) { /* as of any probe */
        fail(measure, "its agent expects no data from here");
        return;
    }
    const struct probe_result result = { .id = measure->id,
                                         .reached = true,
                                         .bytes = read_number(measure->answer),
                                         .took_us = read_number(measure->answer + 8),
                                         .saw = measure->saw };
    (void)snprintf(measure->saw, sizeof(measure->saw),
                   "%" PRIu64 " bytes arrived within %" PRIu64 " us", result.bytes, result.took_us);
    end(measure, &result);
}

/* ---- data ---- */

static void on_written(uv_write_t *request, int status);

static void on_shut_down(uv_shutdown_t *request, int status)
{
    (void)request;
    (void)status;
}

static void send_more(struct measure *measure, uv_write_t *request)
{
    const bool late = (uv_hrtime() - measure->begun_ns) / 1000000 >= measure->ms;
    uv_stream_t *stream = (uv_stream_t *)&measure->tcp;
    if (!late && measure->sent < measure->bytes_max) {
        const uint64_t left = measure->bytes_max - measure->sent;
        const size_t size = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        const uv_buf_t bytes = { .base = (char *)chunk, .len = size };
        request->data = measure;
        if (uv_write(request, stream, &bytes, 1, on_written) == 0) {
            measure->writing++;
            measure->sent += size;
        }
    }
    if (measure->writing == 0 && !measure->sent_all) {
        measure->sent_all = true;
        (void)uv_shutdown(&measure->shutdown, stream, on_shut_down);
    }
}

static void on_written(uv_write_t *request, int status)
{
    struct measure *measure = request->data;
    measure->writing--;
    if (measure->over || status == UV_ECANCELED)
        return;
    if (status == 0) {
        send_more(measure, request);
    } else {
        fail(measure, uv_strerror(status));
    }
}

static void on_token_written(uv_write_t *request, int status)
{
    struct measure *measure = request->data;
    if (!measure->over && status != 0 && status != UV_ECANCELED)
        fail(measure, uv_strerror(status));
}

/* ---- its begin ---- */

static void on_connected(uv_connect_t *request, int status)
{
    struct measure *measure = request->data;
    uv_stream_t *stream = (uv_stream_t *)&measure->tcp;
    if (measure->over)
        return;
    const uv_buf_t bytes = uv_buf_init((char *)measure->token, MEASURE_TOKEN);
    measure->token_write.data = measure;
    measure->begun_ns = uv_hrtime();
    int error = status;
    if (error == 0)
        error = uv_read_start(stream, give_room, on_answer);
    if (error == 0)
        error = uv_write(&measure->token_write, stream, &bytes, 1, on_token_written);
    if (error != 0) {
        fail(measure, uv_strerror(error));
        return;
    }
    for (int i = 0; i < WRITES; i++)
        send_more(measure, &measure->writes[i]);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct measure *measure = request->data;
    measure->resolving = false;
    int error = status;
    if (error == 0 && !measure->over) {
        measure->connect.data = measure;
        error = uv_tcp_connect(&measure->connect, &measure->tcp, found->ai_addr, on_connected);
    }
    uv_freeaddrinfo(found);
    if (error != 0 && !measure->over)
        fail(measure, uv_strerror(error));
    free_if_over(measure);
}

static struct measure *new_measure(struct measures *measures, const struct measure_ask *ask)
{
    struct measure *measure = calloc(1, sizeof(*measure));
    if (measure == NULL)
        return NULL;
    measure->of = measures;
    measure->id = ask->id;
    measure->port = ask->port;
    measure->ms = ask->ms < MEASURE_MS_MAX ? ask->ms : MEASURE_MS_MAX;
    measure->bytes_max = ask->bytes_max < MEASURE_BYTES_MAX ? ask->bytes_max : MEASURE_BYTES_MAX;
    (void)snprintf(measure->host, sizeof(measure->host), "%s", ask->host);
    memcpy(measure->token, ask->token, MEASURE_TOKEN);
    measure->resolve.data = measure;
    return measure;
}

void measures_start(struct measures *measures, const struct measure_ask *ask)
{
    if (measures->closing || measures->count >= MEASURES_MAX || ask->port == 0 ||
        ask->port > UINT16_MAX || strlen(ask->host) >= LIMIT_NAME)
        return;
    struct measure *measure = new_measure(measures, ask);
    if (measure == NULL)
        return;
    char service[8];
    (void)snprintf(service, sizeof(service), "%" PRIu32, ask->port);
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    if (uv_getaddrinfo(measures->loop, &measure->resolve, on_resolved, ask->host, service,
                       &hints) != 0) {
        free(measure);
        return;
    }
    measure->resolving = true;
    CHECK(uv_timer_init(measures->loop, &measure->timer) == 0);
    CHECK(uv_tcp_init(measures->loop, &measure->tcp) == 0);
    measure->handles = 2;
    measure->timer.data = measure;
    measure->tcp.data = measure;
    measure->next = measures->list;
    measures->list = measure;
    measures->count++;
    uv_update_time(measures->loop);
    CHECK(uv_timer_start(&measure->timer, on_late, MEASURE_END_MS, 0) == 0);
}

void measures_close(struct measures *measures)
{
    const struct probe_result nobody_hears = { .id = 0 };
    measures->closing = true;
    for (struct measure *measure = measures->list; measure != NULL; measure = measure->next)
        end(measure, &nobody_hears);
}

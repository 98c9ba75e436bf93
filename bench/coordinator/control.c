/* Calls that people's programs make, and how long their answers take. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/coordinator/fleet.h"
#include "common/check.h"
#include "common/io.h"
#include "common/unconst.h"

enum { CALL_MS = 60000, PROBES_MAX = 1 << 20 };

static struct rpc_channel *open_channel(const struct fleet_options *options)
{
    struct rpc_channel *channel = NULL;
    const struct rpc_channel_options how = { .target = options->target,
                                             .token = options->token,
                                             .backoff_min_ms = 5,
                                             .backoff_max_ms = 10 };
    if (rpc_channel_new(&how, &channel) != ST_OK)
        (void)fprintf(stderr, "%s: no usable address\n", options->target);
    return channel;
}

static bool call(struct rpc_channel *channel, const char *method, const ProtobufCMessage *request,
                 ProtobufCMessage **out)
{
    const struct rpc_call_options how = { .timeout_ms = CALL_MS, .wait_for_ready = true };
    struct rpc_result result;
    if (rpc_unary(channel, &cairn__v1__control__descriptor, method, request, &how, out, &result) ==
        ST_OK)
        return true;
    (void)fprintf(stderr, "%s: %s: %s\n", method, rpc_code_name(result.code), result.detail);
    return false;
}

/* ---- submit ---- */

int control_submit(const struct fleet_options *options, const char *file, uint32_t count)
{
    char *text = NULL, base[LIMIT_PATH];
    size_t size = 0;
    if (io_read_file(io_system(), file, (size_t)LIMIT_JOB_FILE_BYTES, &text, &size) != ST_OK ||
        getcwd(base, sizeof(base)) == NULL) {
        (void)fprintf(stderr, "%s: can't be read\n", file);
        return 1;
    }
    struct rpc_channel *channel = open_channel(options);
    if (channel == NULL)
        return 1;
    for (uint32_t i = 0; i < count; i++) {
        char key[64];
        const int64_t begin_ns = clock_mono_ns();
        Cairn__V1__SubmitJobRequest request = CAIRN__V1__SUBMIT_JOB_REQUEST__INIT;
        ProtobufCMessage *message = NULL;
        (void)snprintf(key, sizeof(key), "fleet-%d-%lld", getpid(), (long long)begin_ns);
        request.job_file = text;
        request.base_dir = base;
        request.idempotency_key = key;
        if (!call(channel, "SubmitJob", &request.base, &message))
            return 1;
        const int64_t end_ns = clock_mono_ns();
        const Cairn__V1__SubmitJobReply *reply =
            (const Cairn__V1__SubmitJobReply *)(const void *)message;
        (void)printf("{\"id\":\"%s\",\"ms\":%.3f}\n", reply->job->id,
                     (double)(end_ns - begin_ns) / 1e6);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    rpc_channel_free(channel);
    free(text);
    return 0;
}

/* ---- probe ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool probe_once(struct rpc_channel *channel)
{
    Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    if (!call(channel, "GetVersion", &request.base, &message))
        return false;
    protobuf_c_message_free_unpacked(message, NULL);
    return true;
}

static void sleep_until(int64_t at_ns)
{
    const int64_t left_ns = at_ns - clock_mono_ns();
    if (left_ns > 0)
        (void)poll(NULL, 0, (int)(left_ns / 1000000));
}

int control_probe(const struct fleet_options *options, uint32_t per_second, uint32_t seconds)
{
    struct rpc_channel *channel = open_channel(options);
    if (channel == NULL || !probe_once(channel))
        return 1;
    const int64_t begin_ns = clock_mono_ns();
    if (seconds == 0) {
        (void)printf("{\"t\":%lld}\n", (long long)begin_ns);
        return 0;
    }
    const size_t count = (size_t)per_second * seconds;
    CHECK(count > 0 && count <= PROBES_MAX);
    double *ms = calloc(count, sizeof(*ms)), sum = 0;
    CHECK(ms != NULL);
    for (size_t i = 0; i < count; i++) {
        const int64_t due_ns = begin_ns + (int64_t)i * 1000000000 / per_second;
        sleep_until(due_ns);
        if (!probe_once(channel))
            return 1;
        ms[i] = (double)(clock_mono_ns() - due_ns) / 1e6;
        sum += ms[i];
    }
    qsort(ms, count, sizeof(*ms), compare);
    (void)printf(
        "{\"count\":%zu,\"mean_ms\":%.3f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f}\n", count,
        sum / (double)count, ms[count / 2], ms[count - 1 - count / 100], ms[count - 1]);
    rpc_channel_free(channel);
    return 0;
}

#include "agent/telemetry/gpu.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/telemetry/nvml.h"
#include "common/clock.h"

#define POLL_MS  1000
#define CLOSE_MS 2000

/*
 * Invariants: `lock` guards everything below it; the thread alone calls NVML. `handles` are fixed
 * before the thread starts. A thread that hangs in the driver when the watch is closed is
 * abandoned: the watch is then its own, it logs no more, and frees the watch should the driver ever
 * answer.
 */
struct gpu_watch {
    const struct log *log;
    struct nvml nvml;
    void *events; /* NULL: the driver has none */
    void *handles[LIMIT_GPUS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended_cond;
    bool stop, ended, abandoned;
    int64_t answered_ms; /* mono; of the last whole round */
    size_t count;
    struct gpu_state gpus[LIMIT_GPUS];
};

/* Xids after which a GPU must not be used before it was reset or replaced (NVIDIA, "XID errors").
 */
static const char *xid_meaning(unsigned long long xid)
{
    static const struct {
        unsigned long long xid;
        const char *what;
    } bad[] = {
        { 46, "the GPU stopped processing" },
        { 48, "double-bit ECC error" },
        { 62, "internal micro-controller halt" },
        { 64, "ECC page retirement or row remapping failed" },
        { 74, "NVLink error" },
        { 79, "the GPU has fallen off the bus" },
        { 92, "high single-bit ECC error rate" },
        { 94, "contained ECC error" },
        { 95, "uncontained ECC error" },
        { 119, "GSP timeout" },
        { 120, "GSP error" },
        { 136, "link training failed" },
        { 140, "unrecovered ECC error" },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (bad[i].xid == xid)
            return bad[i].what;
    }
    return NULL;
}

static void set_problem(struct gpu_watch *w, size_t i, const char *text)
{
    struct gpu_state *gpu = &w->gpus[i];
    if (gpu->problem[0] != '\0' || w->abandoned)
        return;
    (void)snprintf(gpu->problem, sizeof(gpu->problem), "%s", text);
    LOG_ERROR(w->log, "GPU %zu (%s): %s; it takes no more workers", i, gpu->uuid, gpu->problem);
}

static bool is_stopped(struct gpu_watch *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return stop;
}

static void take_xid(struct gpu_watch *w, const struct nvml_event *event)
{
    for (size_t i = 0; i < w->count; i++) {
        const char *meaning = xid_meaning(event->data);
        if (w->handles[i] != event->device || (event->type & NVML_EVENT_XID) == 0)
            continue;
        if (meaning == NULL) {
            if (!is_stopped(w))
                LOG_WARN(w->log, "GPU %zu: Xid %llu, ignoring", i, event->data);
            continue;
        }
        char text[LIMIT_NAME];
        (void)snprintf(text, sizeof(text), "Xid %llu: %s", event->data, meaning);
        (void)pthread_mutex_lock(&w->lock);
        set_problem(w, i, text);
        (void)pthread_mutex_unlock(&w->lock);
    }
}

/* Reads the values that change into a copy of the GPU's state, and returns it. */
static struct gpu_state ask_gpu(struct gpu_watch *w, size_t i)
{
    (void)pthread_mutex_lock(&w->lock);
    struct gpu_state gpu = w->gpus[i];
    (void)pthread_mutex_unlock(&w->lock);
    struct nvml_memory memory = { 0 };
    unsigned temperature = 0;
    unsigned long long reasons = 0;
    unsigned long long ecc = 0;
    if (w->handles[i] == NULL)
        return gpu; /* it couldn't be opened */
    if (w->nvml.memory != NULL && w->nvml.memory(w->handles[i], &memory) == NVML_OK) {
        gpu.memory_bytes = memory.total;
        gpu.memory_used_bytes = memory.used;
    }
    if (w->nvml.temperature != NULL &&
        w->nvml.temperature(w->handles[i], NVML_TEMPERATURE, &temperature) == NVML_OK)
        gpu.temperature = temperature;
    if (w->nvml.throttling != NULL && w->nvml.throttling(w->handles[i], &reasons) == NVML_OK)
        gpu.throttled = (reasons & (NVML_THROTTLE_HEAT | NVML_THROTTLE_POWER)) != 0;
    struct nvml_utilization use = { 0 };
    unsigned power_mw = 0;
    gpu.utilization = gpu.power_watts = (double)NAN;
    if (w->nvml.utilization != NULL && w->nvml.utilization(w->handles[i], &use) == NVML_OK)
        gpu.utilization = (use.gpu < 100 ? use.gpu : 100) / 100.0;
    if (w->nvml.power != NULL && w->nvml.power(w->handles[i], &power_mw) == NVML_OK)
        gpu.power_watts = power_mw / 1e3;
    if (w->nvml.ecc != NULL &&
        w->nvml.ecc(w->handles[i], NVML_UNCORRECTED, NVML_SINCE_BOOT, &ecc) == NVML_OK)
        gpu.ecc_errors = ecc;
    return gpu;
}

static void poll_gpus(struct gpu_watch *w)
{
    for (size_t i = 0; i < w->count; i++) {
        struct gpu_state now = ask_gpu(w, i);
        (void)pthread_mutex_lock(&w->lock);
        bool more = now.ecc_errors > w->gpus[i].ecc_errors;
        memcpy(now.problem, w->gpus[i].problem, sizeof(now.problem)); /* set meanwhile, maybe */
        w->gpus[i] = now;
        if (more)
            set_problem(w, i, "a new uncorrected ECC error");
        (void)pthread_mutex_unlock(&w->lock);
    }
    (void)pthread_mutex_lock(&w->lock);
    w->answered_ms = clock_mono_ms(clock_system());
    (void)pthread_mutex_unlock(&w->lock);
}

static void wait_for_events(struct gpu_watch *w)
{
    struct nvml_event event = { 0 };
    if (w->events != NULL) {
        int result = w->nvml.events_wait(w->events, &event, POLL_MS);
        if (result == NVML_OK) {
            take_xid(w, &event);
            return;
        }
        if (result == NVML_TIMEOUT)
            return;
    }
    const struct timespec pause = { .tv_sec = POLL_MS / 1000 };
    (void)nanosleep(&pause, NULL);
}

static void free_watch(struct gpu_watch *w)
{
    if (w->events != NULL)
        (void)w->nvml.events_free(w->events);
    nvml_close(&w->nvml);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->ended_cond);
    free(w);
}

static void *watch_main(void *arg)
{
    struct gpu_watch *w = arg;
    while (!is_stopped(w)) {
        wait_for_events(w);
        poll_gpus(w);
    }
    (void)pthread_mutex_lock(&w->lock);
    w->ended = true;
    bool abandoned = w->abandoned;
    (void)pthread_cond_signal(&w->ended_cond);
    (void)pthread_mutex_unlock(&w->lock);
    if (abandoned)
        free_watch(w);
    return NULL;
}

/* Reads the values that never change. ECC errors from before count as known, not as new ones. */
static void identify_gpu(struct gpu_watch *w, size_t i)
{
    struct gpu_state *gpu = &w->gpus[i];
    int major = 0;
    int minor = 0;
    if (w->nvml.driver_version != NULL)
        (void)w->nvml.driver_version(gpu->driver, sizeof(gpu->driver));
    if (w->nvml.name != NULL)
        (void)w->nvml.name(w->handles[i], gpu->name, sizeof(gpu->name));
    if (w->nvml.capability(w->handles[i], &major, &minor) == NVML_OK)
        gpu->capability = (uint32_t)(major * 10 + minor);
    *gpu = ask_gpu(w, i);
    if (w->events != NULL)
        (void)w->nvml.events_register(w->handles[i], NVML_EVENT_XID, w->events);
}

/* True if a scheduler's list for this agent has the GPU: "0,2" or "GPU-01ab,GPU-7", numbers, or
 * beginnings of UUIDs that are unique. NULL: all GPUs of the machine are ours. */
static bool is_lent(const char *list, unsigned index, const char *uuid)
{
    if (list == NULL)
        return true;
    for (const char *at = list; *at != '\0';) {
        const size_t size = strcspn(at, ",");
        char *end = NULL;
        const unsigned long number = strtoul(at, &end, 10);
        if (at[0] >= '0' && at[0] <= '9' && end == at + size && number == index)
            return true;
        if (size > strlen("GPU-") && strncmp(at, uuid, size) == 0)
            return true;
        at += size + (at[size] == ',');
    }
    return false;
}

/* Adds a GPU. One that can't be opened keeps its place: slots are numbers, also those that a
 * trainer holds. */
static void add_gpu(struct gpu_watch *w, unsigned index)
{
    const size_t i = w->count;
    struct gpu_state *gpu = &w->gpus[i];
    const bool opened = w->nvml.handle(index, &w->handles[i]) == NVML_OK &&
                        w->nvml.uuid(w->handles[i], gpu->uuid, sizeof(gpu->uuid)) == NVML_OK;
    if (!is_lent(getenv("CUDA_VISIBLE_DEVICES"), index, gpu->uuid)) {
        *gpu = (struct gpu_state){ .uuid = "" };
        return;
    }
    w->count++;
    if (opened) {
        identify_gpu(w, i);
    } else {
        w->handles[i] = NULL;
        gpu->utilization = gpu->power_watts = (double)NAN;
        set_problem(w, i, "the driver can't open it");
    }
}

static void find_gpus(struct gpu_watch *w)
{
    unsigned count = 0;
    if (w->nvml.count(&count) != NVML_OK)
        count = 0;
    if (count > LIMIT_GPUS) {
        LOG_WARN(w->log, "%u GPUs, using %d", count, LIMIT_GPUS);
        count = LIMIT_GPUS;
    }
    if (w->nvml.events_new == NULL || w->nvml.events_new(&w->events) != NVML_OK)
        w->events = NULL;
    for (unsigned i = 0; i < count; i++)
        add_gpu(w, i);
}

enum status gpu_watch_open(const char *library, const struct log *log, struct gpu_watch **out)
{
    *out = NULL;
    struct gpu_watch *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return ST_NO_MEMORY;
    w->log = log;
    enum status st = nvml_open(library, &w->nvml);
    if (st != ST_OK) {
        if (st != ST_NOT_FOUND)
            LOG_WARN(log, "the NVIDIA driver's NVML can't be used: %s; no GPUs", status_string(st));
        free(w);
        return ST_OK;
    }
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->ended_cond, NULL);
    find_gpus(w);
    w->answered_ms = clock_mono_ms(clock_system());
    if (w->count == 0 || pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        free_watch(w);
        return ST_OK;
    }
    *out = w;
    return ST_OK;
}

void gpu_watch_close(struct gpu_watch *watch)
{
    if (watch == NULL)
        return;
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += CLOSE_MS / 1000;
    (void)pthread_mutex_lock(&watch->lock);
    watch->stop = true;
    int error = 0;
    while (!watch->ended && error == 0)
        error = pthread_cond_timedwait(&watch->ended_cond, &watch->lock, &end);
    pthread_t thread = watch->thread;
    bool ended = watch->ended;
    watch->abandoned = !ended;
    (void)pthread_mutex_unlock(&watch->lock);
    if (!ended) {
        (void)pthread_detach(thread); /* it hangs in the driver, and keeps the watch */
        return;
    }
    (void)pthread_join(thread, NULL);
    free_watch(watch);
}

size_t gpu_read(struct gpu_watch *watch, struct gpu_state *out, size_t capacity)
{
    if (watch == NULL)
        return 0;
    (void)pthread_mutex_lock(&watch->lock);
    bool silent = clock_mono_ms(clock_system()) > watch->answered_ms + GPU_SILENT_MS;
    for (size_t i = 0; i < watch->count; i++) {
        if (silent)
            set_problem(watch, i, "the driver does not answer");
        if (i < capacity)
            out[i] = watch->gpus[i];
    }
    size_t count = watch->count;
    (void)pthread_mutex_unlock(&watch->lock);
    return count < capacity ? count : capacity;
}

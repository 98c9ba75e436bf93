#include "trainer/device/device.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/check.h"
#include "common/limits.h"
#include "kernels/module.h"

/* Number of the only device that a process sees: the agent hides the others
 * (CUDA_VISIBLE_DEVICES). */
#define ORDINAL 0

/* known: what was said of it already, or "". */
static enum status device_fail(enum status st, const struct device *device, const char *cause,
                               const struct reason *known, struct reason *reason)
{
    const char *why = device->backend != NULL && device->table->why != NULL
                          ? device->table->why(device->backend)
                          : known->text;
    reason_set(reason, "device %s: %s: %s%s%s", device->table->name, cause, status_string(st),
               why[0] != '\0' ? ": " : "", why);
    return st;
}

static enum status find_module(const char *kind, struct device *device, struct reason *reason)
{
    const struct module *module = NULL;
    if (module_load(kind, ORDINAL, &module, reason) != ST_OK)
        return ST_CONFIG;
    device->table = module->backend;
    device->comm = module->comm;
    device->ordinal = ORDINAL;
    return ST_OK;
}

static enum status find_tables(const struct device_options *options, struct device *device,
                               struct reason *reason)
{
    device->ordinal = -1;
    if (options->table != NULL) {
        device->table = options->table;
        device->comm = options->comm;
        return ST_OK;
    }
    switch (options->job->workers.device) {
    case JOBSPEC_DEVICE_CPU:
        device->table = backend_cpu();
        device->comm = comm_gloo();
        return ST_OK;
    case JOBSPEC_DEVICE_CUDA:
        return find_module(jobspec_device_word(JOBSPEC_DEVICE_CUDA), device, reason);
    case JOBSPEC_DEVICE_NONE:
        break;
    }
    CHECK(false); /* every job has a device */
    return ST_INVALID;
}

static enum status open_streams(struct device *device)
{
    const struct backend_table *table = device->table;
    enum status st = table->stream_new(device->backend, &device->compute);
    if (table->host_memory)
        return st;
    if (st == ST_OK)
        st = table->stream_new(device->backend, &device->input);
    if (st == ST_OK)
        st = table->stream_new(device->backend, &device->staging);
    if (st == ST_OK)
        st = table->stream_new(device->backend, &device->communication);
    if (st == ST_OK)
        st = table->stream_new(device->backend, &device->pipe);
    return st;
}

enum status device_open(const struct device_options *options, struct device *out,
                        struct reason *reason)
{
    struct device device = { 0 };
    enum status st = find_tables(options, &device, reason);
    if (st != ST_OK)
        return st;
    struct reason why = { "" };
    const struct backend_options backend = {
        .ordinal = device.ordinal < 0 ? 0 : device.ordinal,
        .threads = (int)options->job->workers.threads,
        .managed = options->job->workers.memory == JOBSPEC_MEMORY_MANAGED,
        .choices = options->choices,
        .why = &why,
    };
    st = device.table->open(&backend, &device.backend);
    if (st == ST_OK)
        st = open_streams(&device);
    if (st != ST_OK) {
        st = device_fail(st, &device, "opening", &why, reason);
        device_close(&device);
        return st;
    }
    *out = device;
    return ST_OK;
}

void device_close(struct device *device)
{
    struct stream *streams[] = { device->pipe, device->communication, device->staging,
                                 device->input, device->compute };
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        if (streams[i] != NULL)
            device->table->stream_free(device->backend, streams[i]);
    }
    if (device->backend != NULL)
        device->table->close(device->backend);
    memset(device, 0, sizeof(*device));
}

enum status device_wait(const struct device *device, struct event *event)
{
    enum status st = device->table->event_query(device->backend, event);
    while (st == ST_AGAIN) {
        (void)sched_yield();
        st = device->table->event_query(device->backend, event);
    }
    return st;
}

static enum status describe_device(const struct device *device, struct module_device *out)
{
    const struct module *module = NULL;
    struct reason reason;
    if (device->ordinal < 0 || module_load("cuda", device->ordinal, &module, &reason) != ST_OK)
        return ST_NOT_FOUND;
    return module->device(device->ordinal, out, &reason) == ST_OK ? ST_OK : ST_NOT_FOUND;
}

enum status device_text(const struct device *device, char *out, size_t capacity)
{
    struct module_device facts;
    if (device->ordinal >= 0) {
        enum status st = describe_device(device, &facts);
        if (st != ST_OK)
            return st;
        const int size = snprintf(out, capacity, "%s, capability %d, driver %d, runtime %d",
                                  facts.name, facts.capability, facts.driver, facts.runtime);
        return size > 0 && (size_t)size < capacity ? ST_OK : ST_FULL;
    }
    auto_buf struct buf pins;
    buf_init(&pins, capacity);
    enum status st = device->table->pins(device->backend, &pins);
    if (st != ST_OK || pins.size >= capacity)
        return st != ST_OK ? st : ST_FULL;
    (void)snprintf(out, capacity, "%s", pins.data);
    return ST_OK;
}

enum status device_free_bytes(const struct device *device, uint64_t *out)
{
    struct module_device facts;
    enum status st = describe_device(device, &facts);
    if (st == ST_OK)
        *out = facts.free_bytes;
    return st;
}

enum status device_total_bytes(const struct device *device, uint64_t *out)
{
    struct module_device facts;
    enum status st = describe_device(device, &facts);
    if (st == ST_OK)
        *out = facts.memory_bytes;
    return st;
}

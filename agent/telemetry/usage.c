#include "agent/telemetry/usage.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/telemetry/proc.h"
#include "common/host/cgroups.h"

#define TEXT_BYTES    4096
#define NETWORK_BYTES (64 * 1024) /* some hundred interfaces: of more the rest isn't counted */
#define NAME_BYTES    64          /* of an interface */
#define RECEIVED      0           /* columns of /proc/net/dev */
#define SENT          8
#define BUSY_FIELDS   7  /* of /proc/stat: user, nice, system, idle, iowait, irq, softirq */
#define LIMIT_EVERY   16 /* samples between two looks at the limits of control groups */

static double per_second(double more, int64_t ns)
{
    return ns > 0 && more >= 0 ? more / ((double)ns / 1e9) : (double)NAN;
}

static double seconds_of(uint64_t ticks)
{
    const long each = sysconf(_SC_CLK_TCK);
    return (double)ticks / (double)(each > 0 ? each : 100);
}

/* ---- a process ---- */

static uint64_t memory_limit(pid_t pid)
{
    const uint64_t limit = cgroup_memory_of("", pid).limit;
    return limit == UINT64_MAX ? 0 : limit;
}

enum status usage_process_sample(struct usage_process *usage, pid_t pid, uint64_t start_time,
                                 int64_t now_ns)
{
    const struct usage_process before = *usage;
    struct proc_stat stat;
    *usage = (struct usage_process){ .samples = 0 };
    enum status st = proc_stat_read(pid, &stat);
    if (st != ST_OK)
        return st;
    if (stat.start_time != start_time || stat.state == 'Z' || stat.state == 'X')
        return ST_NOT_FOUND;
    usage->samples = before.samples + 1;
    usage->at_ns = now_ns;
    usage->cpu_seconds = seconds_of(stat.cpu_ticks);
    usage->cores = (double)NAN;
    if (before.samples > 0)
        usage->cores = per_second(usage->cpu_seconds - before.cpu_seconds, now_ns - before.at_ns);
    usage->memory_bytes = stat.resident_pages * (uint64_t)sysconf(_SC_PAGESIZE);
    usage->threads = stat.threads;
    usage->memory_limit_bytes =
        before.samples % LIMIT_EVERY == 0 ? memory_limit(pid) : before.memory_limit_bytes;
    return ST_OK;
}

/* ---- the machine ---- */

bool usage_busy_ticks(const char *text, uint64_t *out)
{
    uint64_t busy = 0;
    if (strncmp(text, "cpu ", 4) != 0)
        return false;
    const char *at = text + 4;
    for (int field = 0; field < BUSY_FIELDS; field++) {
        char *end = NULL;
        errno = 0;
        const unsigned long long ticks = strtoull(at, &end, 10);
        if (errno != 0 || end == at)
            return false;
        if (field != 3 && field != 4) /* idle, waiting for a disk */
            busy += ticks;
        at = end;
    }
    *out = busy;
    return true;
}

/* "  eth0: 1 2 ...": the name, and the numbers behind it. */
static bool read_interface(const char *line, size_t size, char name[NAME_BYTES],
                           uint64_t values[SENT + 1])
{
    const char *colon = memchr(line, ':', size);
    while (colon != NULL && line < colon && *line == ' ')
        line++;
    if (colon == NULL || colon == line || colon - line >= NAME_BYTES)
        return false;
    (void)snprintf(name, NAME_BYTES, "%.*s", (int)(colon - line), line);
    const char *at = colon + 1;
    for (int i = 0; i <= SENT; i++) {
        char *end = NULL;
        errno = 0;
        values[i] = strtoull(at, &end, 10);
        if (errno != 0 || end == at)
            return false;
        at = end;
    }
    return true;
}

size_t usage_network(const char *text, bool (*counts)(const char *name), uint64_t *out_received,
                     uint64_t *out_sent)
{
    size_t count = 0;
    *out_received = *out_sent = 0;
    while (*text != '\0') {
        char name[NAME_BYTES];
        uint64_t values[SENT + 1];
        const size_t size = strcspn(text, "\n");
        if (read_interface(text, size, name, values) && counts(name)) {
            *out_received += values[RECEIVED];
            *out_sent += values[SENT];
            count++;
        }
        text += size + (text[size] == '\n');
    }
    return count;
}

static bool has_device(const char *name)
{
    char path[NAME_BYTES + 64];
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
    return access(path, F_OK) == 0;
}

static bool leads_out(const char *name)
{
    return strcmp(name, "lo") != 0;
}

static enum status read_network(struct usage_machine *usage)
{
    char text[NETWORK_BYTES];
    enum status st = proc_read_text("/proc/net/dev", text, sizeof(text), NULL);
    if (st == ST_OK &&
        usage_network(text, has_device, &usage->received_bytes, &usage->sent_bytes) == 0)
        (void)usage_network(text, leads_out, &usage->received_bytes, &usage->sent_bytes);
    return st;
}

enum status usage_machine_sample(struct usage_machine *usage, int64_t now_ns)
{
    const struct usage_machine before = *usage;
    char text[TEXT_BYTES];
    uint64_t ticks = 0;
    *usage = (struct usage_machine){ .samples = 0 };
    enum status st = proc_read_text("/proc/stat", text, sizeof(text), NULL);
    if (st == ST_OK && !usage_busy_ticks(text, &ticks))
        st = ST_INVALID;
    if (st == ST_OK)
        st = read_network(usage);
    if (st != ST_OK)
        return st;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t ns = before.samples > 0 ? now_ns - before.at_ns : 0;
    usage->samples = before.samples + 1;
    usage->at_ns = now_ns;
    usage->cpu_seconds = seconds_of(ticks);
    usage->cores_count = online > 0 ? (uint32_t)online : 1;
    usage->cores = per_second(usage->cpu_seconds - before.cpu_seconds, ns);
    usage->memory_bytes = proc_memory_total();
    usage->memory_available_bytes = proc_memory_available();
    usage->received_bytes_per_s =
        per_second((double)usage->received_bytes - (double)before.received_bytes, ns);
    usage->sent_bytes_per_s = per_second((double)usage->sent_bytes - (double)before.sent_bytes, ns);
    return ST_OK;
}

/* Metrics of nodes, with the label node, and of their GPUs, with node and gpu (the number
 * there). */
#include <math.h>
#include <stdio.h>

#include "observer/prometheus/families.h"

typedef const struct prometheus_subject *subject;

#define NODE_U32(member)  .field = { PROMETHEUS_U32, offsetof(Cairn__V1__Node, member) }
#define GPU(type, member) .field = { PROMETHEUS_##type, offsetof(Cairn__V1__Gpu, member) }

static void put_info(subject of, struct prometheus_lines *lines)
{
    char device[PROMETHEUS_VALUE_BYTES], version[PROMETHEUS_VALUE_BYTES];
    char host[PROMETHEUS_VALUE_BYTES], labels[3 * PROMETHEUS_VALUE_BYTES + 64];
    prometheus_label_value(of->node->device, device);
    prometheus_label_value(of->node->version, version);
    prometheus_label_value(of->node->host, host);
    (void)snprintf(labels, sizeof(labels), "device=\"%s\",version=\"%s\",host=\"%s\"", device,
                   version, host);
    prometheus_put_labels(lines, labels, 1);
}

static void put_state(subject of, struct prometheus_lines *lines)
{
    static const char *const words[] = { "ready", "unsupervised", "draining",    "drained",  "left",
                                         "lost",  "silent",       "unreachable", "forgotten" };
    prometheus_put_states(lines, "state", words, sizeof(words) / sizeof(words[0]), of->node->state);
}

static double gpus(subject of)
{
    return (double)of->node->n_gpus;
}

static double cpu_seconds(subject of)
{
    return of->node->usage == NULL ? (double)NAN : of->node->usage->cpu_seconds;
}

static double cpus(subject of)
{
    return of->node->usage == NULL ? (double)NAN : of->node->usage->cores_count;
}

static double memory(subject of)
{
    return of->node->usage == NULL ? (double)NAN : (double)of->node->usage->memory_bytes;
}

static double available(subject of)
{
    return of->node->usage == NULL ? (double)NAN : (double)of->node->usage->memory_available_bytes;
}

static double received(subject of)
{
    return of->node->usage == NULL ? (double)NAN : (double)of->node->usage->received_bytes;
}

static double sent(subject of)
{
    return of->node->usage == NULL ? (double)NAN : (double)of->node->usage->sent_bytes;
}

static const struct prometheus_family families[] = {
    { "cairn_node_info", "gauge", "device,version,host", "Always 1; what the node is.",
      .put = put_info },
    { "cairn_node_state", "gauge", "state", "1 for the state the node is in, 0 for the others.",
      .put = put_state },
    { "cairn_node_slots", "gauge", "", "Slots for workers, GPUs apart.", NODE_U32(slots) },
    { "cairn_node_slots_used", "gauge", "", "Of them with a worker.", NODE_U32(used) },
    { "cairn_node_slots_undying", "gauge", "",
      "Slots held by processes that were killed and don't die.", NODE_U32(undying) },
    { "cairn_node_gpus", "gauge", "", "GPUs it has.", .value = gpus },
    { "cairn_node_gpus_used", "gauge", "", "Of them with a worker.", NODE_U32(gpus_used) },
    { "cairn_node_cpu_seconds_total", "counter", "",
      "Time that its machine's processors were busy, all of them, since boot.",
      .value = cpu_seconds },
    { "cairn_node_cpus", "gauge", "", "Processors its machine has.", .value = cpus },
    { "cairn_node_memory_bytes", "gauge", "", "Memory its machine has.", .value = memory },
    { "cairn_node_memory_available_bytes", "gauge", "",
      "Of it what programs could have without swapping.", .value = available },
    { "cairn_node_network_received_bytes_total", "counter", "",
      "By its machine's network interfaces since boot, loopback apart.", .value = received },
    { "cairn_node_network_sent_bytes_total", "counter", "", "The same, sent.", .value = sent },
};

struct prometheus_table prometheus_node_families(void)
{
    return (struct prometheus_table){ families, sizeof(families) / sizeof(families[0]) };
}

/* ---- GPUs ---- */

static void put_gpu_info(subject of, struct prometheus_lines *lines)
{
    char uuid[PROMETHEUS_VALUE_BYTES], model[PROMETHEUS_VALUE_BYTES];
    char driver[PROMETHEUS_VALUE_BYTES], labels[3 * PROMETHEUS_VALUE_BYTES + 64];
    prometheus_label_value(of->gpu->uuid, uuid);
    prometheus_label_value(of->gpu->name, model);
    prometheus_label_value(of->gpu->driver, driver);
    (void)snprintf(labels, sizeof(labels), "uuid=\"%s\",model=\"%s\",driver=\"%s\"", uuid, model,
                   driver);
    prometheus_put_labels(lines, labels, 1);
}

static double healthy(subject of)
{
    return of->gpu->problem == NULL || of->gpu->problem[0] == '\0' ? 1 : 0;
}

static double utilization(subject of)
{
    const bool known = of->gpu->utilization__case == CAIRN__V1__GPU__UTILIZATION__UTILIZATION;
    return known ? of->gpu->utilization : (double)NAN;
}

static double power(subject of)
{
    const bool known = of->gpu->power__case == CAIRN__V1__GPU__POWER__POWER_WATTS;
    return known ? of->gpu->power_watts : (double)NAN;
}

static const struct prometheus_family gpu_families[] = {
    { "cairn_node_gpu_info", "gauge", "uuid,model,driver",
      "Always 1; which GPU it is. uuid joins with what other exporters say of it.",
      .put = put_gpu_info },
    { "cairn_node_gpu_healthy", "gauge", "", "1 if it takes workers.", .value = healthy },
    { "cairn_node_gpu_memory_bytes", "gauge", "", "Memory it has.", GPU(U64, memory_bytes) },
    { "cairn_node_gpu_memory_used_bytes", "gauge", "", "Of it in use, by anybody.",
      GPU(U64, memory_used_bytes) },
    { "cairn_node_gpu_temperature_celsius", "gauge", "", "Its temperature.",
      GPU(U32, temperature) },
    { "cairn_node_gpu_utilization_ratio", "gauge", "",
      "Part of the last moment in which it computed; 0 to 1.", .value = utilization },
    { "cairn_node_gpu_power_watts", "gauge", "", "Power that it draws.", .value = power },
    { "cairn_node_gpu_throttled", "gauge", "", "1 if heat or power slows it down.",
      GPU(BOOL, throttled) },
    { "cairn_node_gpu_ecc_errors_total", "counter", "",
      "Memory errors that weren't corrected, since the node's boot.", GPU(U64, ecc_errors) },
};

struct prometheus_table prometheus_gpu_families(void)
{
    return (struct prometheus_table){ gpu_families,
                                      sizeof(gpu_families) / sizeof(gpu_families[0]) };
}

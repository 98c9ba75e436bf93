/* Metrics of the coordinator and of the observer, and what all jobs come to. No labels of their
 * own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "observer/prometheus/families.h"
#include "observer/prometheus/state.h"

typedef const struct prometheus_subject *subject;

#define VIEW(type, member) .field = { PROMETHEUS_##type, offsetof(struct prometheus_view, member) }

static double up(subject of)
{
    return of->view->up ? 1 : 0;
}

static double seen(subject of)
{
    return of->view->seen_unix_s > 0 ? of->view->seen_unix_s : (double)NAN;
}

static double agents(subject of)
{
    const bool known = of->view->up && of->view->version != NULL;
    return known ? (double)of->view->version->agents : (double)NAN;
}

static void put_build(subject of, struct prometheus_lines *lines)
{
    const Cairn__V1__GetVersionReply *said = of->view->version;
    char version[PROMETHEUS_VALUE_BYTES], git[PROMETHEUS_VALUE_BYTES];
    char labels[2 * PROMETHEUS_VALUE_BYTES + 32];
    if (said == NULL)
        return;
    prometheus_label_value(said->version, version);
    prometheus_label_value(said->git, git);
    (void)snprintf(labels, sizeof(labels), "version=\"%s\",git=\"%s\"", version, git);
    prometheus_put_labels(lines, labels, 1);
}

static void put_own_build(subject of, struct prometheus_lines *lines)
{
    char version[PROMETHEUS_VALUE_BYTES], labels[PROMETHEUS_VALUE_BYTES + 16];
    prometheus_label_value(of->view->observer_version, version);
    (void)snprintf(labels, sizeof(labels), "version=\"%s\"", version);
    prometheus_put_labels(lines, labels, 1);
}

static void put_jobs(subject of, struct prometheus_lines *lines)
{
    size_t count = 0, others = 0, known[CAIRN__V1__JOB_STATE__KILLED + 1] = { 0 };
    const char *const *states = prometheus_job_states(&count);
    if (!of->view->up)
        return;
    for (size_t i = 0; i < of->view->job_count; i++) {
        const Cairn__V1__Job *job = of->view->jobs[i];
        if (job == NULL)
            continue;
        if (prometheus_job_state(job->state) != NULL) {
            known[job->state]++;
        } else {
            others++;
        }
    }
    for (size_t i = 0; i < count; i++)
        prometheus_put_word(lines, "state", states[i], (double)known[i + 1]);
    if (others > 0)
        prometheus_put_word(lines, "state", "other", (double)others);
}

static void put_left_out(subject of, struct prometheus_lines *lines)
{
    const struct prometheus_left_out *out = of->left_out;
    prometheus_put_labels(lines, "of=\"jobs\",why=\"ended\"", (double)out->jobs_ended);
    prometheus_put_labels(lines, "of=\"jobs\",why=\"twice\"", (double)out->jobs_twice);
    prometheus_put_labels(lines, "of=\"jobs\",why=\"size\"", (double)out->jobs_size);
    prometheus_put_labels(lines, "of=\"jobs\",why=\"unseen\"", (double)out->jobs_unseen);
    prometheus_put_labels(lines, "of=\"workers\",why=\"size\"", (double)out->workers_size);
    prometheus_put_labels(lines, "of=\"nodes\",why=\"twice\"", (double)out->nodes_twice);
    prometheus_put_labels(lines, "of=\"nodes\",why=\"size\"", (double)out->nodes_size);
    prometheus_put_labels(lines, "of=\"gpus\",why=\"size\"", (double)out->gpus_size);
}

static const struct prometheus_family families[] = {
    { "cairn_coordinator_up", "gauge", "",
      "1 if the coordinator answered when it was asked last. If not, jobs and nodes have no "
      "series.",
      .value = up },
    { "cairn_coordinator_seen_timestamp_seconds", "gauge", "", "When it answered last.",
      .value = seen },
    { "cairn_coordinator_build_info", "gauge", "version,git", "Always 1; its version.",
      .put = put_build },
    { "cairn_coordinator_agents", "gauge", "", "Agents that are connected to it.",
      .value = agents },
    { "cairn_jobs", "gauge", "state",
      "Jobs by their state, those that ended and have no series among them.", .put = put_jobs },
    { "cairn_observer_build_info", "gauge", "version", "Always 1; the observer's version.",
      .put = put_own_build },
    { "cairn_observer_start_timestamp_seconds", "gauge", "", "When the observer was started.",
      VIEW(REAL, started_unix_s) },
    { "cairn_observer_connections", "gauge", "", "Open connections to its page.",
      VIEW(U32, connections) },
    { "cairn_observer_streams", "gauge", "", "Jobs whose rows it has the coordinator send.",
      VIEW(U32, streams) },
    { "cairn_observer_left_out", "gauge", "of,why",
      "What has no series: ended (a while ago), twice (of one name), size (the text would be too "
      "long), unseen (the observer doesn't hold it).",
      .put = put_left_out },
};

struct prometheus_table prometheus_observer_families(void)
{
    return (struct prometheus_table){ families, sizeof(families) / sizeof(families[0]) };
}

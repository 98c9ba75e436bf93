/* Metrics of a job, with the labels job (its id) and name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "observer/prometheus/families.h"
#include "observer/prometheus/state.h"

#define WORDS_MAX 16 /* causes, phases: there are six of each */

typedef const struct prometheus_subject *subject;

#define U32(member)  .field = { PROMETHEUS_U32, offsetof(Cairn__V1__Job, member) }
#define U64(member)  .field = { PROMETHEUS_U64, offsetof(Cairn__V1__Job, member) }
#define REAL(member) .field = { PROMETHEUS_REAL, offsetof(Cairn__V1__Job, member) }

/* Returns NaN for 0, which means that the value isn't known. */
static double unless_zero(double value)
{
    return value > 0 ? value : (double)NAN;
}

static bool is(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

/* ---- what it is, and how it is ---- */

static void put_info(subject of, struct prometheus_lines *lines)
{
    char model[PROMETHEUS_VALUE_BYTES], labels[PROMETHEUS_VALUE_BYTES + 16];
    prometheus_label_value(of->job->model, model);
    (void)snprintf(labels, sizeof(labels), "model=\"%s\"", model);
    prometheus_put_labels(lines, labels, 1);
}

static void put_state(subject of, struct prometheus_lines *lines)
{
    size_t count = 0;
    const char *const *states = prometheus_job_states(&count);
    prometheus_put_states(lines, "state", states, count, prometheus_job_state(of->job->state));
}

static void put_health(subject of, struct prometheus_lines *lines)
{
    static const char *const words[] = { "ok", "unsupervised", "degraded", "recovering",
                                         "unreadable" };
    prometheus_put_states(lines, "health", words, sizeof(words) / sizeof(words[0]),
                          of->job->health);
}

static double submitted(subject of)
{
    return prometheus_time(of->job->submitted_at);
}

static double started(subject of)
{
    return prometheus_time(of->job->started_at);
}

static double ended(subject of)
{
    return prometheus_time(of->job->ended_at);
}

/* ---- how far, how fast, how good ---- */

static double total_steps(subject of)
{
    return unless_zero((double)of->job->total_steps);
}

static double progress(subject of)
{
    const double ratio = (double)of->job->step / (double)of->job->total_steps;
    return of->job->total_steps == 0 ? (double)NAN : ratio < 1 ? ratio : 1;
}

static double epochs(subject of)
{
    const double all = (double)of->job->steps_per_epoch;
    return of->job->steps_per_epoch == 0 ? (double)NAN : (double)of->job->step / all;
}

static void put_loss(subject of, struct prometheus_lines *lines)
{
    prometheus_put_word(lines, "split", "train", of->job->loss);
    prometheus_put_word(lines, "split", "eval", of->job->eval_loss);
}

static double samples_per_second(subject of)
{
    return is(of->job->throughput_unit, "samples/s") ? of->job->throughput : (double)NAN;
}

static double tokens_per_second(subject of)
{
    return is(of->job->throughput_unit, "tokens/s") ? of->job->throughput : (double)NAN;
}

static double step_seconds(subject of)
{
    return of->job->step_ms / 1e3;
}

static double mfu(subject of)
{
    const bool known = of->job->mfu__case == CAIRN__V1__JOB__MFU__MFU;
    return known ? of->job->mfu : (double)NAN;
}

static double step_flops(subject of)
{
    const bool known =
        of->job->flops_per_step__case == CAIRN__V1__JOB__FLOPS_PER_STEP__FLOPS_PER_STEP;
    return known ? of->job->flops_per_step : (double)NAN;
}

static void put_phases(subject of, struct prometheus_lines *lines)
{
    const Cairn__V1__Job *job = of->job;
    for (size_t i = 0; i < job->n_phases && i < WORDS_MAX; i++) {
        bool again = false;
        for (size_t before = 0; before < i; before++)
            again = again || is(job->phases[before]->name, job->phases[i]->name);
        if (!again && prometheus_is_word(job->phases[i]->name))
            prometheus_put_word(lines, "phase", job->phases[i]->name, job->phases[i]->ms / 1e3);
    }
}

static void put_lost(subject of, struct prometheus_lines *lines)
{
    const Cairn__V1__Job *job = of->job;
    for (size_t i = 0; i < job->n_lost_seconds && i < WORDS_MAX; i++) {
        const Cairn__V1__LostSeconds *lost = job->lost_seconds[i];
        bool again = false;
        for (size_t before = 0; before < i; before++)
            again = again || is(job->lost_seconds[before]->cause, lost->cause);
        if (!again && prometheus_is_word(lost->cause))
            prometheus_put_word(lines, "cause", lost->cause, lost->seconds);
    }
}

/* ---- checkpoints ---- */

/* NULL: there is none, as far as is known. */
static const Cairn__V1__Checkpoint *newest_good(subject of)
{
    for (size_t i = 0; i < of->job->n_checkpoints; i++) {
        if (is(of->job->checkpoints[i]->status, "good"))
            return of->job->checkpoints[i];
    }
    return NULL;
}

static double ckpt_step(subject of)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    return ckpt == NULL ? (double)NAN : (double)ckpt->step;
}

static double ckpt_time(subject of)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    return ckpt == NULL ? (double)NAN : prometheus_time(ckpt->committed_at);
}

static double ckpt_bytes(subject of)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    return ckpt == NULL ? (double)NAN : (double)ckpt->bytes;
}

static double ckpt_raw_bytes(subject of)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    return ckpt == NULL ? (double)NAN : (double)ckpt->raw_bytes;
}

static double ckpt_verified(subject of)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    const bool known =
        ckpt != NULL && ckpt->verified__case == CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    return !known ? (double)NAN : ckpt->verified ? 1 : 0;
}

static void put_ckpt_times(subject of, struct prometheus_lines *lines)
{
    const Cairn__V1__Checkpoint *ckpt = newest_good(of);
    const Cairn__V1__SaveTimes *times = ckpt == NULL ? NULL : ckpt->times;
    if (times == NULL)
        return;
    prometheus_put_word(lines, "part", "stall", (double)times->stall_us / 1e6);
    prometheus_put_word(lines, "part", "encode", (double)times->encode_us / 1e6);
    prometheus_put_word(lines, "part", "write", (double)times->write_us / 1e6);
    prometheus_put_word(lines, "part", "sync", (double)times->sync_us / 1e6);
    prometheus_put_word(lines, "part", "save", (double)times->save_us / 1e6);
    prometheus_put_word(lines, "part", "commit", (double)times->commit_us / 1e6);
}

static double interval(subject of)
{
    const Cairn__V1__CheckpointPlan *plan = of->job->checkpoint_plan;
    return plan == NULL ? (double)NAN : unless_zero(plan->interval_s);
}

static double cost(subject of)
{
    const Cairn__V1__CheckpointPlan *plan = of->job->checkpoint_plan;
    return plan == NULL ? (double)NAN : unless_zero(plan->cost_s);
}

static double mtbf(subject of)
{
    const Cairn__V1__CheckpointPlan *plan = of->job->checkpoint_plan;
    return plan == NULL ? (double)NAN : unless_zero(plan->mtbf_s);
}

static double refused(subject of)
{
    const Cairn__V1__CheckpointPlan *plan = of->job->checkpoint_plan;
    return plan == NULL ? (double)NAN : (double)plan->refused;
}

static double failures(subject of)
{
    const Cairn__V1__CheckpointPlan *plan = of->job->checkpoint_plan;
    return plan == NULL ? (double)NAN : (double)plan->failures;
}

/* ---- workers, together ---- */

static void put_workers(subject of, struct prometheus_lines *lines)
{
    static const char *const words[] = { "starting", "forming", "running", "gone" };
    size_t known = 0;
    for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++) {
        size_t count = 0;
        for (size_t i = 0; i < of->job->n_workers; i++)
            count += is(of->job->workers[i]->state, words[w]);
        known += count;
        prometheus_put_word(lines, "state", words[w], (double)count);
    }
    if (known < of->job->n_workers)
        prometheus_put_word(lines, "state", "other", (double)(of->job->n_workers - known));
}

static void put_spares(subject of, struct prometheus_lines *lines)
{
    static const char *const words[] = { "starting", "warm", "ending" };
    size_t known = 0;
    for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++) {
        size_t count = 0;
        for (size_t i = 0; i < of->job->n_spares; i++)
            count += is(of->job->spares[i]->state, words[w]);
        known += count;
        prometheus_put_word(lines, "state", words[w], (double)count);
    }
    if (known < of->job->n_spares)
        prometheus_put_word(lines, "state", "other", (double)(of->job->n_spares - known));
}

static double wanted(subject of)
{
    return unless_zero(of->job->workers_count);
}

static double least(subject of)
{
    return unless_zero(of->job->workers_min);
}

static double memory_every(subject of)
{
    return unless_zero((double)of->job->memory_every);
}

static double memory_bytes(subject of)
{
    return unless_zero((double)of->job->memory_bytes);
}

/* ---- the table ---- */

static const struct prometheus_family families[] = {
    { "cairn_job_info", "gauge", "model", "Always 1; what the job is.", .put = put_info },
    { "cairn_job_state", "gauge", "state", "1 for the state the job is in, 0 for the others.",
      .put = put_state },
    { "cairn_job_health", "gauge", "health", "1 for how the job is, 0 for the others.",
      .put = put_health },
    { "cairn_job_submitted_timestamp_seconds", "gauge", "", "When it was submitted.",
      .value = submitted },
    { "cairn_job_started_timestamp_seconds", "gauge", "", "When it ran for the first time.",
      .value = started },
    { "cairn_job_ended_timestamp_seconds", "gauge", "", "When it ended.", .value = ended },

    { "cairn_job_step", "gauge", "", "Steps finished; goes back where steps are trained again.",
      U64(step) },
    { "cairn_job_total_steps", "gauge", "", "Steps it will have, once that is known.",
      .value = total_steps },
    { "cairn_job_progress_ratio", "gauge", "", "Steps finished, of all; 0 to 1.",
      .value = progress },
    { "cairn_job_epochs", "gauge", "", "Epochs finished, with a fraction.", .value = epochs },
    { "cairn_job_eta_seconds", "gauge", "", "Time until the last step, as long as it trains.",
      REAL(eta_seconds) },
    { "cairn_job_loss", "gauge", "split",
      "Of the newest step (train; no line if that step's was not a number or was left out), of the "
      "newest evaluation (eval).",
      .put = put_loss },
    { "cairn_job_eval_accuracy_ratio", "gauge", "", "Of the newest evaluation; 0 to 1.",
      REAL(accuracy) },
    { "cairn_job_samples_per_second", "gauge", "",
      "Speed of this attempt with all that is between steps, evaluations apart.",
      .value = samples_per_second },
    { "cairn_job_tokens_per_second", "gauge", "", "The same of a job that trains on text.",
      .value = tokens_per_second },
    { "cairn_job_step_seconds", "gauge", "", "The median step of this attempt.",
      .value = step_seconds },
    { "cairn_job_step_phase_seconds", "gauge", "phase", "Its parts, each the median, of rank 0.",
      .put = put_phases },
    { "cairn_job_step_flops", "gauge", "", "Operations of a step: all lanes, forward and backward.",
      .value = step_flops },
    { "cairn_job_mfu_ratio", "gauge", "",
      "Operations of a step, of those that its workers could have done meanwhile, while it trains.",
      .value = mfu },

    { "cairn_job_goodput_ratio", "gauge", "",
      "Training that counted, of the time since it ran first; 0 to 1.", REAL(goodput) },
    { "cairn_job_lost_seconds", "gauge", "cause",
      "Time that was no training, by cause. Moves between causes as more is known.",
      .put = put_lost },
    { "cairn_job_generations_total", "counter", "",
      "Generations begun: the first one, and each after a failure or a change of workers.",
      U32(generation) },
    { "cairn_job_restarts", "gauge", "",
      "Times it had to begin a new generation; one less where none followed in the end.",
      U32(restarts) },
    { "cairn_job_recoveries_total", "counter", "", "Recoveries after which a generation followed.",
      U32(recovery_count) },
    { "cairn_job_failures_total", "counter", "", "Failures that cost steps.", .value = failures },

    { "cairn_job_checkpoint_step", "gauge", "", "Of the newest good checkpoint: its step.",
      .value = ckpt_step },
    { "cairn_job_checkpoint_timestamp_seconds", "gauge", "",
      "Of the newest good checkpoint: when it was committed.", .value = ckpt_time },
    { "cairn_job_checkpoint_bytes", "gauge", "", "Of the newest good checkpoint: as stored.",
      .value = ckpt_bytes },
    { "cairn_job_checkpoint_raw_bytes", "gauge", "",
      "Of the newest good checkpoint: before compression.", .value = ckpt_raw_bytes },
    { "cairn_job_checkpoint_verified", "gauge", "",
      "Of the newest good checkpoint: 1 once it was read back.", .value = ckpt_verified },
    { "cairn_job_checkpoint_save_seconds", "gauge", "part",
      "Of the newest good checkpoint: what saving it took. encode is processor time.",
      .put = put_ckpt_times },
    { "cairn_job_checkpoint_interval_seconds", "gauge", "",
      "Time between two, where it goes by time.", .value = interval },
    { "cairn_job_checkpoint_cost_seconds", "gauge", "",
      "What a checkpoint takes from training, as measured (every: auto).", .value = cost },
    { "cairn_job_failure_interval_seconds", "gauge", "",
      "Expected time between two failures (every: auto).", .value = mtbf },
    { "cairn_job_checkpoints_refused_total", "counter", "",
      "Checkpoints that the store had no room for.", .value = refused },

    { "cairn_job_workers", "gauge", "state", "Workers it has, by their state.",
      .put = put_workers },
    { "cairn_job_workers_wanted", "gauge", "", "Workers it is to have.", .value = wanted },
    { "cairn_job_workers_min", "gauge", "", "Workers it trains with at least.", .value = least },
    { "cairn_job_spares", "gauge", "state", "Spares it has, by their state.", .put = put_spares },
    { "cairn_job_spares_wanted", "gauge", "", "Spares it is to have.", U32(workers_spares) },
    { "cairn_job_memory_copy_steps", "gauge", "",
      "Steps from one copy in memory to the next; no line if there are none between saves.",
      .value = memory_every },
    { "cairn_job_memory_copy_bytes", "gauge", "",
      "What copies in memory of each worker take on its node, at most.", .value = memory_bytes },
};

struct prometheus_table prometheus_job_families(void)
{
    return (struct prometheus_table){ families, sizeof(families) / sizeof(families[0]) };
}

#include "client/action/command.h"

#include <stdio.h>

#include "client/print/format.h"
#include "jobspec/budget.h"

#define WIDTH 14 /* of the titles */

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* "processes" */
static const char *processes(int64_t count)
{
    return count == 1 ? "process" : "processes";
}

static enum status plan_line(struct buf *out, const char *title, const char *text)
{
    return buf_printf(out, "%-*s%s\n", WIDTH, title, text);
}

/* "LR=0.1", a line each: values may be long. */
static enum status plan_texts(struct buf *out, const char *title, const char *texts)
{
    enum status st = ST_OK;
    for (const char *text = jobspec_next_text(texts, NULL); st == ST_OK && text != NULL;
         text = jobspec_next_text(texts, text)) {
        st = buf_printf(out, "%-*s", WIDTH, title);
        for (const char *c = text; st == ST_OK && *c != '\0'; c++)
            st = buf_append(out, *c == '\n' || *c == '\t' ? " " : c, 1);
        if (st == ST_OK)
            st = buf_append_text(out, "\n");
        title = "";
    }
    return st;
}

static enum status plan_program(const struct jobspec *job, struct buf *out)
{
    char line[LIMIT_REASON];
    jobspec_command_line(job, line, sizeof(line));
    enum status st = plan_line(out, "job", job->name);
    if (st == ST_OK)
        st = plan_line(out, job->command.shell ? "shell command" : "command", line);
    if (st == ST_OK)
        st = plan_line(out, "starts in", job->command.workdir);
    if (st == ST_OK)
        st = plan_texts(out, "environment", job->command.env);
    if (st == ST_OK && job->command.folder[0] != '\0') {
        st = buf_printf(out, "%-*s%s, told as CAIRN_FOLDER\n", WIDTH, "writes to",
                        job->command.folder);
    }
    return st;
}

/* What PyTorch's launcher tells its processes, too. */
static enum status plan_processes(const struct jobspec *job, struct buf *out)
{
    const long long workers = job->workers.count, each = job->command.processes;
    const long long all = workers * each;
    const bool cuda = job->workers.device == JOBSPEC_DEVICE_CUDA;
    enum status st =
        buf_printf(out, "%-*s%lld worker%s, each on a %s slot, with %lld %s each", WIDTH, "where",
                   workers, plural(workers), cuda ? "cuda" : "cpu", each, processes(each));
    if (st == ST_OK && job->workers.min < job->workers.count) {
        st = buf_printf(out, "; at least %lld worker%s", (long long)job->workers.min,
                        plural(job->workers.min));
    }
    if (st == ST_OK) {
        st = buf_printf(out, "\n%-*sRANK 0 to %lld, WORLD_SIZE %lld%s,\n", WIDTH, "is told",
                        all - 1, all, job->workers.min < job->workers.count ? " or less" : "");
    }
    if (st == ST_OK) {
        st = buf_printf(out,
                        "%-*sLOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK (of its node),\n"
                        "%-*sMASTER_ADDR, MASTER_PORT, OMP_NUM_THREADS %lld%s\n",
                        WIDTH, "", WIDTH, "", (long long)job->workers.threads,
                        cuda ? ", CUDA_VISIBLE_DEVICES" : "");
    }
    return st;
}

static enum status plan_progress(const struct jobspec *job, struct buf *out)
{
    char text[32];
    const bool steps = job->command.progress[0] != '\0' || job->command.saves;
    const char *of = steps ? "progress" : "output";
    const bool saves = job->command.saves;
    enum status st = ST_OK;
    if (job->command.progress[0] != '\0')
        st = buf_printf(out, "%-*sthe group of: %s\n", WIDTH, "steps", job->command.progress);
    if (st == ST_OK && job->command.progress[0] == '\0' && saves)
        st = plan_line(out, "steps", "what the program says to cairn_step");
    if (st == ST_OK && job->command.progress[0] == '\0' && !saves)
        st = plan_line(out, "steps", "not known: without command.progress");
    if (st == ST_OK && job->command.hang_ms > 0) {
        st = buf_printf(out, "%-*s%s without %s\n", WIDTH, "hang",
                        format_seconds((double)job->command.hang_ms / 1e3, text, sizeof(text)), of);
    }
    if (st == ST_OK && job->command.hang_ms == 0)
        st = plan_line(out, "hang", "never noticed: without command.hang");
    if (st == ST_OK) {
        st = buf_printf(out, "%-*sSIGTERM, and after %s SIGKILL\n", WIDTH, "is ended by",
                        format_seconds((double)job->command.grace_ms / 1e3, text, sizeof(text)));
    }
    return st;
}

static enum status plan_restarts(const struct jobspec *job, struct buf *out)
{
    const size_t count = job->command.restart.code_count;
    const char *first = jobspec_next_text(job->command.restart.on_output, NULL);
    enum status st = buf_printf(out, "%-*s", WIDTH, "is restarted");
    if (st == ST_OK && !job->command.restart.codes_given)
        st = buf_append_text(out, "after every failure");
    if (st == ST_OK && job->command.restart.codes_given && count == 0)
        st = buf_append_text(out, "after no exit code");
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        st = buf_printf(out, "%s%u",
                        i == 0          ? "after exit code "
                        : i + 1 < count ? ", "
                                        : " or ",
                        job->command.restart.codes[i]);
    }
    if (st == ST_OK && job->command.restart.codes_given && first != NULL)
        st = buf_append_text(out, ", and if its last lines have one of");
    const long long budget = jobspec_budget(job), first_most = jobspec_budget_first(job);
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    if (st == ST_OK && job->command.restart.codes_given)
        st = plan_texts(out, "", job->command.restart.on_output);
    if (st == ST_OK) {
        st = buf_printf(out, "%-*suntil %lld failure%s in a row made no progress", WIDTH, "",
                        budget, plural(budget));
    }
    if (st == ST_OK && first_most > 0)
        st = buf_printf(out, ", or %lld before the first step", first_most);
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    return st;
}

/* "100 steps", "2 epochs", "30 s" */
static enum status put_duration(const struct jobspec_duration *duration, struct buf *out)
{
    char text[32];
    const char *more = duration->value == 1 ? "" : "s";
    switch (duration->unit) {
    case JOBSPEC_STEPS:
        return buf_printf(out, "%.0f step%s", duration->value, more);
    case JOBSPEC_EPOCHS:
        return buf_printf(out, "%g epoch%s, as the program says", duration->value, more);
    case JOBSPEC_MS:
        return buf_append_text(out, format_seconds(duration->value / 1e3, text, sizeof(text)));
    case JOBSPEC_AUTO:
        break;
    }
    return buf_append_text(out, "so many steps as failures and the cost of a save suggest");
}

static enum status plan_kept(const struct jobspec *job, struct buf *out)
{
    const enum jobspec_metric metric = job->checkpoint.keep_best.metric;
    const long long last = job->checkpoint.keep_last, every = job->checkpoint.keep_every;
    enum status st = buf_printf(out, "%-*sthe last %lld", WIDTH, "kept", last);
    if (st == ST_OK && every > 0)
        st = buf_printf(out, ", those of every %lld step%s", every, plural(every));
    if (st == ST_OK && metric != JOBSPEC_METRIC_NONE) {
        st = buf_printf(out, ", the best %lld by %s", (long long)job->checkpoint.keep_best.n,
                        jobspec_metric_word(metric));
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status plan_saves(const struct jobspec *job, struct buf *out)
{
    const long long steps = job->checkpoint.memory_every;
    enum status st;
    if (!job->command.saves)
        return plan_line(out, "checkpoints", "none: what it goes on from, it saves itself");
    st = buf_printf(out, "%-*severy ", WIDTH, "checkpoints");
    if (st == ST_OK)
        st = put_duration(&job->checkpoint.every, out);
    if (st == ST_OK)
        st = buf_printf(out, ", to %s\n", job->checkpoint.store);
    if (st == ST_OK)
        st = plan_kept(job, out);
    if (st == ST_OK && steps > 0) {
        st = buf_printf(out, "%-*severy %lld step%s, on the node of the workers\n", WIDTH, "copies",
                        steps, plural(steps));
    }
    if (st == ST_OK && steps == 0)
        st = plan_line(out, "copies", "those that become checkpoints");
    return st == ST_OK ? plan_line(out, "", "of what the program hands to libcairn") : st;
}

enum status command_plan(const struct jobspec *job, struct buf *out)
{
    enum status st = plan_program(job, out);
    if (st == ST_OK)
        st = plan_processes(job, out);
    if (st == ST_OK)
        st = plan_progress(job, out);
    if (st == ST_OK)
        st = plan_restarts(job, out);
    if (st == ST_OK)
        st = plan_saves(job, out);
    return st;
}

#include "trainer/command/hang.h"

#include <signal.h>
#include <stdio.h>

#include "trainer/command/spy.h"

#define STACK_MS 1000 /* for Python to write its stack */

/* True if the process must show that it gets on: rank 0 from the start, others from when they
 * first did. */
static bool is_watched(const struct command_worker *c, uint32_t i)
{
    return !c->processes[i].ended && (c->members[i].seen > 0 || c->place.rank + i == 0);
}

uint32_t hang_find(const struct command_worker *c, int64_t now_ms)
{
    const int64_t hang_ms = c->options->job->command.hang_ms;
    uint32_t found = c->count;
    for (uint32_t i = 0; i < c->count && hang_ms > 0; i++) {
        if (now_ms - c->members[i].moved_ms < hang_ms || c->processes[i].ended)
            continue;
        if (process_is_stopped(&c->processes[i]))
            return i;
        if (is_watched(c, i) && found == c->count)
            found = i;
    }
    return found;
}

/* Says where a process is: its line in Python, as it wrote it at SIGABRT, or that it is stopped. */
static void describe(const struct command_worker *c, uint32_t i, bool is_stopped,
                     const char *beginning, struct command_failure *out)
{
    const struct output_stack stack = output_python_stack(&c->members[i].output);
    *out = (struct command_failure){ .kind = CAIRN__V1__FAULT_KIND__HANG };
    const bool is_known = stack.at[0] != '\0';
    reason_set(&out->why, "the program of rank %u %s%s%s%.200s%s", c->place.rank + i, beginning,
               is_stopped ? "is stopped (state T)"
               : is_known ? "is"
                          : "doesn't say where it is",
               !is_known    ? ""
               : is_stopped ? ", in "
                            : " in ",
               stack.at, !is_stopped && stack.waits ? " (it waits for other ranks)" : "");
}

/* Has py-spy tell where a process is, which stays as it is. False: it can't. */
static bool spy_on(struct command_worker *c, uint32_t i)
{
    const struct command_options *o = c->options;
    char **env = NULL;
    if (launch_environment(o->job, o->assignment, &c->place, i, o->worker, &env) != ST_OK)
        return false;
    const bool told =
        spy_add_stack(c->processes[i].pid, env, worker_now_ms(), &c->members[i].output);
    launch_free(env);
    return told;
}

/* Has Python's processes write their stacks, from the first one on, `count` of them. Those on which
 * py-spy can tell aren't asked. */
static void ask_for_stacks(struct command_worker *c, uint32_t first, uint32_t count)
{
    const int64_t until = worker_now_ms() + STACK_MS;
    bool waits = true;
    bool asked[COMMAND_PROCESSES_MAX];
    for (uint32_t i = first; i < first + count; i++) {
        asked[i] = c->processes[i].ended || !spy_on(c, i);
        if (asked[i])
            process_signal(&c->processes[i], SIGABRT);
    }
    while (waits && worker_now_ms() < until) {
        worker_turn(c, WORKER_LOOK_MS);
        waits = false;
        for (uint32_t i = first; i < first + count; i++) {
            waits = waits ||
                    (asked[i] && !c->processes[i].ended && !process_is_stopped(&c->processes[i]));
        }
    }
    worker_turn(c, 0);
}

struct command_failure hang_explain(struct command_worker *c, uint32_t i)
{
    struct command_failure failure;
    char shows[96];
    const bool is_stopped = process_is_stopped(&c->processes[i]);
    const double seconds = (double)(worker_now_ms() - c->members[i].moved_ms) / 1e3;
    (void)snprintf(shows, sizeof(shows), "shows no %s for %.1f s, at step %llu: it ",
                   c->progress != NULL || c->relay != NULL ? "progress" : "output", seconds,
                   (unsigned long long)c->step);
    if (!is_stopped) {
        ask_for_stacks(c, i, 1);
    } else {
        (void)spy_on(c, i); /* SIGABRT would wait until it goes on */
    }
    describe(c, i, is_stopped, shows, &failure);
    worker_add_trace(c, i, &failure);
    return failure;
}

void hang_tell_stacks(struct command_worker *c)
{
    struct command_failure failure;
    uint32_t told = c->count;
    bool is_stopped = false;
    for (uint32_t i = 0; i < c->count && !is_stopped; i++) {
        is_stopped = !c->processes[i].ended && process_is_stopped(&c->processes[i]);
        told = is_stopped ? i : told;
    }
    ask_for_stacks(c, 0, c->count);
    for (uint32_t i = 0; i < c->count && !is_stopped; i++) {
        const struct output_stack stack = output_python_stack(&c->members[i].output);
        if (stack.at[0] != '\0' && (told == c->count || !stack.waits))
            told = i;
    }
    if (told == c->count)
        return;
    describe(c, told, is_stopped, "", &failure);
    c->options->failed(c->options->failed_arg, &failure);
}

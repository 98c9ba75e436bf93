#include "trainer/command/worker.h"

#include <poll.h>
#include <unistd.h>

#include "common/clock.h"
#include "trainer/command/trace.h"

int64_t worker_now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* Notes what the processes have done: the highest step, and who got on. */
static void note_progress(struct command_worker *c, int64_t now)
{
    const bool by_step = c->progress != NULL;
    if (c->relay != NULL)
        relay_look(c->relay, &c->news);
    for (uint32_t i = 0; i < c->count; i++) {
        struct command_member *member = &c->members[i];
        uint64_t seen = by_step ? member->output.matches : member->output.lines;
        if (c->relay != NULL) /* its output shows nothing any more once it trains */
            seen = c->news.of[i].counter + (c->news.ready ? 0 : member->output.lines);
        if (seen != member->seen) {
            member->seen = seen;
            member->moved_ms = now;
        }
        if (member->output.step > c->step)
            c->step = member->output.step;
    }
    if (c->relay != NULL)
        c->step = c->news.step;
    session_mark(c->options->session, c->step,
                 c->relay == NULL || c->news.ready ? "running" : "starting");
    session_tick(c->options->session);
}

void worker_close_said(struct command_worker *c, uint32_t i)
{
    output_flush(&c->members[i].output);
    (void)close(c->processes[i].said_fd);
    c->processes[i].said_fd = -1;
}

void worker_turn(struct command_worker *c, int timeout_ms)
{
    struct pollfd fds[2 * COMMAND_PROCESSES_MAX + 1] = { { c->wake_fd, POLLIN, 0 } };
    uint64_t wakes = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        fds[i + 1] = (struct pollfd){ c->processes[i].said_fd, POLLIN, 0 };
        fds[c->count + i + 1] = (struct pollfd){ c->processes[i].end_fd, POLLIN, 0 };
    }
    (void)poll(fds, 2 * c->count + 1, timeout_ms);
    (void)!read(c->wake_fd, &wakes, sizeof(wakes));
    const int64_t now = worker_now_ms();
    for (uint32_t i = 0; i < c->count; i++) {
        if (fds[i + 1].revents != 0 &&
            !output_read(&c->members[i].output, c->processes[i].said_fd, now))
            worker_close_said(c, i);
        (void)process_check(&c->processes[i]);
    }
    note_progress(c, now);
}

void worker_add_trace(const struct command_worker *c, uint32_t i, struct command_failure *failure)
{
    const struct command_options *o = c->options;
    const struct reason before = failure->why;
    struct reason said = { "" };
    char **env = NULL;
    if (launch_environment(o->job, o->assignment, &c->place, i, o->worker, &env) != ST_OK)
        return;
    if (trace_explain(env, c->place.size, c->began_wall_ms, &said)) {
        reason_set(&failure->why, "%.300s; by PyTorch's flight recorder %s", before.text,
                   said.text);
    }
    launch_free(env);
}

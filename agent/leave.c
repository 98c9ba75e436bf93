#include "agent/leave.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/messages.h"
#include "agent/trainer.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/watchdog.h"

#define LOOK_MS 50

bool leave_is_usual(void)
{
    if (getenv(WATCHDOG_ENV) != NULL)
        return false;
    return getpid() == 1 || getenv("SLURM_JOB_ID") != NULL ||
           getenv("KUBERNETES_SERVICE_HOST") != NULL;
}

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

static void kill_trainers(struct agent *agent)
{
    LOG_WARN(&agent->log, "the time of grace is over: killing what is left of %zu trainers",
             agent->trainer_count);
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        if (t->pidfd < 0)
            continue;
        (void)snprintf(t->why_ended, sizeof(t->why_ended),
                       "the node leaves, and its time of grace is over");
        trainer_end(t, SIGKILL, 0);
    }
}

static void enter(struct agent *agent, enum leave_state state, int64_t ms)
{
    agent->leave.state = state;
    agent->leave.until = now_ms() + ms;
}

static void say_left(struct agent *agent)
{
    LOG_INFO(&agent->log, "leaving: %zu trainers are left, said so", agent->trainer_count);
    agent_say_left(agent);
    enter(agent, LEAVE_SAID, LEAVE_SAID_MS);
}

static void on_look(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    struct leave *leave = &agent->leave;
    const int64_t now = now_ms();
    const bool late = now >= leave->until;
    const bool alone = agent->epoch == 0 && now < leave->since + LEAVE_ALONE_MS;
    switch (leave->state) {
    case LEAVE_NOT:
        break;
    case LEAVE_WAITS:
        if (agent->trainer_count == 0 && (late || !alone)) {
            say_left(agent);
        } else if (late) {
            kill_trainers(agent);
            enter(agent, LEAVE_KILLS, LEAVE_KILL_MS);
        }
        break;
    case LEAVE_KILLS:
        if (agent->trainer_count == 0 || late)
            say_left(agent);
        break;
    case LEAVE_SAID:
        if (agent->epoch == 0 || late)
            uv_stop(&agent->loop);
        break;
    }
}

void leave_open(struct agent *agent)
{
    CHECK(uv_timer_init(&agent->loop, &agent->leave.timer) == 0);
    agent->leave.timer.data = agent;
}

void leave_close(struct agent *agent)
{
    uv_close((uv_handle_t *)&agent->leave.timer, NULL);
}

void leave_begin(struct agent *agent)
{
    if (agent->leave.state != LEAVE_NOT) {
        LOG_INFO(&agent->log, "leaving already");
        return;
    }
    LOG_INFO(&agent->log, "leaving within %.1f s: %zu trainers save and go elsewhere before",
             (double)agent->options.grace_ms / 1e3, agent->trainer_count);
    agent->leave.since = now_ms();
    enter(agent, LEAVE_WAITS, agent->options.grace_ms);
    agent_say_leaving(agent);
    (void)uv_timer_start(&agent->leave.timer, on_look, LOOK_MS, LOOK_MS);
}

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
#include "common/host/watchdog.h"

#define LOOK_MS 50

bool leave_is_usual(void)
{
    if (getenv(WATCHDOG_ENV) != NULL)
        return false;
    /* podman and our images set "container"; with an init of its own the agent isn't process 1. */
    return getpid() == 1 || getenv("container") != NULL || getenv("SLURM_JOB_ID") != NULL ||
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
        if (!t->watched)
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

static void send_left(struct agent *agent)
{
    LOG_INFO(&agent->log, "leaving: %zu trainers are left, said so", agent->trainer_count);
    agent_send_left(agent);
    enter(agent, LEAVE_SAID, LEAVE_SAID_MS);
}

static void go(struct agent *agent)
{
    (void)uv_timer_stop(&agent->leave.timer);
    if (!agent->leave.stays) {
        uv_stop(&agent->loop);
        return;
    }
    LOG_INFO(&agent->log, "this node has left, and its agent waits: SIGUSR1 brings it back, "
                          "SIGTERM ends it");
    agent->leave.state = LEAVE_AWAY;
    agent_disconnect(agent);
}

static void come_back(struct agent *agent)
{
    LOG_INFO(&agent->log, "SIGUSR1: this node is back");
    agent->leave.state = LEAVE_NOT;
    if (agent_connect(agent) != ST_OK) /* said why */
        uv_stop(&agent->loop);
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
            send_left(agent);
        } else if (late) {
            kill_trainers(agent);
            enter(agent, LEAVE_KILLS, LEAVE_KILL_MS);
        }
        break;
    case LEAVE_KILLS:
        if (agent->trainer_count == 0 || late)
            send_left(agent);
        break;
    case LEAVE_SAID:
        if (agent->epoch == 0 || late)
            go(agent);
        break;
    case LEAVE_AWAY:
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

/* Tells systemd how long the end may take: its own limit may be for ends that leave nothing. */
static void say_end(struct agent *agent)
{
    watchdog_stopping(agent->options.watchdog,
                      agent->options.grace_ms + LEAVE_KILL_MS + LEAVE_SAID_MS);
}

void leave_begin(struct agent *agent, bool stays)
{
    struct leave *leave = &agent->leave;
    const char *signal_name = stays ? "SIGUSR1" : "SIGTERM";
    if (leave->state == LEAVE_AWAY && stays) {
        come_back(agent);
        return;
    }
    if (leave->state == LEAVE_AWAY) {
        uv_stop(&agent->loop);
        return;
    }
    if (leave->state != LEAVE_NOT) {
        LOG_INFO(&agent->log, "%s: leaving already", signal_name);
        if (leave->stays && !stays)
            say_end(agent);
        leave->stays = leave->stays && stays;
        return;
    }
    LOG_INFO(&agent->log, "%s: leaving within %.1f s: %zu trainers save and go elsewhere before",
             signal_name, (double)agent->options.grace_ms / 1e3, agent->trainer_count);
    leave->stays = stays;
    leave->reason = signal_name;
    leave->since = now_ms();
    enter(agent, LEAVE_WAITS, agent->options.grace_ms);
    agent_send_leaving(agent);
    if (!stays)
        say_end(agent);
    (void)uv_timer_start(&leave->timer, on_look, LOOK_MS, LOOK_MS);
}

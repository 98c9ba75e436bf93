/* pause, resume, stop, kill: a call, and with --wait until the job is in the state asked for; set:
 * another number of workers. */
#include <stdio.h>
#include <string.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/job.h"
#include "common/clock.h"

#define POLL_MS 200

/* Polls until the job is in a state that `settled` accepts. *job is replaced by what was seen. */
static enum exit_code wait_settled(struct client *client, Cairn__V1__Job **job,
                                   bool (*settled)(Cairn__V1__JobState state))
{
    const struct clock *clock = clock_system();
    int64_t until = clock_mono_ms(clock) + client->args.timeout_ms;
    while (!settled((*job)->state)) {
        if (client->args.timeout_ms >= 0 && clock_mono_ms(clock) >= until) {
            client_error("%s is still %s; 'cairn why %s' says more", (*job)->name,
                         job_state_name((*job)->state), (*job)->id);
            return EXIT_TIMED_OUT;
        }
        if (!interrupt_wait(client, POLL_MS))
            return EXIT_DETACHED;
        Cairn__V1__Job *next = NULL;
        enum exit_code code = client_get_job(client, (*job)->id, &next);
        if (code != EXIT_DONE)
            return code;
        cairn__v1__job__free_unpacked(*job, NULL);
        *job = next;
    }
    return EXIT_DONE;
}

static bool is_paused(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__PAUSED || job_is_over(state);
}

static bool is_running(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__RUNNING || job_is_over(state);
}

static enum exit_code steer(struct client *client, const char *method, const char *done,
                            bool (*settled)(Cairn__V1__JobState state))
{
    if (client->args.wait && !interrupt_catch(client))
        return EXIT_INTERNAL;
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, method, &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    Cairn__V1__Job *job = (Cairn__V1__Job *)reply;
    if (client->args.wait)
        code = wait_settled(client, &job, settled);
    if (code == EXIT_DONE && client->args.output == OUTPUT_TABLE) {
        const bool killed = strcmp(method, "KillJob") == 0 && !job_is_over(job->state);
        client_note(client, "%s %s (%s): %s%s%s\n", done, job->name, job->id,
                    killed ? "its workers are being ended" : job_state_name(job->state),
                    job->reason[0] == '\0' ? "" : ", ", job->reason);
    } else if (code == EXIT_DONE) {
        code = job_show(client, job);
    }
    cairn__v1__job__free_unpacked(job, NULL);
    return code;
}

enum exit_code cmd_pause(struct client *client)
{
    return steer(client, "PauseJob", "pausing", is_paused);
}

enum exit_code cmd_resume(struct client *client)
{
    return steer(client, "ResumeJob", "resuming", is_running);
}

enum exit_code cmd_stop(struct client *client)
{
    return steer(client, "StopJob", "stopping", job_is_over);
}

enum exit_code cmd_kill(struct client *client)
{
    return steer(client, "KillJob", "killing", job_is_over);
}

enum exit_code cmd_set(struct client *client)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SetJobRequest request = CAIRN__V1__SET_JOB_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.set = (char **)&client->args.operands[1];
    request.n_set = client->args.operand_count - 1;
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "SetJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__Job *job = (const Cairn__V1__Job *)reply;
    if (client->args.output == OUTPUT_TABLE) {
        client_note(client, "%s (%s) is to have %u worker%s: %s%s%s\n", job->name, job->id,
                    job->workers_count, job->workers_count == 1 ? "" : "s",
                    job_state_name(job->state), job->reason[0] == '\0' ? "" : ", ", job->reason);
    } else {
        code = job_show(client, job);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

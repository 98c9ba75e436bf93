/* ps, show, why; pause, resume, stop, kill, save. */
#include <stdio.h>
#include <string.h>

#include "client/base/interrupt.h"
#include "client/print/job.h"
#include "client/print/json.h"
#include "common/clock.h"

#define PAGE       1000
#define POLL_MS    200
#define SAVE_MS    600000 /* a save waits for a step, then for the store */
#define LISTED_MAX ((size_t)1024 << 10)

/* ---- looking ---- */

/* All pages in one list; false: out of memory. */
struct job_list {
    ProtobufCMessage **rows; /* borrowed from pages */
    size_t count;
    Cairn__V1__ListJobsReply **pages;
    size_t page_count;
};

static void list_release(struct job_list *list)
{
    for (size_t i = 0; i < list->page_count; i++)
        cairn__v1__list_jobs_reply__free_unpacked(list->pages[i], NULL);
    free(list->pages);
    free(list->rows);
    *list = (struct job_list){ 0 };
}

/* Takes over the page. */
static bool list_add(struct job_list *list, Cairn__V1__ListJobsReply *page)
{
    Cairn__V1__ListJobsReply **pages =
        realloc(list->pages, (list->page_count + 1) * sizeof(Cairn__V1__ListJobsReply *));
    if (pages == NULL) {
        cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
        return false;
    }
    list->pages = pages;
    list->pages[list->page_count++] = page;
    if (page->n_jobs == 0)
        return true;
    ProtobufCMessage **rows =
        realloc(list->rows, (list->count + page->n_jobs) * sizeof(ProtobufCMessage *));
    if (rows == NULL)
        return false;
    list->rows = rows;
    for (size_t i = 0; i < page->n_jobs; i++)
        list->rows[list->count++] = &page->jobs[i]->base;
    return true;
}

static enum exit_code list_all(struct client *client, struct job_list *list)
{
    char *token = "";
    do {
        Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
        request.page_size = PAGE;
        request.page_token = token;
        ProtobufCMessage *reply = NULL;
        enum exit_code code = client_call(client, "ListJobs", &request.base, 0, &reply);
        if (code != EXIT_DONE)
            return code;
        Cairn__V1__ListJobsReply *page = (Cairn__V1__ListJobsReply *)reply;
        token = page->next_page_token;
        if (!list_add(list, page)) {
            client_error("out of memory");
            return EXIT_INTERNAL;
        }
    } while (token[0] != '\0' && list->count < LISTED_MAX);
    return EXIT_DONE;
}

static enum exit_code ps_once(struct client *client)
{
    struct job_list list = { 0 };
    enum exit_code code = list_all(client, &list);
    if (code == EXIT_DONE)
        code = output_list(client, &job_listing, list.rows, list.count);
    if (code == EXIT_DONE && list.count == 0 && client->args.output == OUTPUT_TABLE)
        client_note(client, "no jobs yet; submit one with: cairn submit FILE\n");
    list_release(&list);
    return code;
}

enum exit_code cmd_ps(struct client *client)
{
    return repeat(client, ps_once);
}

static enum exit_code show_once(struct client *client)
{
    Cairn__V1__Job *job = NULL;
    enum exit_code code = job_get(client, client->args.words[0], &job);
    if (code != EXIT_DONE)
        return code;
    code = job_show(client, job);
    cairn__v1__job__free_unpacked(job, NULL);
    return code;
}

enum exit_code cmd_show(struct client *client)
{
    return repeat(client, show_once);
}

enum exit_code cmd_why(struct client *client)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)client->args.words[0];
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ExplainJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__ExplainJobReply *why = (const Cairn__V1__ExplainJobReply *)reply;
    if (output_is_json(client)) {
        code = output_message(client, reply);
    } else if (client->args.output == OUTPUT_NAME) {
        code = printf("%s\n", why->job == NULL ? "" : why->job->id) < 0 ? EXIT_INTERNAL
                                                                        : output_text(NULL);
    } else {
        size_t size = strlen(why->text);
        bool ended = size > 0 && why->text[size - 1] == '\n';
        code = output_text(why->text);
        if (code == EXIT_DONE && !ended)
            code = output_text("\n");
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

/* ---- steering ---- */

/* Polls until the job is in a state that `settled` accepts. *job is replaced by what was seen. */
static enum exit_code wait_until(struct client *client, Cairn__V1__Job **job,
                                 bool (*settled)(Cairn__V1__JobState state))
{
    const struct clock *clock = clock_system();
    int64_t until = clock_mono_ms(clock) + client->args.timeout_ms;
    while (!settled((*job)->state)) {
        if (client->args.timeout_ms >= 0 && clock_mono_ms(clock) >= until) {
            client_error("%s is still %s", (*job)->name, job_state_name((*job)->state));
            return EXIT_TIMED_OUT;
        }
        if (!wait_interruptibly(client, POLL_MS))
            return EXIT_DETACHED;
        Cairn__V1__Job *next = NULL;
        enum exit_code code = job_get(client, (*job)->id, &next);
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
    if (client->args.wait && !client_catch_signals(client))
        return EXIT_INTERNAL;
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)client->args.words[0];
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, method, &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    Cairn__V1__Job *job = (Cairn__V1__Job *)reply;
    if (client->args.wait)
        code = wait_until(client, &job, settled);
    if (code == EXIT_DONE && client->args.output == OUTPUT_TABLE) {
        client_note(client, "%s %s: %s%s%s\n", done, job->name, job_state_name(job->state),
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

enum exit_code cmd_save(struct client *client)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SaveCheckpointRequest request = CAIRN__V1__SAVE_CHECKPOINT_REQUEST__INIT;
    request.job = (char *)client->args.words[0];
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    int64_t timeout = client->args.timeout_ms >= 0 ? client->args.timeout_ms : SAVE_MS;
    enum exit_code code = client_call(client, "SaveCheckpoint", &request.base,
                                      timeout > INT32_MAX ? INT32_MAX : (int32_t)timeout, &reply);
    if (code != EXIT_DONE)
        return code == EXIT_UNREACHABLE && client->args.timeout_ms >= 0 ? EXIT_TIMED_OUT : code;
    const Cairn__V1__SaveCheckpointReply *saved = (const Cairn__V1__SaveCheckpointReply *)reply;
    if (output_is_json(client)) {
        code = output_message(client, reply);
    } else if (printf("%llu\n", (unsigned long long)saved->step) < 0) {
        code = EXIT_INTERNAL;
    } else {
        client_note(client, "saved step %llu%s%s\n", (unsigned long long)saved->step,
                    saved->checkpoint == NULL ? "" : ": ",
                    saved->checkpoint == NULL ? "" : saved->checkpoint->path);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

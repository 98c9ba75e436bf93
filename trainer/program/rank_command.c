/* A rank of a job that has a program of its own instead of a model. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/fault.h"
#include "trainer/program/rank_parts.h"
#include "trainer/program/store_check.h"

#define OVER_MS INT64_C(10000) /* until the coordinator has said what follows a failure */

/* Makes the object that orders to park and to leave reach. */
static enum status open_command(struct rank *r)
{
    struct command_worker *command = NULL;
    if (r->command != NULL)
        return ST_OK;
    const enum status st = command_new(&command);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->command = command;
    const bool parks = r->aborted; /* the order came before there was anything to stop */
    (void)pthread_mutex_unlock(&r->comm_mutex);
    if (parks)
        command_stop(command, COMMAND_PARKS);
    return ST_OK;
}

/* Leaves the file by which the agent knows that there may be more to end than this process. */
static enum status note_program(const struct rank *r)
{
    static const char words[] = ".words";
    const char *path = r->options->words_path;
    const size_t size = strlen(path), end = sizeof(words) - 1;
    char program[LIMIT_PATH];
    if (size < end || strcmp(path + size - end, words) != 0)
        return ST_OK; /* no agent's worker */
    const int written = snprintf(program, sizeof(program), "%.*s.program", (int)(size - end), path);
    if (written < 0 || (size_t)written >= sizeof(program))
        return ST_TOO_LONG;
    const int fd = open(program, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return status_from_errno(errno);
    (void)close(fd);
    return ST_OK;
}

/* Waits for a seat, as a worker of a model does: what there is to do begins with it. */
static enum status wait_for_seat(struct rank *r, int *out_code)
{
    const struct session_ready ready = { .pins = "{}" };
    *out_code = RANK_OVER; /* from here on as one that parks */
    return session_set_warm(r->session, &ready);
}

/* Tells the coordinator how the program failed. */
static void report(void *arg, const struct command_failure *failure)
{
    const struct rank *r = arg;
    const struct session_fault fault = {
        .kind = failure->late ? CAIRN__V1__FAULT_KIND__COMMUNICATION : failure->kind,
        .of_node = failure->of_node,
        .outside = failure->outside,
        .shard = failure->shard,
        .stays = true,
        .message = failure->why.text,
    };
    LOG_ERROR(r->log, "%s", failure->why.text);
    session_fault(r->session, &fault);
}

/* Checks that this node sees the store that the program's state is saved to. */
static enum status check_store(struct rank *r)
{
    if (!r->job->command.saves)
        return ST_OK;
    r->at_store = true;
    const enum status st =
        store_check(&r->io, r->job->checkpoint.store, &r->assignment, &r->of_node, &r->reason);
    r->at_store = st != ST_OK;
    return st;
}

enum status rank_run_command(struct rank *r, int *out_code)
{
    const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
    const struct command_options options = { .job = r->job,
                                             .session = r->session,
                                             .assignment = &r->assignment,
                                             .log = r->log,
                                             .log_fd = STDOUT_FILENO,
                                             .gpu = gpu != NULL ? gpu : "",
                                             .copies = r->options->copies,
                                             .io = &r->io,
                                             .worker = r->options->words_path,
                                             .failed = report,
                                             .failed_arg = r };
    uint64_t step = 0;
    if (r->assignment.spare)
        return wait_for_seat(r, out_code);
    fault_point("trainer.forming");
    enum status st = note_program(r);
    if (st == ST_OK)
        st = open_command(r);
    if (st == ST_OK)
        st = check_store(r);
    if (st != ST_OK)
        return st;
    switch (command_run(r->command, &options, &step)) {
    case COMMAND_DONE:
        session_finished(r->session, step);
        if (r->job->command.saves) /* what was finished is committed */
            copy_folder_forget(r->options->copies, r->generation, r->assignment.rank);
        LOG_INFO(r->log, "the program is done at step %llu", (unsigned long long)step);
        *out_code = RANK_DONE;
        break;
    case COMMAND_STOPPED:
        *out_code = RANK_OVER;
        break;
    case COMMAND_FAILED:
        (void)!session_await_end(r->session, OVER_MS); /* else it ends by itself */
        *out_code = session_parks(r->session) ? RANK_OVER : RANK_FAILED;
        break;
    }
    return ST_OK;
}

#include "agent/exit_cause.h"

#include <stdio.h>
#include <string.h>

#define FINISHED         CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED
#define CAUSE_EXIT       CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT
#define CAUSE_SIGNAL     CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL
#define CAUSE_OOM        CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL
#define CAUSE_UNKNOWN    CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED
#define UNKNOWN_SAID     "ended while it was not this agent's child; its last words: %s"
#define UNKNOWN_SILENT   "ended while it was not this agent's child, without last words"
#define UNKNOWN_FINISHED "finished while it was not this agent's child"

/* Signal numbers that people know, by name. */
static const char *signal_name(int number)
{
    const char *name = sigabbrev_np(number);
    return name != NULL ? name : "?";
}

/* An adopted trainer's status went to somebody else: its last words are all there is. */
static struct exit_cause unwaited(const struct exit_facts *facts)
{
    struct exit_cause out = { .cause = CAUSE_UNKNOWN };
    const Cairn__V1__LastWords *words = facts->words;
    if (words != NULL && words->finished) {
        out.cause = FINISHED;
        (void)snprintf(out.message, sizeof(out.message), UNKNOWN_FINISHED);
    } else if (words != NULL && words->fault__case == CAIRN__V1__LAST_WORDS__FAULT__FAULT) {
        (void)snprintf(out.message, sizeof(out.message), UNKNOWN_SAID, words->fault->message);
    } else {
        (void)snprintf(out.message, sizeof(out.message), UNKNOWN_SILENT);
    }
    if (facts->sent != 0 && out.cause == CAUSE_UNKNOWN) {
        /* Whether it was our signal that ended it isn't known, but nothing else is likelier. */
        out.cause = CAUSE_SIGNAL;
        out.signal = facts->sent;
        (void)snprintf(out.message, sizeof(out.message), "ended by this agent with SIG%s",
                       signal_name(facts->sent));
    }
    return out;
}

struct exit_cause exit_cause_decide(const struct exit_facts *facts)
{
    if (!facts->waited)
        return unwaited(facts);
    struct exit_cause out = { .cause = CAUSE_EXIT };
    int status = facts->info.si_status;
    if (facts->info.si_code == CLD_EXITED) {
        out.code = status;
        (void)snprintf(out.message, sizeof(out.message), "exit code %d", status);
        return out;
    }
    out.signal = status;
    if (status == SIGKILL && facts->sent != SIGKILL && facts->oom_rose) {
        out.cause = CAUSE_OOM;
        (void)snprintf(out.message, sizeof(out.message),
                       "killed by the kernel because memory ran out");
        return out;
    }
    out.cause = CAUSE_SIGNAL;
    (void)snprintf(out.message, sizeof(out.message), "ended by signal %d (SIG%s)%s%s", status,
                   signal_name(status), facts->info.si_code == CLD_DUMPED ? ", core dumped" : "",
                   status == facts->sent ? ", sent by this agent" : "");
    return out;
}

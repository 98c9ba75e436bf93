#include "agent/exit_cause.h"

#include <stdio.h>
#include <string.h>

#define FINISHED      CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED
#define CAUSE_EXIT    CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT
#define CAUSE_SIGNAL  CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL
#define CAUSE_OOM     CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL
#define CAUSE_UNKNOWN CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED
#define CAUSE_SPAWN   CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED

/* Signal numbers that people know, by name. */
static const char *signal_name(int number)
{
    const char *name = sigabbrev_np(number);
    return name != NULL ? name : "?";
}

/* Adds a part to the line, after a comma if it isn't the first. */
static void add_part(struct exit_cause *cause, const char *head, const char *text)
{
    const struct reason before = cause->message;
    if (text[0] != '\0') {
        reason_set(&cause->message, "%s%s%s%s", before.text, before.text[0] != '\0' ? ", " : "",
                   head, text);
    }
}

/* An adopted trainer's status went to somebody else: its last words are all there is. */
static struct exit_cause decide_unwaited(const struct exit_facts *facts)
{
    struct exit_cause out = { .cause = CAUSE_UNKNOWN };
    const Cairn__V1__LastWords *words = facts->words;
    if (words != NULL && words->finished) {
        out.cause = FINISHED;
        return out;
    }
    if (facts->sent != 0) {
        /* The trainer may have died of another signal than ours, but nothing else is likelier. */
        out.cause = CAUSE_SIGNAL;
        out.signal = facts->sent;
        add_part(&out, "", "sent by this agent");
    } else {
        add_part(&out, "", "it wasn't this agent's child");
    }
    add_part(&out, "last ", facts->last_mark);
    if (words != NULL && words->fault__case == CAIRN__V1__LAST_WORDS__FAULT__FAULT)
        add_part(&out, "its last words: ", words->fault->message);
    return out;
}

struct exit_cause exit_cause_decide(const struct exit_facts *facts)
{
    if (!facts->waited)
        return decide_unwaited(facts);
    struct exit_cause out = { .cause = CAUSE_EXIT };
    int status = facts->info.si_status;
    if (facts->info.si_code == CLD_EXITED) {
        out.code = status; /* what it had to say is in its last lines */
        if (status != 0)
            add_part(&out, "last ", facts->last_mark);
        return out;
    }
    out.cause = CAUSE_SIGNAL;
    out.signal = status;
    if (status == facts->sent) {
        bool own = facts->why_sent != NULL && facts->why_sent[0] != '\0';
        add_part(&out, "", own ? facts->why_sent : "sent by this agent");
    } else if (status == SIGKILL && facts->sent != SIGKILL && facts->oom_rose) {
        out.cause = CAUSE_OOM;
    }
    if (facts->info.si_code == CLD_DUMPED)
        add_part(&out, "", "core dumped");
    add_part(&out, "last ", facts->last_mark);
    return out;
}

void exit_cause_text(const struct exit_cause *cause, char *out, size_t capacity)
{
    char how[64] = "is gone";
    switch (cause->cause) {
    case FINISHED:
        (void)snprintf(how, sizeof(how), "finished");
        break;
    case CAUSE_EXIT:
        (void)snprintf(how, sizeof(how), "ended with exit code %d", cause->code);
        break;
    case CAUSE_SIGNAL:
        (void)snprintf(how, sizeof(how), "was ended by signal %d (SIG%s)", cause->signal,
                       signal_name(cause->signal));
        break;
    case CAUSE_OOM:
        (void)snprintf(how, sizeof(how), "was killed because memory ran out");
        break;
    case CAUSE_SPAWN:
        (void)snprintf(how, sizeof(how), "couldn't be started");
        break;
    case CAUSE_UNKNOWN:
    case _CAIRN__V1__TRAINER_EXITED__CAUSE_IS_INT_SIZE:
        break;
    }
    (void)snprintf(out, capacity, "%s%s%s", how, cause->message.text[0] != '\0' ? ": " : "",
                   cause->message.text);
}

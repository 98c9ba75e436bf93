/*
 * Why a trainer ended, decided from what is known: a pure function.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/limits.h"
#include "common/reason.h"

struct exit_facts {
    bool waited; /* the trainer was our child: info holds what waitid said */
    siginfo_t info;
    const char *why_sent;              /* this agent's own reason for it; NULL or "": none */
    int sent;                          /* the last signal that this agent sent it; 0: none */
    bool oom_rose;                     /* the kernel killed something of ours for memory just now */
    const Cairn__V1__LastWords *words; /* or NULL */
    char last_mark[LIMIT_REASON / 2];  /* last mark of the flight recorder (last_words.h), or "" */
};

struct exit_cause {
    Cairn__V1__TrainerExited__Cause cause;
    int32_t code;
    int32_t signal;
    struct reason message; /* facts that the other members don't have; may be empty */
};

struct exit_cause exit_cause_decide(const struct exit_facts *facts);

/* Writes the whole cause in one line, for the log. */
void exit_cause_text(const struct exit_cause *cause, char *out, size_t capacity);

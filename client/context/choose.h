/*
 * Which context counts in a call of `cairn`, and what follows of it.
 *
 * The first of these decides; each says all of where to:
 *
 *   --context NAME               '-': none
 *   CAIRN_CONTEXT                likewise
 *   --addr, CAIRN_ADDR, CAIRN_HOME   then no context counts
 *   the current context          of `cairn context use`
 *
 * A context that counts takes the place of the variables of the environment that it stands for, so
 * that all code, and every program that is started, finds the same coordinator. What it doesn't say
 * is unset, but for CAIRN_HOME where it names an address. Options of the call go before it.
 */
#pragma once

#include "client/base/client.h"
#include "client/context/contexts.h"

/* What said which context counts, or that none does. */
enum context_by {
    CONTEXT_BY_OPTION,        /* --context */
    CONTEXT_BY_VARIABLE,      /* CAIRN_CONTEXT */
    CONTEXT_BY_ADDR_OPTION,   /* --addr */
    CONTEXT_BY_ADDR_VARIABLE, /* CAIRN_ADDR */
    CONTEXT_BY_HOME,          /* CAIRN_HOME */
    CONTEXT_BY_CURRENT,       /* the file's current one */
    CONTEXT_BY_NOTHING,
};

/* The word for it: "--context", "CAIRN_CONTEXT", "--addr", ..., "current", "default". */
const char *context_by_word(enum context_by by);

/* Says whether a context counts, by the call and the environment; *out_name is NULL where none
 * does. contexts: NULL: the file isn't needed, or not there; its current one is then none. */
enum context_by context_choose(const struct arguments *args, const struct contexts *contexts,
                               const char **out_name);

/* Has the context that counts take its place in the environment and in client. Commands that are
 * about contexts, and those that never ask a coordinator, are left alone. Errors are reported. */
enum exit_code context_apply(struct client *client);

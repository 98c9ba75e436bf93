#include "client/context/choose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *context_by_word(enum context_by by)
{
    static const char *const words[] = {
        [CONTEXT_BY_OPTION] = "--context",   [CONTEXT_BY_VARIABLE] = "CAIRN_CONTEXT",
        [CONTEXT_BY_ADDR_OPTION] = "--addr", [CONTEXT_BY_ADDR_VARIABLE] = "CAIRN_ADDR",
        [CONTEXT_BY_HOME] = "CAIRN_HOME",    [CONTEXT_BY_CURRENT] = "current",
        [CONTEXT_BY_NOTHING] = "default",
    };
    return words[by];
}

/* A variable that is set to something; else NULL. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

enum context_by context_choose(const struct arguments *args, const struct contexts *contexts,
                               const char **out_name)
{
    enum context_by by = CONTEXT_BY_NOTHING;
    const char *name = NULL;
    if (args->context != NULL) {
        by = CONTEXT_BY_OPTION;
        name = args->context;
    } else if (variable("CAIRN_CONTEXT") != NULL) {
        by = CONTEXT_BY_VARIABLE;
        name = variable("CAIRN_CONTEXT");
    } else if (args->addr != NULL) {
        by = CONTEXT_BY_ADDR_OPTION;
    } else if (variable("CAIRN_ADDR") != NULL) {
        by = CONTEXT_BY_ADDR_VARIABLE;
    } else if (variable("CAIRN_HOME") != NULL) {
        by = CONTEXT_BY_HOME;
    } else if (contexts != NULL && contexts_current(contexts) != NULL) {
        by = CONTEXT_BY_CURRENT;
        name = contexts_current(contexts);
    }
    *out_name = name == NULL || strcmp(name, "-") == 0 ? NULL : name;
    return by;
}

/* Commands that the context is nothing to. */
static bool is_left_alone(const struct client *client)
{
    static const char *const verbs[] = { "completion", "manual" };
    const struct command *command = client->command;
    if (client->args.bundle != NULL)
        return true;
    if (command->noun != NULL)
        return strcmp(command->noun, "context") == 0;
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(command->verb, verbs[i]) == 0)
            return true;
    }
    return strcmp(command->verb, "complete") == 0 &&
           strcmp(client->args.operands[0], "contexts") == 0;
}

/* One variable; NULL: it is none of the environment then. */
static bool set_variable(const char *name, const char *value)
{
    return (value == NULL ? unsetenv(name) : setenv(name, value, 1)) == 0;
}

/* The environment of the context. */
static enum exit_code enter(struct client *client, const struct context *context)
{
    const char *addr = context->values[CONTEXT_ADDR];
    bool set = true;
    for (enum context_key key = CONTEXT_ADDR; set && key < CONTEXT_KEYS; key++) {
        if (key != CONTEXT_HOME || addr == NULL || context->values[key] != NULL)
            set = set_variable(context_variable(key), context->values[key]);
    }
    if (!set) {
        client_error("the context '%s': %s", context->name, strerror(errno));
        return EXIT_INTERNAL;
    }
    (void)snprintf(client->context, sizeof(client->context), "%s", context->name);
    client->elsewhere = addr != NULL;
    return EXIT_DONE;
}

static enum exit_code refuse_missing(const struct contexts *contexts, const char *name,
                                     enum context_by by)
{
    const char *like = contexts_like(contexts, name);
    if (by == CONTEXT_BY_CURRENT) {
        client_error("the current context '%s' is gone: 'cairn context use NAME' takes another "
                     "one, 'cairn context use -' none",
                     name);
    } else {
        client_error("there is no context '%s' (%s)%s%s%s 'cairn context ls' lists them, 'cairn "
                     "context add' makes one",
                     name, context_by_word(by), like != NULL ? "; did you mean '" : ";",
                     like != NULL ? like : "", like != NULL ? "'?" : "");
    }
    return EXIT_NOT_FOUND;
}

enum exit_code context_apply(struct client *client)
{
    char path[LIMIT_PATH];
    const char *name = NULL;
    struct contexts *contexts = NULL;
    struct context context;
    struct reason reason = { "" };
    if (is_left_alone(client))
        return EXIT_DONE;
    enum context_by by = context_choose(&client->args, NULL, &name);
    const bool asked = name != NULL;
    enum exit_code code = EXIT_DONE;
    enum status st = asked || by == CONTEXT_BY_NOTHING ? contexts_path(path) : ST_NOT_FOUND;
    if (st != ST_OK && asked) {
        client_error("there is no place for contexts: set XDG_CONFIG_HOME or HOME");
        return EXIT_USAGE;
    }
    if (st == ST_OK) {
        st = contexts_read(path, &contexts, &reason);
        if (st != ST_OK) {
            client_error("%s%s", reason.text[0] != '\0' ? reason.text : status_string(st),
                         asked ? "" : " ('cairn --context - ...' goes without)");
            return exit_of_status(st);
        }
        by = context_choose(&client->args, contexts, &name);
    }
    if (name != NULL && contexts_find(contexts, name, &context)) {
        code = enter(client, &context);
    } else if (name != NULL) {
        code = refuse_missing(contexts, name, by);
    }
    contexts_free(contexts);
    if (code == EXIT_DONE && !set_variable("CAIRN_CONTEXT", NULL)) /* said once, for all */
        code = EXIT_INTERNAL;
    return code;
}

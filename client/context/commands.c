/* context add, use, ls, rm, show: the file of contexts, and which of them counts. */
#include "client/context/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cairn/v1/control.pb-c.h"
#include "client/context/choose.h"
#include "client/print/cell.h"
#include "client/print/output.h"
#include "common/cleanup.h"

/* ---- rows ---- */

#define CONTEXT(member) .offset = offsetof(Cairn__V1__Context, member)

static void cell_current(const void *current, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", *(const protobuf_c_boolean *)current ? "*" : "");
}

static const struct column context_columns[] = {
    { "NAME", CONTEXT(name), .cell = cell_text },
    { "CURRENT", CONTEXT(current), .cell = cell_current },
    { "ADDRESS", CONTEXT(addr), .cell = cell_optional_text },
    { "HOME", CONTEXT(home), .cell = cell_optional_text },
    { "CERTIFICATE", CONTEXT(tls_cert), .cell = cell_optional_text },
    { "KEY", CONTEXT(tls_key), .cell = cell_optional_text, .wide = true },
    { "AUTHORITY", CONTEXT(tls_ca), .cell = cell_optional_text, .wide = true },
    { "TOKEN FILE", CONTEXT(token_file), .cell = cell_optional_text, .wide = true },
    { 0 },
};

/* Texts are borrowed. */
static void describe(const struct context *context, Cairn__V1__Context *out)
{
    const char *values[CONTEXT_KEYS];
    for (size_t key = 0; key < CONTEXT_KEYS; key++)
        values[key] = context->values[key] != NULL ? context->values[key] : "";
    *out = (Cairn__V1__Context)CAIRN__V1__CONTEXT__INIT;
    out->name = (char *)context->name;
    out->addr = (char *)values[CONTEXT_ADDR];
    out->home = (char *)values[CONTEXT_HOME];
    out->tls_cert = (char *)values[CONTEXT_TLS_CERT];
    out->tls_key = (char *)values[CONTEXT_TLS_KEY];
    out->tls_ca = (char *)values[CONTEXT_TLS_CA];
    out->token_file = (char *)values[CONTEXT_TOKEN_FILE];
}

/* ---- the file ---- */

static enum exit_code report(enum status st, const struct reason *reason)
{
    client_error("%s", reason->text[0] != '\0' ? reason->text : status_string(st));
    return st == ST_TIMED_OUT ? EXIT_REFUSED : exit_of_status(st);
}

static enum exit_code find_path(char path[LIMIT_PATH])
{
    if (contexts_path(path) == ST_OK)
        return EXIT_DONE;
    client_error("there is no place for contexts: set XDG_CONFIG_HOME or HOME");
    return EXIT_USAGE;
}

static enum exit_code change(contexts_change_fn fn, const void *arg)
{
    char path[LIMIT_PATH];
    struct reason reason = { "" };
    const enum exit_code code = find_path(path);
    if (code != EXIT_DONE)
        return code;
    const enum status st = contexts_change(path, fn, arg, &reason);
    return st == ST_OK ? EXIT_DONE : report(st, &reason);
}

static enum exit_code read_file(struct contexts **out)
{
    char path[LIMIT_PATH];
    struct reason reason = { "" };
    const enum exit_code code = find_path(path);
    if (code != EXIT_DONE)
        return code;
    const enum status st = contexts_read(path, out, &reason);
    return st == ST_OK ? EXIT_DONE : report(st, &reason);
}

/* There is none of that name. */
static enum status say_missing(const struct contexts *contexts, const char *name,
                               struct reason *reason)
{
    const char *like = contexts_like(contexts, name);
    reason_set(reason, "there is no context '%s'%s%s%s 'cairn context ls' lists them", name,
               like != NULL ? "; did you mean '" : ";", like != NULL ? like : "",
               like != NULL ? "'?" : "");
    return ST_NOT_FOUND;
}

/* ---- add ---- */

struct addition {
    struct context context;
    bool force;
};

static enum status add(struct contexts *contexts, const void *arg, struct reason *reason)
{
    const struct addition *addition = arg;
    struct context before;
    if (!addition->force && contexts_find(contexts, addition->context.name, &before)) {
        reason_set(reason, "there is a context '%s' already: --force replaces it",
                   addition->context.name);
        return ST_EXISTS;
    }
    const enum status st = contexts_put(contexts, &addition->context);
    if (st == ST_FULL)
        reason_set(reason, "there are %d contexts already: remove some", CONTEXTS_MAX);
    return st;
}

/* A path from the root, whatever folder it is said in. *out: free(). */
static enum exit_code make_absolute(const char *path, char **out)
{
    auto_free char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    if (path[0] != '/' && here == NULL) {
        client_error("the working folder has no path; say '%s' as a whole one", path);
        return EXIT_USAGE;
    }
    const int size =
        asprintf(out, "%s%s%s", here != NULL ? here : "", here != NULL ? "/" : "", path);
    if (size >= 0 && size < LIMIT_PATH)
        return EXIT_DONE;
    if (size >= 0)
        free(*out);
    *out = NULL;
    client_error("'%.64s...' is too long for a path", path);
    return EXIT_USAGE;
}

/* Whether what is said makes a context. */
static enum exit_code check_addition(const struct arguments *args)
{
    const char *name = args->operands[0];
    const char *addr = args->addr != NULL ? args->addr : "";
    const bool tls = args->tls.cert != NULL || args->tls.key != NULL || args->tls.ca != NULL;
    if (!context_name_is_good(name)) {
        client_error("'%s' can't be a context's name: letters, digits, '.', '_' and '-', fewer "
                     "than %d, the first no '-'",
                     name, CLIENT_CONTEXT);
        return EXIT_USAGE;
    }
    if (addr[0] == '\0' && (args->home == NULL || args->home[0] == '\0')) {
        client_error("where the coordinator is has to be said: --addr HOST:PORT of one elsewhere, "
                     "--home DIR of one on this machine");
        return EXIT_USAGE;
    }
    if (addr[0] == '\0' && (tls || args->token_file != NULL)) {
        client_error("certificates and tokens are for a coordinator with an address: --addr");
        return EXIT_USAGE;
    }
    if (strlen(addr) >= LIMIT_PATH || strchr(addr, '@') != NULL) {
        client_error("--addr takes HOST:PORT or unix:/PATH, without a name or a password");
        return EXIT_USAGE;
    }
    return EXIT_DONE;
}

enum exit_code cmd_context_add(struct client *client)
{
    const struct arguments *args = &client->args;
    const char *const said[CONTEXT_KEYS] = {
        [CONTEXT_HOME] = args->home,
        [CONTEXT_TLS_CERT] = args->tls.cert,
        [CONTEXT_TLS_KEY] = args->tls.key,
        [CONTEXT_TLS_CA] = args->tls.ca,
        [CONTEXT_TOKEN_FILE] = args->token_file,
    };
    char *made[CONTEXT_KEYS] = { NULL };
    struct addition addition = { .context = { .name = args->operands[0] }, .force = args->force };
    enum exit_code code = check_addition(args);
    if (code == EXIT_DONE && args->addr != NULL && args->addr[0] != '\0')
        addition.context.values[CONTEXT_ADDR] = args->addr;
    for (size_t key = 0; code == EXIT_DONE && key < CONTEXT_KEYS; key++) {
        if (said[key] == NULL || said[key][0] == '\0')
            continue;
        code = make_absolute(said[key], &made[key]);
        addition.context.values[key] = made[key];
        if (code == EXIT_DONE && key != CONTEXT_HOME && access(made[key], F_OK) != 0) {
            client_error("%s isn't there", made[key]);
            code = EXIT_NOT_FOUND;
        }
    }
    if (code == EXIT_DONE)
        code = change(add, &addition);
    if (code == EXIT_DONE) {
        client_note(client, "'cairn context use %s' makes it the current one\n",
                    addition.context.name);
    }
    for (size_t key = 0; key < CONTEXT_KEYS; key++)
        free(made[key]);
    return code;
}

/* ---- use, rm ---- */

static enum status use(struct contexts *contexts, const void *arg, struct reason *reason)
{
    const char *name = arg;
    const enum status st = contexts_use(contexts, strcmp(name, "-") == 0 ? NULL : name);
    return st == ST_NOT_FOUND ? say_missing(contexts, name, reason) : st;
}

/* Says so where something else than the current context counts in this shell. */
static void warn_of_others(const struct client *client)
{
    const char *name = NULL;
    const enum context_by by = context_choose(&client->args, NULL, &name);
    if (by != CONTEXT_BY_NOTHING) {
        client_note(client, "%s goes before the current context%s%s\n", context_by_word(by),
                    name != NULL ? ": it says " : "", name != NULL ? name : "");
    }
}

enum exit_code cmd_context_use(struct client *client)
{
    const enum exit_code code = change(use, client->args.operands[0]);
    if (code == EXIT_DONE)
        warn_of_others(client);
    return code;
}

static enum status remove_one(struct contexts *contexts, const void *arg, struct reason *reason)
{
    const enum status st = contexts_remove(contexts, arg);
    return st == ST_NOT_FOUND ? say_missing(contexts, arg, reason) : st;
}

enum exit_code cmd_context_rm(struct client *client)
{
    return change(remove_one, client->args.operands[0]);
}

/* ---- ls, show ---- */

enum exit_code cmd_context_ls(struct client *client)
{
    struct contexts *contexts = NULL;
    const char *chosen = NULL;
    enum exit_code code = read_file(&contexts);
    if (code != EXIT_DONE)
        return code;
    const enum context_by by = context_choose(&client->args, contexts, &chosen);
    const size_t count = contexts_count(contexts);
    const char *current = contexts_current(contexts);
    auto_free Cairn__V1__Context *rows = calloc(count + 1, sizeof(*rows));
    auto_free ProtobufCMessage **messages = calloc(count + 1, sizeof(ProtobufCMessage *));
    if (rows == NULL || messages == NULL)
        code = EXIT_INTERNAL;
    for (size_t i = 0; code == EXIT_DONE && i < count; i++) {
        struct context context = { .name = "" };
        contexts_at(contexts, i, &context);
        describe(&context, &rows[i]);
        rows[i].current = current != NULL && strcmp(current, context.name) == 0;
        if (chosen != NULL && strcmp(chosen, context.name) == 0)
            rows[i].chosen_by = (char *)context_by_word(by);
        messages[i] = &rows[i].base;
    }
    if (code == EXIT_DONE)
        code = output_list(client, context_columns, messages, count);
    if (code == EXIT_DONE && count > 0 && client->args.output <= OUTPUT_WIDE)
        warn_of_others(client);
    contexts_free(contexts);
    return code;
}

/* Where calls go without a context. Texts are borrowed. */
static void describe_bare(const struct client *client, char address[LIMIT_PATH + 16],
                          Cairn__V1__Context *out)
{
    struct context bare = { .name = "" };
    for (enum context_key key = CONTEXT_ADDR; key < CONTEXT_KEYS; key++) {
        const char *value = getenv(context_variable(key));
        bare.values[key] = value != NULL && value[0] != '\0' ? value : NULL;
    }
    if (client->args.addr != NULL)
        bare.values[CONTEXT_ADDR] = client->args.addr;
    bare.values[CONTEXT_HOME] = client->paths.home;
    if (bare.values[CONTEXT_ADDR] == NULL &&
        paths_socket(&client->paths, address, LIMIT_PATH + 16) == ST_OK)
        bare.values[CONTEXT_ADDR] = address;
    describe(&bare, out);
}

static enum exit_code print_one(const struct client *client, const Cairn__V1__Context *row)
{
    const struct {
        const char *word, *value;
    } lines[] = {
        { "context", row->name[0] != '\0' ? row->name : "none" },
        { "current", row->current ? "yes" : "no" },
        { "chosen by", row->chosen_by },
        { "address", row->addr },
        { "home", row->home },
        { "certificate", row->tls_cert },
        { "key", row->tls_key },
        { "authority", row->tls_ca },
        { "token file", row->token_file },
    };
    if (output_is_json(client))
        return output_message(client, &row->base);
    if (client->args.output == OUTPUT_NAME)
        return printf("%s\n", row->name) < 0 ? EXIT_INTERNAL : output_text(NULL);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (lines[i].value[0] != '\0' &&
            output_printf(client, "%-12s %s\n", lines[i].word, lines[i].value) < 0)
            return EXIT_INTERNAL;
    }
    return output_text(NULL);
}

enum exit_code cmd_context_show(struct client *client)
{
    char address[LIMIT_PATH + 16];
    struct contexts *contexts = NULL;
    struct context context;
    struct reason reason = { "" };
    Cairn__V1__Context row = CAIRN__V1__CONTEXT__INIT;
    const char *chosen = NULL;
    enum exit_code code = read_file(&contexts);
    if (code != EXIT_DONE)
        return code;
    const enum context_by by = context_choose(&client->args, contexts, &chosen);
    const char *name = client->args.operand_count > 0 ? client->args.operands[0] : chosen;
    const char *current = contexts_current(contexts);
    if (name == NULL) {
        describe_bare(client, address, &row);
        row.chosen_by = (char *)context_by_word(by);
    } else if (contexts_find(contexts, name, &context)) {
        describe(&context, &row);
        row.current = current != NULL && strcmp(current, name) == 0;
        if (chosen != NULL && strcmp(chosen, name) == 0)
            row.chosen_by = (char *)context_by_word(by);
    } else {
        code = report(say_missing(contexts, name, &reason), &reason);
    }
    if (code == EXIT_DONE)
        code = print_one(client, &row);
    contexts_free(contexts);
    return code;
}

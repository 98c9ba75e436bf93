#include "client/bundle/secrets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/home/home.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "webhook/config.h"

#define FILE_BYTES     ((size_t)256 << 10)
#define NAMES_MAX      256 /* of keys in a folder */
#define PROCESSES_MAX  64  /* of a home, whose environments are looked at */
#define PART_MIN       12  /* bytes of a part of a webhook's address */
#define MISTAKES_BYTES ((size_t)64 << 10)

extern char **environ;

struct gathering {
    struct redact *redact;
    char names[NAMES_MAX][LIMIT_NAME];
    size_t count;
};

static bool know_name(void *arg, const char *name)
{
    struct gathering *g = arg;
    if (g->count < NAMES_MAX && strlen(name) < LIMIT_NAME)
        (void)snprintf(g->names[g->count++], LIMIT_NAME, "%s", name);
    return g->count < NAMES_MAX;
}

/* A line's bytes without the white space around them. */
static enum status know_line(struct redact *redact, const char *line, size_t size)
{
    while (size > 0 && strchr(" \t\r", line[size - 1]) != NULL)
        size--;
    while (size > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        size--;
    }
    if (size > 5 && memcmp(line, "-----", 5) == 0) /* BEGIN, END */
        return ST_OK;
    return redact_know(redact, line, size);
}

/* Each line of a file. assigned: of lines "NAME = VALUE" the value, where the name is of a
 * secret. */
static enum status know_file(struct redact *redact, const char *path, bool assigned)
{
    auto_free char *text = NULL;
    size_t size = 0;
    enum status st = io_read_file(io_system(), path, FILE_BYTES, &text, &size);
    if (st != ST_OK)
        return st == ST_NO_MEMORY ? st : ST_OK;
    for (char *line = text, *next; st == ST_OK && line < text + size; line = next) {
        const size_t length = strcspn(line, "\n");
        const char *equals = memchr(line, '=', length);
        size_t name = equals == NULL ? 0 : (size_t)(equals - line);
        while (name > 0 && line[name - 1] == ' ')
            name--;
        next = line + length + 1;
        if (!assigned) {
            st = know_line(redact, line, length);
        } else if (equals != NULL && redact_is_secret_name(line, name)) {
            st = know_line(redact, equals + 1, length - (size_t)(equals + 1 - line));
        }
    }
    explicit_bzero(text, size);
    return st;
}

/* All files of a folder of the home whose names end so. */
static enum status know_folder(const struct client *client, struct redact *redact,
                               const char *folder, const char *ending)
{
    char path[LIMIT_PATH];
    auto_free struct gathering *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return ST_NO_MEMORY;
    enum status st = paths_join(&client->paths, path, sizeof(path), "%s", folder);
    if (st != ST_OK || io_system()->list(NULL, path, know_name, g) != ST_OK)
        return ST_OK; /* none there */
    for (size_t i = 0; st == ST_OK && i < g->count; i++) {
        const size_t size = strlen(g->names[i]), end = strlen(ending);
        if (size < end || strcmp(g->names[i] + size - end, ending) != 0)
            continue;
        if (paths_join(&client->paths, path, sizeof(path), "%s/%s", folder, g->names[i]) == ST_OK)
            st = know_file(redact, path, false);
    }
    return st;
}

/* What stands behind a host, and its longer parts: short ones are words, as "services". */
static enum status know_path(struct redact *redact, const char *path)
{
    enum status st = redact_know(redact, path + 1, strlen(path + 1));
    while (st == ST_OK && path[0] != '\0') {
        const size_t size = strcspn(path, "/?&=#");
        if (size >= PART_MIN)
            st = redact_know(redact, path, size);
        path += size + (path[size] != '\0');
    }
    return st;
}

/* Addresses, what stands behind their hosts, and what signs. A list that isn't one: its lines. */
static enum status know_webhooks(const struct client *client, struct redact *redact)
{
    char path[LIMIT_PATH];
    auto_buf struct buf mistakes;
    auto_free struct webhook_config *config = NULL;
    buf_init(&mistakes, MISTAKES_BYTES);
    enum status st = paths_join(&client->paths, path, sizeof(path), WEBHOOK_FILE);
    if (st != ST_OK)
        return st;
    if (webhook_config_read(path, &config, &mistakes) != ST_OK)
        return know_file(redact, path, false);
    for (size_t i = 0; st == ST_OK && i < config->count; i++) {
        const struct webhook *hook = &config->hooks[i];
        const char *host = strstr(hook->url, "://");
        const char *behind = host == NULL ? NULL : strchr(host + 3, '/');
        st = redact_know(redact, hook->url, strlen(hook->url));
        if (st == ST_OK && behind != NULL)
            st = know_path(redact, behind);
        if (st == ST_OK && hook->secret_file[0] != '\0')
            st = know_file(redact, hook->secret_file, false);
    }
    if (config != NULL)
        explicit_bzero(config, sizeof(*config));
    return st;
}

/* "NAME=VALUE" */
static enum status know_variable(struct redact *redact, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || !redact_is_secret_name(text, (size_t)(equals - text)))
        return ST_OK;
    return redact_know(redact, equals + 1, strlen(equals + 1));
}

static enum status know_environments(const struct client *client, struct redact *redact)
{
    const unsigned all = HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER | HOME_SUPERVISOR;
    pid_t pids[PROCESSES_MAX];
    enum status st = ST_OK;
    for (char **variable = environ; st == ST_OK && *variable != NULL; variable++)
        st = know_variable(redact, *variable);
    const size_t count = home_processes(&client->paths, all, pids, PROCESSES_MAX);
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        size_t size = 0;
        auto_free char *text = home_environment(pids[i], &size);
        for (size_t at = 0; st == ST_OK && text != NULL && at < size; at += strlen(text + at) + 1)
            st = know_variable(redact, text + at);
    }
    return st;
}

static enum status know_named_files(const struct client *client, struct redact *redact)
{
    const char *const tokens[] = { getenv("CAIRN_TOKEN_FILE"), getenv("CAIRN_TLS_KEY"),
                                   client->args.tls.key };
    const char *aws = getenv("AWS_SHARED_CREDENTIALS_FILE"), *config = getenv("AWS_CONFIG_FILE");
    const char *user = getenv("HOME");
    char path[LIMIT_PATH];
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        if (tokens[i] != NULL && tokens[i][0] != '\0')
            st = know_file(redact, tokens[i], false);
    }
    (void)snprintf(path, sizeof(path), "%s/.aws/credentials", user == NULL ? "" : user);
    if (st == ST_OK)
        st = know_file(redact, aws != NULL && aws[0] != '\0' ? aws : path, true);
    (void)snprintf(path, sizeof(path), "%s/.aws/config", user == NULL ? "" : user);
    if (st == ST_OK)
        st = know_file(redact, config != NULL && config[0] != '\0' ? config : path, true);
    return st;
}

enum status secrets_gather(const struct client *client, struct redact *redact)
{
    static const char *const files[] = { "token", "state/seal" };
    char path[LIMIT_PATH];
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < sizeof(files) / sizeof(files[0]); i++) {
        if (paths_join(&client->paths, path, sizeof(path), "%s", files[i]) == ST_OK)
            st = know_file(redact, path, false);
    }
    if (st == ST_OK)
        st = know_folder(client, redact, "observer", "");
    if (st == ST_OK)
        st = know_folder(client, redact, "tls", ".key");
    if (st == ST_OK)
        st = know_webhooks(client, redact);
    if (st == ST_OK)
        st = know_environments(client, redact);
    return st == ST_OK ? know_named_files(client, redact) : st;
}

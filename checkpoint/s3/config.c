#include "checkpoint/s3/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"

#define INI_BYTES_MAX  ((size_t)1 << 20)
#define DEFAULT_REGION "us-east-1"

/* ---- ini files ---- */

/* What is wanted of a profile: each value at most once, the first file that has it wins. */
struct wanted_settings {
    const char *section[2]; /* names that the profile goes by in this file */
    struct s3_credentials *credentials;
    struct s3_config *config; /* or NULL */
    bool found;               /* the profile is there */
    bool unsupported;         /* it wants a role, single sign-on or a program */
    bool too_long;
};

static void trim_blanks(char **text)
{
    while (**text == ' ' || **text == '\t')
        (*text)++;
    size_t size = strlen(*text);
    while (size > 0 && strchr(" \t\r", (*text)[size - 1]) != NULL)
        (*text)[--size] = '\0';
}

static void set_once(struct wanted_settings *wanted, char *out, size_t capacity, const char *value)
{
    size_t size = strlen(value);
    if (out[0] != '\0')
        return;
    if (size >= capacity) {
        wanted->too_long = true;
        return;
    }
    memcpy(out, value, size + 1);
}

static void take_value(struct wanted_settings *wanted, const char *name, const char *value)
{
    struct s3_credentials *c = wanted->credentials;
    if (strcmp(name, "aws_access_key_id") == 0) {
        set_once(wanted, c->key_id, sizeof(c->key_id), value);
    } else if (strcmp(name, "aws_secret_access_key") == 0) {
        set_once(wanted, c->secret, sizeof(c->secret), value);
    } else if (strcmp(name, "aws_session_token") == 0) {
        set_once(wanted, c->token, sizeof(c->token), value);
    } else if (strcmp(name, "role_arn") == 0 || strcmp(name, "credential_process") == 0 ||
               strncmp(name, "sso_", 4) == 0) {
        wanted->unsupported = true;
    } else if (wanted->config != NULL && strcmp(name, "region") == 0) {
        set_once(wanted, wanted->config->region, sizeof(wanted->config->region), value);
    } else if (wanted->config != NULL && strcmp(name, "endpoint_url") == 0) {
        set_once(wanted, wanted->config->endpoint, sizeof(wanted->config->endpoint), value);
    } else if (wanted->config != NULL && strcmp(name, "ca_bundle") == 0) {
        set_once(wanted, wanted->config->ca_bundle, sizeof(wanted->config->ca_bundle), value);
    }
}

/* One line, changed in place; *ours: whether the section that it is in is the profile's. */
static void take_line(struct wanted_settings *wanted, char *line, bool *ours)
{
    bool nested = line[0] == ' ' || line[0] == '\t'; /* belongs to the value above it */
    trim_blanks(&line);
    if (line[0] == '\0' || line[0] == '#' || line[0] == ';')
        return;
    if (line[0] == '[') {
        char *end = strchr(line, ']');
        char *name = line + 1;
        if (end != NULL)
            *end = '\0';
        trim_blanks(&name);
        *ours =
            end != NULL && (strcmp(name, wanted->section[0]) == 0 ||
                            (wanted->section[1] != NULL && strcmp(name, wanted->section[1]) == 0));
        wanted->found = wanted->found || *ours;
        return;
    }
    char *value = strchr(line, '=');
    if (nested || !*ours || value == NULL)
        return;
    *value++ = '\0';
    trim_blanks(&line);
    trim_blanks(&value);
    if (value[0] != '\0')
        take_value(wanted, line, value);
}

/* A file that isn't there has nothing to say. */
static void take_file(struct wanted_settings *wanted, const char *path)
{
    auto_free char *text = NULL;
    size_t size = 0;
    if (path[0] == '\0' || io_read_file(io_system(), path, INI_BYTES_MAX, &text, &size) != ST_OK)
        return;
    bool ours = false;
    char *rest = text;
    while (rest != NULL) {
        char *line = rest;
        rest = strchr(line, '\n');
        if (rest != NULL)
            *rest++ = '\0';
        take_line(wanted, line, &ours);
    }
}

static void file_of(const char *variable, const char *name, char out[LIMIT_PATH])
{
    const char *set = getenv(variable), *home = getenv("HOME");
    int size = set != NULL && set[0] != '\0'
                   ? snprintf(out, LIMIT_PATH, "%s", set)
                   : snprintf(out, LIMIT_PATH, "%s/.aws/%s", home == NULL ? "" : home, name);
    if (size < 0 || size >= LIMIT_PATH)
        out[0] = '\0';
}

/* Both files of a profile. */
static void take_profile(const char *profile, struct wanted_settings *wanted)
{
    char path[LIMIT_PATH], section[LIMIT_NAME + 16];
    file_of("AWS_SHARED_CREDENTIALS_FILE", "credentials", path);
    wanted->section[0] = profile;
    take_file(wanted, path);
    (void)snprintf(section, sizeof(section), "profile %s", profile);
    file_of("AWS_CONFIG_FILE", "config", path);
    wanted->section[0] = section;
    wanted->section[1] = strcmp(profile, "default") == 0 ? profile : NULL;
    take_file(wanted, path);
    wanted->section[0] = wanted->section[1] = NULL;
}

/* ---- environment ---- */

static void take_variable(struct wanted_settings *wanted, const char *name, char *out,
                          size_t capacity)
{
    const char *value = getenv(name);
    if (value != NULL && value[0] != '\0')
        set_once(wanted, out, capacity, value);
}

static void take_credentials(struct wanted_settings *wanted)
{
    struct s3_credentials *c = wanted->credentials;
    take_variable(wanted, "AWS_ACCESS_KEY_ID", c->key_id, sizeof(c->key_id));
    take_variable(wanted, "AWS_SECRET_ACCESS_KEY", c->secret, sizeof(c->secret));
    if (c->key_id[0] != '\0' && c->secret[0] != '\0') {
        take_variable(wanted, "AWS_SESSION_TOKEN", c->token, sizeof(c->token));
    } else {
        *c = (struct s3_credentials){ 0 }; /* half a pair is none */
    }
}

/* An endpoint is scheme and host; what people put behind it is cut off. */
static enum status check_endpoint(struct s3_config *config, struct reason *reason)
{
    char *endpoint = config->endpoint;
    if (endpoint[0] == '\0')
        return ST_OK;
    size_t size = strlen(endpoint);
    while (size > 0 && endpoint[size - 1] == '/')
        endpoint[--size] = '\0';
    const char *host = strstr(endpoint, "://");
    bool known = strncmp(endpoint, "https://", 8) == 0 || strncmp(endpoint, "http://", 7) == 0;
    if (known && strchr(host + 3, '/') == NULL && strchr(host + 3, '@') == NULL && host[3] != '\0')
        return ST_OK;
    if (strchr(endpoint, '@') != NULL) { /* what stands before it may be a password */
        reason_set(reason, "the S3 endpoint in AWS_ENDPOINT_URL_S3 holds a '@': credentials go "
                           "into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
        return ST_CONFIG;
    }
    reason_set(reason,
               "the S3 endpoint '%s' is no address: write http://HOST:PORT or "
               "https://HOST in AWS_ENDPOINT_URL_S3",
               endpoint);
    return ST_CONFIG;
}

enum status s3_config_load(struct s3_config *out, struct reason *reason)
{
    auto_free struct s3_config *config = calloc(1, sizeof(*config));
    if (config == NULL)
        return ST_NO_MEMORY;
    struct wanted_settings wanted = { .credentials = &config->credentials, .config = config };
    const char *profile = getenv("AWS_PROFILE");
    bool named = profile != NULL && profile[0] != '\0';
    int size =
        snprintf(config->profile, sizeof(config->profile), "%s", named ? profile : "default");
    if (size < 0 || (size_t)size >= sizeof(config->profile)) {
        reason_set(reason, "the name in AWS_PROFILE is too long");
        return ST_CONFIG;
    }
    take_credentials(&wanted);
    take_variable(&wanted, "AWS_REGION", config->region, sizeof(config->region));
    take_variable(&wanted, "AWS_DEFAULT_REGION", config->region, sizeof(config->region));
    take_variable(&wanted, "AWS_ENDPOINT_URL_S3", config->endpoint, sizeof(config->endpoint));
    take_variable(&wanted, "AWS_ENDPOINT_URL", config->endpoint, sizeof(config->endpoint));
    take_variable(&wanted, "AWS_CA_BUNDLE", config->ca_bundle, sizeof(config->ca_bundle));
    bool from_environment = config->credentials.key_id[0] != '\0';
    struct s3_credentials ignored = { 0 };
    if (from_environment)
        wanted.credentials = &ignored;
    take_profile(config->profile, &wanted);
    if (wanted.too_long) {
        reason_set(reason, "a setting of S3 (credentials, region or endpoint) is too long");
        return ST_CONFIG;
    }
    if (named && !wanted.found && !from_environment) {
        reason_set(reason,
                   "AWS_PROFILE names the profile '%s', which is in neither "
                   "~/.aws/credentials nor ~/.aws/config",
                   config->profile);
        return ST_CONFIG;
    }
    if (wanted.unsupported && !from_environment && config->credentials.key_id[0] == '\0') {
        reason_set(reason,
                   "the profile '%s' gets its credentials by a role, single sign-on or "
                   "a program, which is not supported: put them into the environment "
                   "(aws configure export-credentials --format env)",
                   config->profile);
        return ST_CONFIG;
    }
    if (config->region[0] == '\0')
        memcpy(config->region, DEFAULT_REGION, sizeof(DEFAULT_REGION));
    enum status st = check_endpoint(config, reason);
    if (st == ST_OK)
        *out = *config;
    return st;
}

enum status s3_config_reload(const struct s3_config *config, struct s3_credentials *out)
{
    auto_free struct s3_credentials *fresh = calloc(1, sizeof(*fresh));
    if (fresh == NULL)
        return ST_NO_MEMORY;
    struct wanted_settings wanted = { .credentials = fresh };
    take_credentials(&wanted);
    if (fresh->key_id[0] == '\0')
        take_profile(config->profile, &wanted);
    *out = *fresh;
    return ST_OK;
}

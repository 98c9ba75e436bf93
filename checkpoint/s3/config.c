#include "checkpoint/s3/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"

#define INI_BYTES_MAX  ((size_t)1 << 20)
#define DEFAULT_REGION "us-east-1"

/* ---- ini files ---- */

/* Settings that are wanted of a profile: each at most once, the first file that has it wins. */
struct wanted_settings {
    const char *section[2]; /* names that the profile goes by in this file */
    struct s3_credentials *credentials;
    struct s3_config *config; /* or NULL */
    char endpoint[256];       /* the profile's own */
    char services[64];        /* the section [services NAME] that it goes by; "": none */
    bool in_services;         /* that section is being read */
    char service[32];         /* the service whose lines are being read there */
    bool found;               /* the section was found */
    bool unsupported;         /* the profile wants a role, single sign-on or a program */
    bool too_long;
    const char *spoiled; /* the variable that holds a control character; NULL: none */
};

static void trim_blanks(char **text)
{
    static const char blanks[] = " \t\r\n\v\f";
    *text += strspn(*text, blanks);
    size_t size = strlen(*text);
    while (size > 0 && strchr(blanks, (*text)[size - 1]) != NULL)
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
        set_once(wanted, wanted->endpoint, sizeof(wanted->endpoint), value);
    } else if (wanted->config != NULL && strcmp(name, "services") == 0) {
        set_once(wanted, wanted->services, sizeof(wanted->services), value);
    } else if (wanted->config != NULL && strcmp(name, "ca_bundle") == 0) {
        set_once(wanted, wanted->config->ca_bundle, sizeof(wanted->config->ca_bundle), value);
    }
}

/* A line of [services NAME]: "s3 =", and below it, further in, "endpoint_url = ...". */
static void take_service(struct wanted_settings *wanted, const char *name, const char *value,
                         bool nested)
{
    struct s3_config *config = wanted->config;
    if (!nested) {
        (void)snprintf(wanted->service, sizeof(wanted->service), "%s", name);
    } else if (strcmp(wanted->service, "s3") == 0 && strcmp(name, "endpoint_url") == 0) {
        set_once(wanted, config->endpoint, sizeof(config->endpoint), value);
    }
}

/* Takes one line, changing it in place; *ours: whether its section is the profile's. */
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
    if ((nested && !wanted->in_services) || !*ours || value == NULL)
        return;
    *value++ = '\0';
    trim_blanks(&line);
    trim_blanks(&value);
    if (wanted->in_services) {
        take_service(wanted, line, value, nested);
    } else if (value[0] != '\0') {
        take_value(wanted, line, value);
    }
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

enum status s3_setting(const char *variable, char *out, size_t capacity)
{
    const char *value = getenv(variable);
    out[0] = '\0';
    auto_free char *copy = strdup(value == NULL ? "" : value);
    char *text = copy;
    if (text == NULL)
        return ST_NO_MEMORY;
    trim_blanks(&text);
    const size_t size = strlen(text);
    if (size >= capacity)
        return ST_TOO_LONG;
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return ST_INVALID;
    }
    memcpy(out, text, size + 1);
    return size > 0 ? ST_OK : ST_NOT_FOUND;
}

static void file_of(const char *variable, const char *name, char out[LIMIT_PATH])
{
    const char *home = getenv("HOME");
    if (s3_setting(variable, out, LIMIT_PATH) == ST_OK)
        return;
    const int size = snprintf(out, LIMIT_PATH, "%s/.aws/%s", home == NULL ? "" : home, name);
    if (size < 0 || size >= LIMIT_PATH)
        out[0] = '\0';
}

/* The services that the profile names, for what the environment doesn't say. */
static void take_services(struct wanted_settings *wanted, const char *path)
{
    char section[sizeof(wanted->services) + 16];
    const bool found = wanted->found;
    (void)snprintf(section, sizeof(section), "services %s", wanted->services);
    wanted->section[0] = section;
    wanted->section[1] = NULL;
    wanted->in_services = true;
    wanted->found = false;
    take_file(wanted, path);
    if (wanted->found)
        wanted->services[0] = '\0'; /* a name that stays here has no section */
    wanted->found = found;
    wanted->in_services = false;
    wanted->section[0] = NULL; /* the name lies in this function's memory */
}

/* Takes the settings of both files of a profile. */
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
    if (wanted->config != NULL && wanted->config->endpoint[0] != '\0')
        wanted->services[0] = '\0'; /* the environment says it */
    if (wanted->services[0] != '\0')
        take_services(wanted, path);
    if (wanted->config != NULL) {
        set_once(wanted, wanted->config->endpoint, sizeof(wanted->config->endpoint),
                 wanted->endpoint);
    }
    wanted->section[0] = wanted->section[1] = NULL;
}

/* ---- environment ---- */

static void take_variable(struct wanted_settings *wanted, const char *name, char *out,
                          size_t capacity)
{
    if (out[0] != '\0')
        return;
    const enum status st = s3_setting(name, out, capacity);
    wanted->too_long = wanted->too_long || st == ST_TOO_LONG;
    if (st == ST_INVALID)
        wanted->spoiled = name;
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

static enum status check_taken(const struct wanted_settings *wanted, struct reason *reason)
{
    if (wanted->spoiled != NULL) {
        reason_set(reason, "%s holds a control character, as a newline, in its middle",
                   wanted->spoiled);
    } else if (wanted->too_long) {
        reason_set(reason,
                   "a setting of S3 (profile, credentials, region or endpoint) is too long");
    } else if (wanted->services[0] != '\0') {
        reason_set(reason,
                   "the profile goes by [services %s], which isn't in ~/.aws/config (or what "
                   "AWS_CONFIG_FILE names)",
                   wanted->services);
    } else {
        return ST_OK;
    }
    return ST_CONFIG;
}

enum status s3_config_load(struct s3_config *out, struct reason *reason)
{
    auto_free struct s3_config *config = calloc(1, sizeof(*config));
    if (config == NULL)
        return ST_NO_MEMORY;
    struct wanted_settings wanted = { .credentials = &config->credentials, .config = config };
    take_variable(&wanted, "AWS_PROFILE", config->profile, sizeof(config->profile));
    const bool named = config->profile[0] != '\0';
    if (!named)
        (void)snprintf(config->profile, sizeof(config->profile), "default");
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
    enum status st = check_taken(&wanted, reason);
    if (st != ST_OK)
        return st;
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
    st = check_endpoint(config, reason);
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

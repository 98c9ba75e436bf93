#include "checkpoint/s3/role.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "checkpoint/s3/url.h"
#include "checkpoint/s3/xml.h"
#include "common/cleanup.h"
#include "common/io.h"

#define CONTAINER_HOST "http://169.254.170.2"
#define INSTANCE_HOST  "http://169.254.169.254"
#define INSTANCE_PATH  INSTANCE_HOST "/latest/meta-data/iam/security-credentials/"
#define TOKEN_TTL      "X-aws-ec2-metadata-token-ttl-seconds: 21600"
#define TEXT_MAX       4096
#define WEB_TOKEN_MAX  ((size_t)32 << 10) /* a JSON web token */

/* A short answer of status 200 as text. */
static enum status fetch_text(struct s3_http *http, const char *method, const char *url,
                              const char *header, char *out, size_t capacity)
{
    struct s3_http_request request = { .method = method, .url = url, .headers = { header } };
    struct s3_http_answer answer;
    enum status st = s3_http_send(http, &request, &answer);
    if (st != ST_OK)
        return st;
    if (answer.curl != 0 || answer.status != 200 || answer.body.size >= capacity) {
        st = ST_NOT_FOUND;
    } else {
        memcpy(out, answer.body.size == 0 ? "" : answer.body.data, answer.body.size);
        out[answer.body.size] = '\0';
    }
    s3_http_answer_release(&answer);
    return st;
}

static bool take_text(const json_t *root, const char *name, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(root, name));
    if (text == NULL || strlen(text) >= capacity)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static enum status parse_credentials(const char *text, struct s3_credentials *out)
{
    auto_free struct s3_credentials *found = calloc(1, sizeof(*found));
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    char expires[64] = "";
    struct tm tm = { .tm_isdst = 0 };
    bool good = found != NULL &&
                take_text(root, "AccessKeyId", found->key_id, sizeof(found->key_id)) &&
                take_text(root, "SecretAccessKey", found->secret, sizeof(found->secret)) &&
                take_text(root, "Token", found->token, sizeof(found->token)) &&
                take_text(root, "Expiration", expires, sizeof(expires)) &&
                strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm) != NULL;
    json_decref(root);
    if (!good)
        return ST_NOT_FOUND;
    found->expires_ms = (int64_t)timegm(&tm) * 1000;
    *out = *found;
    return ST_OK;
}

/* The value of the Authorization header that the container's endpoint wants; "": none. */
static void container_token(char *out, size_t capacity)
{
    char file[LIMIT_PATH];
    auto_free char *text = NULL;
    size_t size = 0;
    if (s3_setting("AWS_CONTAINER_AUTHORIZATION_TOKEN", out, capacity) != ST_OK)
        out[0] = '\0';
    if (s3_setting("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file, sizeof(file)) == ST_OK &&
        io_read_file(io_system(), file, TEXT_MAX, &text, &size) == ST_OK)
        (void)snprintf(out, capacity, "%s", text);
    out[strcspn(out, "\r\n")] = '\0';
}

static enum status of_container(struct s3_http *http, struct s3_credentials *out)
{
    char given[TEXT_MAX], url[TEXT_MAX], token[TEXT_MAX], header[TEXT_MAX + 32];
    auto_free char *text = malloc(S3_BODY_MAX);
    if (text == NULL)
        return ST_NO_MEMORY;
    const bool relative =
        s3_setting("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", given, sizeof(given)) == ST_OK;
    if (!relative &&
        s3_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI", given, sizeof(given)) != ST_OK)
        return ST_NOT_FOUND;
    const int size = snprintf(url, sizeof(url), "%s%s", relative ? CONTAINER_HOST : "", given);
    if (size < 0 || (size_t)size >= sizeof(url))
        return ST_NOT_FOUND;
    container_token(token, sizeof(token));
    (void)snprintf(header, sizeof(header), "Authorization: %s", token);
    enum status st =
        fetch_text(http, "GET", url, token[0] == '\0' ? NULL : header, text, S3_BODY_MAX);
    return st == ST_OK ? parse_credentials(text, out) : st;
}

static enum status of_instance(struct s3_http *http, struct s3_credentials *out)
{
    char disabled[16];
    if (s3_setting("AWS_EC2_METADATA_DISABLED", disabled, sizeof(disabled)) == ST_OK &&
        strcasecmp(disabled, "true") == 0)
        return ST_NOT_FOUND;
    char token[1024], header[1100], role[512], url[1024];
    auto_free char *text = malloc(S3_BODY_MAX);
    if (text == NULL)
        return ST_NO_MEMORY;
    enum status st =
        fetch_text(http, "PUT", INSTANCE_HOST "/latest/api/token", TOKEN_TTL, token, sizeof(token));
    (void)snprintf(header, sizeof(header), "X-aws-ec2-metadata-token: %s",
                   st == ST_OK ? token : "");
    if (st == ST_OK)
        st = fetch_text(http, "GET", INSTANCE_PATH, header, role, sizeof(role));
    if (st != ST_OK)
        return st;
    role[strcspn(role, "\r\n")] = '\0';
    (void)snprintf(url, sizeof(url), INSTANCE_PATH "%s", role);
    st = fetch_text(http, "GET", url, header, text, S3_BODY_MAX);
    return st == ST_OK ? parse_credentials(text, out) : st;
}

/* ---- web identity ---- */

#define WEB_RESULT "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/"

static bool keep_text(const char *path, const char *name, const char *text, char *out,
                      size_t capacity)
{
    if (strncmp(path, WEB_RESULT, sizeof(WEB_RESULT) - 1) != 0 ||
        strcmp(path + sizeof(WEB_RESULT) - 1, name) != 0 || strlen(text) >= capacity)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool take_answer(void *arg, const char *path, const char *text)
{
    struct s3_credentials *found = arg;
    char expires[64];
    struct tm tm = { .tm_isdst = 0 };
    if (keep_text(path, "AccessKeyId", text, found->key_id, sizeof(found->key_id)) ||
        keep_text(path, "SecretAccessKey", text, found->secret, sizeof(found->secret)) ||
        keep_text(path, "SessionToken", text, found->token, sizeof(found->token)))
        return true;
    if (keep_text(path, "Expiration", text, expires, sizeof(expires)) &&
        strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm) != NULL)
        found->expires_ms = (int64_t)timegm(&tm) * 1000;
    return true;
}

/* The form that asks for a role's credentials. */
static enum status make_form(struct buf *out, struct reason *why)
{
    char file[LIMIT_PATH], role[LIMIT_PATH], session[LIMIT_NAME];
    auto_free char *token = NULL;
    auto_free char *encoded = malloc(3 * WEB_TOKEN_MAX + 1);
    char arn[3 * LIMIT_PATH], name[3 * LIMIT_NAME];
    size_t size = 0;
    if (encoded == NULL)
        return ST_NO_MEMORY;
    if (s3_setting("AWS_WEB_IDENTITY_TOKEN_FILE", file, sizeof(file)) != ST_OK ||
        io_read_file(io_system(), file, WEB_TOKEN_MAX, &token, &size) != ST_OK) {
        reason_set(why, "the file %s, which AWS_WEB_IDENTITY_TOKEN_FILE names, can't be read",
                   file);
        return ST_NOT_FOUND;
    }
    token[strcspn(token, "\r\n")] = '\0';
    if (s3_setting("AWS_ROLE_SESSION_NAME", session, sizeof(session)) != ST_OK)
        (void)snprintf(session, sizeof(session), "cairn");
    if (s3_setting("AWS_ROLE_ARN", role, sizeof(role)) != ST_OK ||
        !s3_url_encode(role, false, arn, sizeof(arn)) ||
        !s3_url_encode(session, false, name, sizeof(name)) ||
        !s3_url_encode(token, false, encoded, 3 * WEB_TOKEN_MAX + 1)) {
        reason_set(why, "AWS_WEB_IDENTITY_TOKEN_FILE is set: AWS_ROLE_ARN must name the role");
        return ST_NOT_FOUND;
    }
    return buf_printf(out,
                      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s"
                      "&RoleSessionName=%s&WebIdentityToken=%s",
                      arn, name, encoded);
}

/* STS of the region, or what AWS_ENDPOINT_URL_STS or AWS_ENDPOINT_URL names. */
static void sts_url(const char *region, char out[TEXT_MAX])
{
    char given[TEXT_MAX - 8];
    if (s3_setting("AWS_ENDPOINT_URL_STS", given, sizeof(given)) == ST_OK ||
        s3_setting("AWS_ENDPOINT_URL", given, sizeof(given)) == ST_OK) {
        (void)snprintf(out, TEXT_MAX, "%s/", given);
    } else {
        (void)snprintf(out, TEXT_MAX, "https://sts.%.100s.amazonaws.com%s/", region,
                       strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    }
}

static bool is_complete(const struct s3_credentials *found)
{
    return found->key_id[0] != '\0' && found->secret[0] != '\0' && found->token[0] != '\0' &&
           found->expires_ms != 0;
}

static enum status read_answer(const struct s3_http_answer *answer, struct s3_credentials *out,
                               struct reason *why)
{
    auto_free struct s3_credentials *found = calloc(1, sizeof(*found));
    if (found == NULL)
        return ST_NO_MEMORY;
    if (answer->curl != 0 || answer->status / 100 == 5) {
        reason_set(why, "STS, which gives a role's, doesn't answer: %s",
                   answer->curl != 0 ? answer->what : "HTTP 5xx");
        return ST_UNREACHABLE;
    }
    if (answer->status == 200 && answer->body.size > 0 &&
        s3_xml_walk(answer->body.data, answer->body.size, take_answer, found) == ST_OK &&
        is_complete(found)) {
        *out = *found;
        return ST_OK;
    }
    reason_set(why, "STS refuses the token in AWS_WEB_IDENTITY_TOKEN_FILE: HTTP %ld",
               answer->status);
    return ST_NOT_FOUND;
}

static enum status of_web_identity(struct s3_http *http, const char *region,
                                   struct s3_credentials *out, struct reason *why)
{
    char url[TEXT_MAX];
    auto_buf struct buf form;
    buf_init(&form, 4 * WEB_TOKEN_MAX);
    enum status st = make_form(&form, why);
    if (st != ST_OK)
        return st;
    sts_url(region, url);
    struct s3_http_request request = {
        .method = "POST",
        .url = url,
        .headers = { "Content-Type: application/x-www-form-urlencoded" },
        .body = form.data,
        .size = form.size,
    };
    struct s3_http_answer answer;
    st = s3_http_send(http, &request, &answer);
    if (st != ST_OK)
        return st;
    st = read_answer(&answer, out, why);
    s3_http_answer_release(&answer);
    return st;
}

enum status s3_role_fetch(struct s3_http *http, const char *region, struct s3_credentials *out,
                          struct reason *why)
{
    char value[TEXT_MAX];
    if (s3_setting("AWS_WEB_IDENTITY_TOKEN_FILE", value, sizeof(value)) != ST_NOT_FOUND)
        return of_web_identity(http, region, out, why);
    const bool container =
        s3_setting("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", value, sizeof(value)) == ST_OK ||
        s3_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI", value, sizeof(value)) == ST_OK;
    return container ? of_container(http, out) : of_instance(http, out);
}

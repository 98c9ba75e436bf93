/*
 * Address and credentials of an S3 store, found the way that Amazon's own tools find them.
 *
 * Order: environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
 * AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE), then the profile
 * AWS_PROFILE (or "default") in ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE,
 * AWS_CONFIG_FILE; there also `services`, whose section's endpoint of s3 comes before the
 * profile's). What neither gives comes from the machine's role: role.h.
 *
 * Secrets are in these structs and nowhere else; no text for people is made from them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

#define S3_KEY_ID_MAX 256
#define S3_SECRET_MAX 512
#define S3_TOKEN_MAX  8192 /* session tokens have no documented bound; 2 KiB is common */

struct s3_credentials {
    char key_id[S3_KEY_ID_MAX]; /* "": none */
    char secret[S3_SECRET_MAX];
    char token[S3_TOKEN_MAX]; /* "": not of a session */
    int64_t expires_ms;       /* wall time; 0: never */
};

struct s3_config {
    struct s3_credentials credentials;
    char region[64];
    char endpoint[256]; /* "https://host:port" without a path; "": Amazon's own */
    char ca_bundle[LIMIT_PATH];
    char profile[LIMIT_NAME];
};

/*
 * A variable without the blanks and line ends around it, which secrets get from files: ST_OK.
 * Errors: ST_NOT_FOUND, ST_TOO_LONG, ST_INVALID (a control character in its middle), ST_NO_MEMORY;
 *         out is "" then
 */
MUST_CHECK enum status s3_setting(const char *variable, char *out, size_t capacity);

/*
 * Reads environment and files. Credentials may stay empty: the machine's role is asked then.
 * Errors: ST_CONFIG  the reason says what to change
 */
MUST_CHECK enum status s3_config_load(struct s3_config *out, struct reason *reason);

/* Reads only the credentials again, of the same profile: the file may have been renewed
 * meanwhile. */
MUST_CHECK enum status s3_config_reload(const struct s3_config *config, struct s3_credentials *out);

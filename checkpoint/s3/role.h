/*
 * Credentials of a role. They come from STS for the token in AWS_WEB_IDENTITY_TOKEN_FILE (EKS: IAM
 * roles for service accounts), else from the container's endpoint (ECS, EKS pod identity), each
 * when its variables are set. Otherwise they come from the instance's metadata service (EC2,
 * IMDSv2), unless AWS_EC2_METADATA_DISABLED is true.
 */
#pragma once

#include "checkpoint/s3/config.h"
#include "checkpoint/s3/http.h"

/* ST_NOT_FOUND: nobody there gives any. ST_UNREACHABLE: STS didn't answer. why says what of, where
 * a token was meant to be used: no other role takes its place. */
MUST_CHECK enum status s3_role_fetch(struct s3_http *http, const char *region,
                                     struct s3_credentials *out, struct reason *why);

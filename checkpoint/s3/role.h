/*
 * Credentials of the machine's role: from the container's endpoint (ECS, EKS pod identity) when its
 * variables are set, else from the instance's metadata service (EC2, IMDSv2), unless
 * AWS_EC2_METADATA_DISABLED is true.
 */
#pragma once

#include "checkpoint/s3/config.h"
#include "checkpoint/s3/http.h"

/* ST_NOT_FOUND: nobody there gives any. */
MUST_CHECK enum status s3_role_fetch(struct s3_http *http, struct s3_credentials *out);

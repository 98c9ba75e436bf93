/*
 * Answers that no S3 store gave: a TLS port that is asked in plain, a proxy, a redirect, a page of
 * something else. What they say of credentials, buckets and objects is about other things.
 */
#pragma once

#include "checkpoint/s3/http.h"
#include "checkpoint/s3/xml.h"

#define S3_STRANGER_TEXT 256

/*
 * Whether that is so, as far as it can be seen: a store has headers of its own (x-amz-...), errors
 * as XML, and an ETag of what it has. What may pass (5xx, 408, 429) is nobody's. error: of its body
 */
bool s3_is_stranger(const char *method, const struct s3_http_answer *answer,
                    const struct s3_error *error);
/* Describes the answer: ": 'Please log in'", with the address that it leads to. */
void s3_stranger_say(const struct s3_http_answer *answer, char out[S3_STRANGER_TEXT]);
/* Returns advice to the user: "; ...". */
const char *s3_stranger_hint(const char *endpoint, const struct s3_http_answer *answer);

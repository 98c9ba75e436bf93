/*
 * The address of a webhook. All after its host is a secret to whoever has none other: it is never
 * shown.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "common/status.h"

#define WEBHOOK_URL   2048 /* bytes, with the NUL */
#define WEBHOOK_SHOWN 320  /* a scheme, a host, a port */

/*
 * Whether url is one that can be sent to: http or https, a host, no line ends. shown: it for
 * people, as "https://hooks.slack.com/…". Errors: ST_INVALID; ST_NO_MEMORY
 */
MUST_CHECK enum status webhook_url_check(const char *url, char shown[WEBHOOK_SHOWN]);

/* Whether messages to url go unencrypted, and beyond this machine. */
bool webhook_url_is_clear(const char *url);

/* Whether text, which comes from elsewhere, has a part of url in it that is not to be shown. */
bool webhook_url_leaks(const char *url, const char *text);

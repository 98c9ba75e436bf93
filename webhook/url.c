/* Addresses: whether one can be sent to, and what of it may be shown. */
#include "webhook/url.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PART_MIN 6 /* a shorter part of a path is a word that anything may say */

static char *part_of(CURLU *url, CURLUPart part)
{
    char *text = NULL;
    return curl_url_get(url, part, &text, 0) == CURLUE_OK ? text : NULL;
}

static bool show(CURLU *url, char shown[WEBHOOK_SHOWN])
{
    char *scheme = part_of(url, CURLUPART_SCHEME);
    char *host = part_of(url, CURLUPART_HOST);
    char *port = part_of(url, CURLUPART_PORT);
    bool ok = scheme != NULL && host != NULL && host[0] != '\0' &&
              (strcmp(scheme, "https") == 0 || strcmp(scheme, "http") == 0);
    if (ok) {
        int size = snprintf(shown, WEBHOOK_SHOWN, "%s://%s%s%s/…", scheme, host,
                            port != NULL ? ":" : "", port != NULL ? port : "");
        ok = size > 0 && size < WEBHOOK_SHOWN;
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    return ok;
}

enum status webhook_url_check(const char *url, char shown[WEBHOOK_SHOWN])
{
    shown[0] = '\0';
    for (const char *c = url; *c != '\0'; c++) {
        if ((unsigned char)*c <= 0x20 || *c == 0x7F)
            return ST_INVALID;
    }
    if (strlen(url) >= WEBHOOK_URL)
        return ST_INVALID;
    CURLU *parsed = curl_url();
    if (parsed == NULL)
        return ST_NO_MEMORY;
    bool ok = curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK && show(parsed, shown);
    curl_url_cleanup(parsed);
    if (!ok)
        shown[0] = '\0';
    return ok ? ST_OK : ST_INVALID;
}

bool webhook_url_is_clear(const char *url)
{
    CURLU *parsed = curl_url();
    if (parsed == NULL || curl_url_set(parsed, CURLUPART_URL, url, 0) != CURLUE_OK) {
        curl_url_cleanup(parsed);
        return false;
    }
    char *scheme = part_of(parsed, CURLUPART_SCHEME), *host = part_of(parsed, CURLUPART_HOST);
    struct in_addr four;
    bool here =
        host != NULL && (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
                         (inet_pton(AF_INET, host, &four) == 1 && ntohl(four.s_addr) >> 24 == 127));
    bool clear = scheme != NULL && strcmp(scheme, "http") == 0 && !here;
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(parsed);
    return clear;
}

bool webhook_url_leaks(const char *url, const char *text)
{
    const char *rest = strstr(url, "://");
    rest = rest == NULL ? url : rest + 3;
    const char *at = strchr(rest, '@');
    const char *path = strpbrk(rest, "/?#");
    char part[WEBHOOK_URL];
    if (at != NULL && (path == NULL || at < path)) { /* a name and a password before the host */
        (void)snprintf(part, sizeof(part), "%.*s", (int)(at - rest), rest);
        if (strstr(text, part) != NULL)
            return true;
    }
    while (path != NULL && path[0] != '\0') {
        size_t size = strcspn(path + 1, "/?&=#");
        (void)snprintf(part, sizeof(part), "%.*s", (int)size, path + 1);
        if (size >= PART_MIN && strstr(text, part) != NULL)
            return true;
        path += 1 + size;
    }
    return false;
}

#include "checkpoint/s3/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "s3://"

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("-._~", c) != NULL;
}

bool s3_place_parse(const char *path, struct s3_place *out)
{
    size_t scheme = strlen(SCHEME);
    if (strncmp(path, SCHEME, scheme) != 0)
        return false;
    const char *bucket = path + scheme;
    size_t size = strcspn(bucket, "/");
    if (size < 3 || size >= sizeof(out->bucket))
        return false;
    for (size_t i = 0; i < size; i++) {
        bool lower =
            (bucket[i] >= 'a' && bucket[i] <= 'z') || (bucket[i] >= '0' && bucket[i] <= '9');
        if (!lower && (i == 0 || strchr("-._", bucket[i]) == NULL))
            return false;
    }
    const char *key = bucket + size;
    while (*key == '/')
        key++;
    size_t length = strlen(key);
    while (length > 0 && key[length - 1] == '/')
        length--;
    if (length >= sizeof(out->key))
        return false;
    memcpy(out->bucket, bucket, size);
    out->bucket[size] = '\0';
    memcpy(out->key, key, length);
    out->key[length] = '\0';
    return true;
}

bool s3_url_encode(const char *text, bool slashes, char *out, size_t capacity)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t at = 0;
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = is_plain(*text) || (slashes && c == '/');
        if (at + (plain ? 1 : 3) >= capacity)
            return false;
        if (plain) {
            out[at++] = *text;
        } else {
            out[at++] = '%';
            out[at++] = digits[c >> 4];
            out[at++] = digits[c & 15];
        }
    }
    if (at >= capacity)
        return false;
    out[at] = '\0';
    return true;
}

void s3_url_decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        char hex[3] = { 0 }, *end = hex;
        if (from[0] == '%' && from[1] != '\0' && from[2] != '\0') {
            memcpy(hex, from + 1, 2);
            unsigned long value = strtoul(hex, &end, 16);
            if (end == hex + 2 && value != 0) {
                *to++ = (char)value;
                from += 2;
                continue;
            }
        }
        *to++ = (char)(*from == '+' ? ' ' : *from);
    }
    *to = '\0';
}

bool s3_url_make(const char *endpoint, const char *region, const char *bucket, const char *key,
                 const char *query, char out[S3_URL_MAX])
{
    char base[512], path[3 * S3_KEY_MAX];
    const char *china = strncmp(region, "cn-", 3) == 0 ? ".cn" : "";
    int size = 0;
    if (endpoint[0] != '\0') {
        size = snprintf(base, sizeof(base), "%s/%s", endpoint, bucket);
    } else if (strchr(bucket, '.') != NULL) {
        size =
            snprintf(base, sizeof(base), "https://s3.%s.amazonaws.com%s/%s", region, china, bucket);
    } else {
        size =
            snprintf(base, sizeof(base), "https://%s.s3.%s.amazonaws.com%s", bucket, region, china);
    }
    if (size < 0 || (size_t)size >= sizeof(base) || !s3_url_encode(key, true, path, sizeof(path)))
        return false;
    size = snprintf(out, S3_URL_MAX, "%s/%s%s%s", base, path, query == NULL ? "" : "?",
                    query == NULL ? "" : query);
    return size >= 0 && size < S3_URL_MAX;
}

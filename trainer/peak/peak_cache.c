#include "trainer/peak/peak_cache.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/cleanup.h"

#define HEAD      "cairn peak 1\n"
#define HASH_TEXT 33 /* with its NUL */
#define BYTES_MAX (PEAK_KEY_BYTES + 128)

static enum status name_of(const struct peak_place *place, char out[LIMIT_PATH])
{
    char text[HASH_TEXT];
    const struct ckpt_hash hash = ckpt_hash_of(place->key, strlen(place->key));
    ckpt_hash_text(&hash, text);
    const int size = snprintf(out, LIMIT_PATH, "%s/%.2s.peak", place->folder, text);
    return size < 0 || size >= LIMIT_PATH ? ST_FULL : ST_OK;
}

/* Prints the head of the file, up to the peak, and returns its size. */
static size_t head_of(const struct peak_place *place, char out[BYTES_MAX])
{
    return (size_t)snprintf(out, BYTES_MAX, HEAD "%s\n", place->key);
}

static bool is_key(const char *key)
{
    return key[0] != '\0' && strlen(key) < PEAK_KEY_BYTES && strchr(key, '\n') == NULL;
}

/* text: with a NUL behind it */
static enum status read_peak(const struct peak_place *place, const char *text, size_t size,
                             double *out)
{
    char head[BYTES_MAX], hash_text[HASH_TEXT];
    const size_t head_size = head_of(place, head);
    if (strlen(text) != size || size < strlen(HEAD) || strncmp(text, HEAD, strlen(HEAD)) != 0)
        return ST_CORRUPT;
    if (size < head_size || memcmp(text, head, head_size) != 0)
        return ST_NOT_FOUND; /* of another key */
    const char *line_end = strchr(text + head_size, '\n');
    if (line_end == NULL)
        return ST_CORRUPT;
    const size_t before = (size_t)(line_end + 1 - text);
    const struct ckpt_hash hash = ckpt_hash_of(text, before);
    ckpt_hash_text(&hash, hash_text);
    if (strncmp(line_end + 1, hash_text, HASH_TEXT - 1) != 0 ||
        strcmp(line_end + HASH_TEXT, "\n") != 0)
        return ST_CORRUPT;
    char *end = NULL;
    errno = 0;
    const double flops = strtod(text + head_size, &end);
    if (errno != 0 || end != line_end || !isfinite(flops) || flops <= 0)
        return ST_CORRUPT;
    *out = flops;
    return ST_OK;
}

enum status peak_find(const struct peak_place *place, double *out_flops)
{
    char name[LIMIT_PATH];
    auto_free char *text = NULL;
    size_t size = 0;
    if (place->folder == NULL || !is_key(place->key))
        return ST_NOT_FOUND;
    enum status st = name_of(place, name);
    if (st == ST_OK)
        st = io_read_file(place->io, name, BYTES_MAX, &text, &size);
    return st == ST_OK ? read_peak(place, text, size, out_flops) : st;
}

enum status peak_keep(const struct peak_place *place, double flops)
{
    char name[LIMIT_PATH], text[BYTES_MAX], hash_text[HASH_TEXT];
    if (!is_key(place->key) || !isfinite(flops) || flops <= 0)
        return ST_INVALID;
    if (place->folder == NULL)
        return ST_OK;
    size_t size = head_of(place, text);
    size += (size_t)snprintf(text + size, sizeof(text) - size, "%.17g\n", flops);
    const struct ckpt_hash hash = ckpt_hash_of(text, size);
    ckpt_hash_text(&hash, hash_text);
    size += (size_t)snprintf(text + size, sizeof(text) - size, "%s\n", hash_text);
    enum status st = name_of(place, name);
    if (st == ST_OK)
        st = io_mkdir_all(place->io, place->folder);
    return st == ST_OK ? io_replace(place->io, name, text, size) : st;
}

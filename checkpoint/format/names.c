#include "checkpoint/format/names.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

bool ckpt_name_is_good(const char *name)
{
    size_t size = strnlen(name, LIMIT_NAME);
    if (size == 0 || size == LIMIT_NAME || name[0] == '.')
        return false;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c >= 0x80 || (isalnum(c) == 0 && c != '-' && c != '_' && c != '.'))
            return false;
    }
    return true;
}

void ckpt_shard_name(uint32_t rank, uint32_t size, char out[64])
{
    (void)snprintf(out, 64, "shard-%05" PRIu32 "-of-%05" PRIu32 ".cairn", rank, size);
}

static bool is_shard(const char *name)
{
    static const char head[] = "shard-", middle[] = "-of-";
    char made[64], *end;
    if (strncmp(name, head, sizeof(head) - 1) != 0)
        return false;
    const unsigned long rank = strtoul(name + sizeof(head) - 1, &end, 10);
    if (strncmp(end, middle, sizeof(middle) - 1) != 0)
        return false;
    const unsigned long size = strtoul(end + sizeof(middle) - 1, &end, 10);
    ckpt_shard_name((uint32_t)rank, (uint32_t)size, made);
    return strcmp(made, name) == 0;
}

bool ckpt_file_is_ours(const char *name)
{
    uint64_t generation = 0;
    if (strcmp(name, CKPT_MANIFEST) == 0 || ckpt_temporary_parse(name, &generation))
        return true;
    return is_shard(name);
}

enum status ckpt_path(const char *dir, const char *name, char out[LIMIT_PATH])
{
    int size = snprintf(out, LIMIT_PATH, "%s/%s", dir, name);
    return size < 0 || size >= LIMIT_PATH ? ST_TOO_LONG : ST_OK;
}

/* Length without trailing slashes. */
static size_t trimmed(const char *dir)
{
    size_t size = strlen(dir);
    while (size > 1 && dir[size - 1] == '/')
        size--;
    return size;
}

enum status ckpt_dirname(const char *dir, char out[LIMIT_PATH])
{
    size_t size = trimmed(dir);
    while (size > 0 && dir[size - 1] != '/')
        size--;
    const char *from = size == 0 ? "." : dir;
    while (size > 1 && dir[size - 1] == '/')
        size--;
    if (size == 0)
        size = 1;
    if (size >= LIMIT_PATH)
        return ST_TOO_LONG;
    memcpy(out, from, size);
    out[size] = '\0';
    return ST_OK;
}

enum status ckpt_basename(const char *dir, char out[LIMIT_PATH])
{
    size_t end = trimmed(dir), start = end;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    if (end - start >= LIMIT_PATH)
        return ST_TOO_LONG;
    memcpy(out, dir + start, end - start);
    out[end - start] = '\0';
    return ST_OK;
}

/* A decimal number of 1..18 digits; *at is behind it then. */
static bool take_number(const char **at, uint64_t *out)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 18)
        return false;
    *out = strtoull(*at, NULL, 10);
    *at += digits;
    return true;
}

bool ckpt_file_is_held(const char *name)
{
    return strncmp(name, ".nfs", 4) == 0;
}

void ckpt_call_name(uint32_t generation, const char *nonce, char out[IO_CALL])
{
    (void)snprintf(out, IO_CALL, "g%" PRIu32 ".%.*s", generation, CKPT_CALL_DIGITS, nonce);
}

/* ".CALL.tmp" or ".tmp". */
static bool take_temporary(const char **at, uint64_t *generation)
{
    if (strncmp(*at, ".g", 2) == 0) {
        *at += 2;
        if (!take_number(at, generation) || **at != '.' ||
            strspn(*at + 1, "0123456789abcdef") != CKPT_CALL_DIGITS)
            return false;
        *at += 1 + CKPT_CALL_DIGITS;
    }
    if (strncmp(*at, ".tmp", 4) != 0)
        return false;
    *at += 4;
    return true;
}

/* ".probe-PID" and ".probe-PID.tmp", of versions before there were calls. */
static bool is_old_probe(const char *name)
{
    const size_t size = strlen(CKPT_PROBE "-");
    if (strncmp(name, CKPT_PROBE "-", size) != 0)
        return false;
    size_t digits = strspn(name + size, "0123456789");
    const char *end = name + size + digits;
    return digits > 0 && (*end == '\0' || strcmp(end, ".tmp") == 0);
}

bool ckpt_temporary_parse(const char *name, uint64_t *generation)
{
    static const char *const bases[] = { CKPT_MANIFEST, CKPT_MARK_NAME, CKPT_PROBE };
    *generation = 0;
    for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
        size_t size = strlen(bases[i]);
        const char *at = name + size;
        if (strncmp(name, bases[i], size) != 0 || !take_temporary(&at, generation))
            continue;
        if (*at == '\0')
            return true;
        /* The probe is itself published. */
        return strcmp(bases[i], CKPT_PROBE) == 0 && take_temporary(&at, generation) && *at == '\0';
    }
    return is_old_probe(name);
}

bool ckpt_used_generation_parse(const char *name, uint64_t *generation)
{
    const char *at = name + strlen(CKPT_USED);
    return strncmp(name, CKPT_USED, strlen(CKPT_USED)) == 0 && *at != '0' &&
           take_number(&at, generation) && *at == '\0';
}

/* ".t" and a number without leading zeros, if that comes next; false: it is malformed. */
static bool take_try(const char **at, uint32_t *out)
{
    uint64_t try_number = 0;
    if (strncmp(*at, ".t", 2) != 0)
        return true;
    *at += 2;
    if (**at == '0' || !take_number(at, &try_number) || try_number > UINT32_MAX)
        return false;
    *out = (uint32_t)try_number;
    return true;
}

bool ckpt_folder_parse(const char *name, struct ckpt_folder_name *out)
{
    struct ckpt_folder_name found = { .quarantined = false };
    size_t bad = strlen(CKPT_QUARANTINE);
    if (strncmp(name, CKPT_QUARANTINE, bad) == 0) {
        found.quarantined = true;
        name += bad;
    }
    if (strncmp(name, "step-", 5) != 0)
        return false;
    const char *at = name + 5;
    if (strspn(at, "0123456789") < 12 || !take_number(&at, &found.step) ||
        strncmp(at, ".g", 2) != 0)
        return false;
    at += 2;
    if (!take_number(&at, &found.generation) || !take_try(&at, &found.try_number))
        return false;
    found.plain_size = (uint32_t)(at - name);
    uint64_t copy = 0;
    if (found.quarantined && *at == '.') {
        at++;
        if (!take_number(&at, &copy))
            return false;
    }
    if (*at != '\0')
        return false;
    *out = found;
    return true;
}

enum status ckpt_folder_name(uint64_t step, uint64_t generation, uint32_t try_number,
                             char out[LIMIT_NAME])
{
    char further[16] = "";
    if (step > (uint64_t)INT64_MAX / 10 || generation > (uint64_t)INT64_MAX / 10)
        return ST_INVALID;
    if (try_number > 0)
        (void)snprintf(further, sizeof(further), ".t%" PRIu32, try_number);
    (void)snprintf(out, LIMIT_NAME, "step-%012" PRIu64 ".g%" PRIu64 "%s", step, generation,
                   further);
    return ST_OK;
}

enum status ckpt_folder_path(const char *store, const char *job, uint64_t step, uint64_t generation,
                             uint32_t try_number, char *out, size_t capacity)
{
    char name[LIMIT_NAME];
    if (!ckpt_name_is_good(job) || ckpt_folder_name(step, generation, try_number, name) != ST_OK)
        return ST_INVALID;
    int size = snprintf(out, capacity, "%s/%s/%s", store, job, name);
    return size < 0 || (size_t)size >= capacity ? ST_TOO_LONG : ST_OK;
}

#include "client/bundle/redact.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/base/texts.h"
#include "common/cleanup.h"

#define TEXT_MAX      ((size_t)64 << 20) /* of one text when it is done */
#define NAME_BYTES    96                 /* a longer word is no name */
#define DEPTH_MAX     64                 /* of JSON values in each other */
#define SCHEME_MAX    12
#define SEALED_DIGITS 64 /* of Cairn's own tokens (identity/seal.h); its digests have 32 */

struct known {
    char *value;
    size_t size;
};

struct redact {
    struct known known[REDACT_KNOWN_MAX];
    size_t count;
    bool first[256]; /* the first bytes of known values */
};

/* Where a text is read; what comes out of it. */
struct scan {
    const struct redact *redact;
    const char *start, *at, *end;
    struct buf *out;
};

enum status redact_new(struct redact **out)
{
    *out = calloc(1, sizeof(**out));
    return *out == NULL ? ST_NO_MEMORY : ST_OK;
}

void redact_free(struct redact *redact)
{
    for (size_t i = 0; redact != NULL && i < redact->count; i++) {
        explicit_bzero(redact->known[i].value, redact->known[i].size);
        free(redact->known[i].value);
    }
    free(redact);
}

enum status redact_know(struct redact *redact, const char *value, size_t size)
{
    if (size < REDACT_KNOWN_MIN)
        return ST_OK;
    if (redact->count == REDACT_KNOWN_MAX)
        return ST_FULL;
    char *copy = malloc(size);
    if (copy == NULL)
        return ST_NO_MEMORY;
    memcpy(copy, value, size);
    redact->known[redact->count++] = (struct known){ copy, size };
    redact->first[(unsigned char)value[0]] = true;
    return ST_OK;
}

bool redact_leaks(const struct redact *redact, const void *data, size_t size)
{
    for (size_t i = 0; i < redact->count; i++) {
        if (memmem(data, size, redact->known[i].value, redact->known[i].size) != NULL)
            return true;
    }
    return false;
}

/* ---- names ---- */

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) != 0 || c == '_' || c == '-' || c == '.';
}

bool redact_is_secret_name(const char *name, size_t size)
{
    /* Endings, without what stands between words: "API-Key" is apikey. */
    static const char *const endings[] = {
        "secret",     "token",         "password",    "passwd",        "passphrase",
        "apikey",     "accesskey",     "secretkey",   "accesskeyid",   "privatekey",
        "sessionkey", "credential",    "credentials", "authorization", "cookie",
        "signature",  "securitytoken", "webhookurl",  "authkey",       "licensekey",
    };
    char word[NAME_BYTES];
    size_t length = 0;
    if (size >= sizeof(word))
        return false;
    for (size_t i = 0; i < size; i++) {
        if (isalnum((unsigned char)name[i]) != 0)
            word[length++] = name[i];
    }
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t end = strlen(endings[i]);
        if (length >= end && strncasecmp(word + length - end, endings[i], end) == 0)
            return true;
    }
    return false;
}

/* ---- one thing each ---- */

/* Each of these looks at scan->at. *taken becomes the number of bytes that it took, having written
 * something in their place; else it stays 0. */

static enum status put_redacted(struct scan *scan, size_t *taken, size_t size)
{
    *taken = size;
    return buf_append_text(scan->out, REDACTED);
}

static enum status take_known(struct scan *scan, size_t *taken)
{
    const struct redact *redact = scan->redact;
    const size_t left = (size_t)(scan->end - scan->at);
    size_t longest = 0;
    if (!redact->first[(unsigned char)*scan->at])
        return ST_OK;
    for (size_t i = 0; i < redact->count; i++) {
        const struct known *known = &redact->known[i];
        if (known->size > longest && known->size <= left &&
            memcmp(scan->at, known->value, known->size) == 0)
            longest = known->size;
    }
    return longest == 0 ? ST_OK : put_redacted(scan, taken, longest);
}

/* "-----BEGIN RSA PRIVATE KEY-----", lines, "-----END RSA PRIVATE KEY-----" */
static enum status take_private_key(struct scan *scan, size_t *taken)
{
    static const char begin[] = "-----BEGIN ", key[] = "PRIVATE KEY-----", end[] = "-----END ";
    const size_t left = (size_t)(scan->end - scan->at);
    if (left < sizeof(begin) || memcmp(scan->at, begin, sizeof(begin) - 1) != 0)
        return ST_OK;
    const size_t head = left < 80 ? left : 80;
    if (memmem(scan->at, head, key, sizeof(key) - 1) == NULL)
        return ST_OK;
    const char *stop = memmem(scan->at, left, end, sizeof(end) - 1);
    const char *last = stop == NULL
                           ? NULL
                           : memmem(stop + sizeof(end) - 1,
                                    (size_t)(scan->end - stop) - sizeof(end) + 1, "-----", 5);
    return put_redacted(scan, taken, last == NULL ? left : (size_t)(last + 5 - scan->at));
}

static bool ends_address(char c)
{
    return isspace((unsigned char)c) != 0 || strchr("\"'\\<>`{}|,;)]", c) != NULL || c == '\0';
}

/* At the "://" of an address. */
static enum status take_address(struct scan *scan, size_t *taken)
{
    const char *at = scan->at, *scheme = at, *host, *stop, *end;
    if (scan->end - at < 4 || memcmp(at, "://", 3) != 0)
        return ST_OK;
    while (scheme > scan->start && at - scheme < SCHEME_MAX && isalnum((unsigned char)scheme[-1]))
        scheme--;
    const size_t length = (size_t)(at - scheme);
    const bool web = (length == 4 && strncasecmp(scheme, "http", 4) == 0) ||
                     (length == 5 && strncasecmp(scheme, "https", 5) == 0);
    for (end = at + 3; end < scan->end && !ends_address(*end); end++) {
    }
    for (stop = at + 3; stop < end && *stop != '/' && *stop != '?' && *stop != '#'; stop++) {
    }
    host = memrchr(at + 3, '@', (size_t)(stop - at) - 3);
    if (!web && host == NULL)
        return ST_OK;
    enum status st = buf_append_text(scan->out, "://");
    if (st == ST_OK && host != NULL)
        st = buf_append_text(scan->out, REDACTED "@");
    host = host == NULL ? at + 3 : host + 1;
    if (st == ST_OK)
        st = buf_append(scan->out, host, (size_t)(stop - host));
    *taken = (size_t)(stop - at);
    if (st == ST_OK && web && end - stop > 1) {
        *taken = (size_t)(end - at);
        st = buf_append_text(scan->out, "/" REDACTED);
    }
    return st;
}

/* Letters of tokens, as base64 and its like. */
static bool is_token_byte(char c)
{
    return isalnum((unsigned char)c) != 0 || strchr("_-.+/=~", c) != NULL;
}

/* At the beginning of a word: tokens that show by themselves what they are. */
static enum status take_shape(struct scan *scan, size_t *taken)
{
    static const struct {
        const char *head;
        size_t least; /* bytes of the whole */
    } shapes[] = {
        { "AKIA", 20 }, { "ASIA", 20 },   { "ghp_", 20 },  { "gho_", 20 },        { "ghs_", 20 },
        { "ghu_", 20 }, { "ghr_", 20 },   { "hf_", 20 },   { "github_pat_", 30 }, { "glpat-", 20 },
        { "sk-", 24 },  { "xoxb-", 20 },  { "xoxp-", 20 }, { "xoxa-", 20 },       { "xoxs-", 20 },
        { "eyJ", 40 },  { "whsec_", 20 },
    };
    size_t size = 0;
    while (scan->at + size < scan->end && scan->at[size] != '\0' && is_token_byte(scan->at[size]))
        size++;
    size_t digits = 0;
    while (digits < size && isxdigit((unsigned char)scan->at[digits]) != 0)
        digits++;
    if (digits == SEALED_DIGITS && (digits == size || !is_name_byte(scan->at[digits])))
        return put_redacted(scan, taken, digits);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const size_t head = strlen(shapes[i].head);
        if (size >= shapes[i].least && memcmp(scan->at, shapes[i].head, head) == 0)
            return put_redacted(scan, taken, size);
    }
    return ST_OK;
}

/* The end of a value that begins at `at`, behind its quotes if it has some. quote: '\0': none. */
static const char *end_of_value(const char *at, const char *end, char quote, bool escaped,
                                bool line)
{
    while (at < end && *at != '\n' && *at != '\0') {
        if (quote != '\0' && *at == quote)
            break;
        if (quote != '\0' && *at == '\\') {
            if (escaped && at + 1 < end && at[1] == quote)
                break;
            at += at + 1 < end && !escaped ? 2 : 1;
            continue;
        }
        if (quote == '\0' && !line &&
            (isspace((unsigned char)*at) != 0 || strchr(",;&\"'\\)}]", *at) != NULL))
            break;
        if (quote == '\0' && line && strchr("\"'\\", *at) != NULL)
            break;
        at++;
    }
    return at < end ? at : end;
}

/* Lines that stand deeper than the line of `from`; returns where they end. */
static const char *end_of_block(const struct scan *scan, const char *from, size_t *out_indent)
{
    const char *line = from;
    while (line > scan->start && line[-1] != '\n')
        line--;
    size_t indent = 0;
    while (line + indent < scan->end && (line[indent] == ' ' || line[indent] == '-'))
        indent++;
    const char *at = memchr(from, '\n', (size_t)(scan->end - from));
    *out_indent = indent;
    while (at != NULL && at + 1 < scan->end) {
        const char *next = at + 1;
        size_t depth = 0;
        while (next + depth < scan->end && next[depth] == ' ')
            depth++;
        const bool empty = next + depth == scan->end || next[depth] == '\n';
        if (!empty && depth <= indent)
            return next;
        at = memchr(next, '\n', (size_t)(scan->end - next));
    }
    return scan->end;
}

/* What stands behind a name and its separator: the value, of which nothing stays. */
static enum status take_value(struct scan *scan, const char *value, bool header, size_t *taken)
{
    const char *at = value;
    bool escaped = false;
    char quote = '\0';
    size_t indent = 0;
    while (at < scan->end && *at == '\\') {
        escaped = true;
        at++;
    }
    if (at < scan->end && (*at == '"' || *at == '\''))
        quote = *at++;
    if (quote == '\0')
        at = value;
    const char *end = end_of_value(at, scan->end, quote, escaped && quote != '\0', header);
    if (quote == '\0' && end > at && (*at == '|' || *at == '>'))
        end = end_of_block(scan, at, &indent);
    if (end == at)
        return ST_OK; /* none */
    enum status st = buf_append(scan->out, scan->at, (size_t)(at - scan->at));
    if (st == ST_OK)
        st = buf_append_text(scan->out, REDACTED);
    if (st == ST_OK && end < scan->end && end[-1] == '\n')
        st = buf_append_text(scan->out, "\n");
    *taken = (size_t)(end - scan->at);
    return st;
}

/* Values of "env:", in a block below it or in braces behind it. */
static enum status take_environment(struct scan *scan, const char *behind, size_t *taken)
{
    const char *at = behind;
    size_t indent = 0;
    while (at < scan->end && (*at == ' ' || *at == '\t'))
        at++;
    if (at == scan->end || (*at != '\n' && *at != '{' && *at != '#'))
        return ST_OK;
    const char *end = end_of_block(scan, at, &indent);
    if (*at == '{') { /* to the brace that closes it; where none does, all that is deeper */
        int open = 0;
        for (const char *c = at; c < scan->end; c++) {
            open += *c == '{' ? 1 : *c == '}' ? -1 : 0;
            if (open == 0) {
                end = c + 1;
                break;
            }
        }
    }
    if (end == scan->end && *at != '{' && at + 1 >= scan->end)
        return ST_OK;
    enum status st = buf_append(scan->out, scan->at, (size_t)(behind - scan->at));
    if (st == ST_OK)
        st = buf_append_text(scan->out, " " REDACTED);
    if (st == ST_OK && end > at && end[-1] == '\n')
        st = buf_append_text(scan->out, "\n");
    *taken = (size_t)(end - scan->at);
    return st;
}

/* "env", "environment": a key of a YAML text that begins a line, or stands in braces. */
static bool is_environment(const struct scan *scan, size_t size)
{
    static const char *const names[] = { "env", "environment", "secrets" };
    const char *before = scan->at;
    while (before > scan->start && (before[-1] == ' ' || before[-1] == '-'))
        before--;
    if (before > scan->start && strchr("\n{,", before[-1]) == NULL)
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i]) == size && strncasecmp(scan->at, names[i], size) == 0)
            return true;
    }
    return false;
}

/* At the beginning of a word: NAME: value, "NAME": "value", NAME=value, --NAME value. */
static enum status take_named(struct scan *scan, size_t *taken)
{
    const char *at = scan->at, *end = scan->end;
    while (at < end && at - scan->at < NAME_BYTES && is_name_byte(*at))
        at++;
    const size_t size = (size_t)(at - scan->at);
    if (at < end && *at == ':' && is_environment(scan, size))
        return take_environment(scan, at + 1, taken);
    if (!redact_is_secret_name(scan->at, size))
        return ST_OK;
    const bool option = size > 2 && memcmp(scan->at, "--", 2) == 0;
    while (at < end && (*at == '\\' || *at == '"' || *at == '\''))
        at++;
    const char *separator = at;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    if (at < end && (*at == ':' || *at == '=')) {
        const bool header = *at++ == ':';
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
        return take_value(scan, at, header, taken);
    }
    return option && at > separator ? take_value(scan, at, false, taken) : ST_OK;
}

/* "Bearer x", "Basic x" wherever they stand. */
static enum status take_scheme(struct scan *scan, size_t *taken)
{
    static const char *const schemes[] = { "bearer ", "basic " };
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        const size_t head = strlen(schemes[i]);
        size_t size = 0;
        if ((size_t)(scan->end - scan->at) <= head || strncasecmp(scan->at, schemes[i], head) != 0)
            continue;
        while (scan->at + head + size < scan->end && scan->at[head + size] != '\0' &&
               is_token_byte(scan->at[head + size]))
            size++;
        if (size < REDACT_KNOWN_MIN)
            continue;
        const enum status st = buf_append(scan->out, scan->at, head);
        return st == ST_OK ? put_redacted(scan, taken, head + size) : st;
    }
    return ST_OK;
}

enum status redact_text(const struct redact *redact, const char *text, size_t size, struct buf *out)
{
    static enum status (*const anywhere[])(
        struct scan *, size_t *) = { take_known, take_private_key, take_address };
    static enum status (*const of_words[])(struct scan *, size_t *) = { take_shape, take_scheme,
                                                                        take_named };
    struct scan scan = { redact, text, text, text + size, out };
    const char *kept = text; /* not written yet */
    enum status st = buf_append_text(out, "");
    while (st == ST_OK && scan.at < scan.end) {
        const bool begins =
            is_name_byte(*scan.at) && (scan.at == text || !is_name_byte(scan.at[-1]));
        size_t taken = 0;
        const char *at = scan.at;
        /* What is kept has to stand before what takes a place. */
        if (begins || redact->first[(unsigned char)*at] || *at == '-' || *at == ':') {
            st = buf_append(out, kept, (size_t)(at - kept));
            kept = at;
        }
        for (size_t i = 0; st == ST_OK && taken == 0 && i < 3; i++)
            st = anywhere[i](&scan, &taken);
        for (size_t i = 0; st == ST_OK && taken == 0 && begins && i < 3; i++)
            st = of_words[i](&scan, &taken);
        scan.at += taken > 0 ? taken : 1;
        kept = taken > 0 ? scan.at : kept;
    }
    return st == ST_OK ? buf_append(out, kept, (size_t)(scan.end - kept)) : st;
}

/* ---- messages and JSON ---- */

/* True if no value below such a key may stay. */
static bool hides(const char *key)
{
    return redact_is_secret_name(key, strlen(key)) || strcmp(key, "env") == 0 ||
           strcmp(key, "environment") == 0;
}

/* *out: the text without secrets, for free(); NULL: it has none. */
static enum status mend(const struct redact *redact, const char *name, const char *text, char **out)
{
    auto_buf struct buf made;
    *out = NULL;
    buf_init(&made, TEXT_MAX);
    const bool whole = name != NULL && text[0] != '\0' && hides(name);
    const enum status st =
        whole ? buf_append_text(&made, REDACTED) : redact_text(redact, text, strlen(text), &made);
    if (st == ST_OK && strcmp(made.data, text) != 0)
        *out = buf_take(&made, NULL);
    return st;
}

struct mending {
    const struct redact *redact;
    enum status st;
};

static void mend_field(void *arg, const char *field, char **text)
{
    struct mending *mending = arg;
    char *made = NULL;
    if (mending->st != ST_OK || (*text)[0] == '\0')
        return;
    mending->st = mend(mending->redact, field, *text, &made);
    if (made != NULL) {
        free(*text);
        *text = made;
    }
}

enum status redact_message(const struct redact *redact, ProtobufCMessage *message)
{
    struct mending mending = { redact, ST_OK };
    texts_each(message, mend_field, &mending);
    return mending.st;
}

/* name: the key that hides the value; NULL: none does. */
static enum status mend_json(const struct redact *redact, const char *name, json_t *value,
                             int depth)
{
    enum status st = ST_OK;
    const char *key;
    json_t *member;
    size_t i;
    if (depth > DEPTH_MAX)
        return ST_FULL;
    if (json_is_string(value)) {
        char *made = NULL;
        st = mend(redact, name, json_string_value(value), &made);
        if (made != NULL && json_string_set(value, made) != 0)
            st = ST_NO_MEMORY;
        free(made);
    }
    json_object_foreach(value, key, member)
    {
        if (st == ST_OK)
            st = mend_json(redact, name != NULL || !hides(key) ? name : key, member, depth + 1);
    }
    json_array_foreach(value, i, member)
    {
        if (st == ST_OK)
            st = mend_json(redact, name, member, depth + 1);
    }
    return st;
}

enum status redact_json(const struct redact *redact, json_t *value)
{
    return mend_json(redact, NULL, value, 0);
}

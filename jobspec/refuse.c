#include "jobspec/refuse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "jobspec/text/suggest.h"

enum status refuse_value(struct refusal *out, const char *way_out, const char *cause_format, ...)
{
    va_list args;
    va_start(args, cause_format);
    (void)vsnprintf(out->cause, sizeof(out->cause), cause_format, args);
    va_end(args);
    (void)snprintf(out->way_out, sizeof(out->way_out), "%s", way_out);
    return ST_CONFIG;
}

/* Other words that people use; one counts only if the field has the word that it means. */
static const struct {
    const char *word, *meant;
} synonyms[] = {
    { "gpu", "cuda" },
    { "nvidia", "cuda" },
    { "host", "cpu" },
    { "adam", "adamw" },
    { "float32", "fp32" },
    { "f32", "fp32" },
    { "float", "fp32" },
    { "single", "fp32" },
    { "float16", "fp16" },
    { "half", "fp16" },
    { "f16", "fp16" },
    { "bfloat16", "bf16" },
    { "mnist", "idx" },
    { "fashion-mnist", "idx" },
    { "cifar10", "cifar" },
    { "cifar-10", "cifar" },
    { "cifar100", "cifar" },
    { "cifar-100", "cifar" },
    { "bin", "tokens" },
    { "txt", "text" },
    { "gpt", "gpt2" },
    { "gpt-2", "gpt2" },
    { "resnet-18", "resnet18" },
    { "resnet-50", "resnet50" },
    { "resnet-152", "resnet152" },
    { "vit-b", "vit" },
    { "vision-transformer", "vit" },
};

/* What a user can do instead of a word that isn't built. */
static const struct {
    const char *key, *word, *way_out; /* key: the last part of the path */
} ways[] = {
    { "format", "cifar",
      "write it as IDX files, images of [N, 3, 32, 32] bytes and labels of [N], and use 'idx' "
      "(docs/job.md)" },
    { "tokenizer", "gpt2",
      "use 'bytes', or tokenize the text first and use 'format: tokens' (examples/README.md)" },
};

/* NULL: nothing better than what there is. */
static const char *find_way(const struct field *field, const char *word)
{
    const char *dot = strrchr(field->path, '.');
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (dot != NULL && strcmp(dot + 1, ways[i].key) == 0 && strcmp(ways[i].word, word) == 0)
            return ways[i].way_out;
    }
    return NULL;
}

/* The word of the field that is meant by a text; false: none comes near. */
static bool find_meant(const struct field *field, const char *text, char *out, bool *out_built)
{
    const char *at = field->words;
    bool built = true;
    char word[FIELD_WORD_BYTES];
    size_t best = suggest_limit(text) + 1;
    for (size_t i = 0; i < sizeof(synonyms) / sizeof(synonyms[0]); i++) {
        if (strcasecmp(synonyms[i].word, text) == 0 &&
            schema_word(field, synonyms[i].meant, out_built) != 0) {
            (void)snprintf(out, FIELD_WORD_BYTES, "%s", synonyms[i].meant);
            return true;
        }
    }
    while (schema_next_word(&at, &built, word, sizeof(word))) {
        size_t distance = suggest_distance(text, word);
        if (distance >= best || distance >= strlen(word))
            continue;
        best = distance;
        *out_built = built;
        memcpy(out, word, sizeof(word));
    }
    return best <= suggest_limit(text);
}

/* "Not supported": a text that stands for a word of the field that isn't built. */
static enum status refuse_meant(const struct field *field, const char *text, const char *word,
                                struct refusal *out)
{
    char words[LIMIT_REASON / 2];
    char way_out[LIMIT_REASON] = "remove this key";
    const char *way = find_way(field, word);
    schema_words(field, words, sizeof(words));
    if (way != NULL) {
        (void)snprintf(way_out, sizeof(way_out), "%s", way);
    } else if (field->kind == FIELD_INT && field->words != NULL) {
        (void)snprintf(way_out, sizeof(way_out), "write a number, or remove this key");
    } else if (field->fallback != NULL && words[0] == '\0') {
        (void)snprintf(way_out, sizeof(way_out), "this version has %s only", field->fallback);
    } else if (words[0] != '\0') {
        (void)snprintf(way_out, sizeof(way_out), "this version has: %s", words);
    }
    return refuse_value(out, way_out, "%s: '%.100s' is not supported in this version", field->path,
                        text);
}

enum status refuse_word(const struct field *field, const char *text, struct refusal *out)
{
    char word[FIELD_WORD_BYTES];
    char way_out[LIMIT_REASON];
    bool built = true;
    if (!find_meant(field, text, word, &built)) {
        char words[LIMIT_REASON / 2];
        schema_words(field, words, sizeof(words));
        (void)snprintf(way_out, sizeof(way_out), "one of: %s", words);
    } else if (built) {
        (void)snprintf(way_out, sizeof(way_out), "did you mean '%s'?", word);
    } else {
        return refuse_meant(field, text, word, out);
    }
    return refuse_value(out, way_out, "%s can't be '%.100s'", field->path, text);
}

enum status refuse_unbuilt(const struct field *field, const char *text, struct refusal *out)
{
    return refuse_meant(field, text, text, out);
}
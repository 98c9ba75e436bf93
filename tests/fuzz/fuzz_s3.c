/* Any bytes as what S3 answers with, and as a path. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/s3/quarantine.h"
#include "checkpoint/s3/xml.h"
#include "common/check.h"
#include "tests/fuzz/fuzz.h"

static bool look(void *arg, const char *path, const char *text)
{
    CHECK(strlen(path) > 0 && strlen(path) < S3_XML_PATH);
    CHECK(strlen(text) < S3_XML_TEXT);
    return ++*(int *)arg < 1000;
}

static void parse_path(const char *text)
{
    struct s3_path path;
    char url[S3_URL_MAX], *copy = strdup(text);
    CHECK(copy != NULL);
    s3_url_decode(copy);
    CHECK(strlen(copy) <= strlen(text));
    free(copy);
    if (!s3_path_parse(text, &path))
        return;
    CHECK(strlen(path.place.bucket) >= 3);
    CHECK((path.meaning == S3_PLAIN) || path.marker.key[0] != '\0');
    (void)s3_url_make("http://h", "r", path.place.bucket, path.place.key, NULL, url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int elements = 0;
    (void)!s3_xml_walk((const char *)data, size, look, &elements);
    struct s3_error error = s3_error_parse((const char *)data, size);
    CHECK(strchr(error.message, '\n') == NULL);
    char *text = malloc(size + 1);
    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    parse_path(text);
    free(text);
    return 0;
}

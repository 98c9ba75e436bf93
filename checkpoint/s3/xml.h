/*
 * Reading the XML that S3 answers with: a walk over its elements, by expat.
 *
 * expat, not own code: escapes, character references and encodings are many, its parser streams,
 * needs no tree and has been fuzzed for decades. A document type (entities) is refused.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

#define S3_XML_DEPTH 8
#define S3_XML_PATH  256
#define S3_XML_TEXT  4096 /* of one element; a key has at most 1024 bytes, URL-encoded 3072 */

/* Called at each element's end: path as "ListBucketResult/Contents/Key", text its own characters.
 * Both are valid during the call. false ends the walk. */
typedef bool (*s3_xml_fn)(void *arg, const char *path, const char *text);

/* ST_IO: this is no such XML, or it passes a bound. */
MUST_CHECK enum status s3_xml_walk(const char *bytes, size_t size, s3_xml_fn fn, void *arg);

/* Contents of <Error>; all "" if the bytes are something else. */
struct s3_error {
    char code[64];
    char message[256];
    char region[64];
};
struct s3_error s3_error_parse(const char *bytes, size_t size);

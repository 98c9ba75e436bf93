/* A parser of outside bytes: depth, names and texts are bounded. */
#include "checkpoint/s3/xml.h"

#include <expat.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct xml_walk {
    XML_Parser parser;
    s3_xml_fn fn;
    void *arg;
    char path[S3_XML_PATH];
    size_t length[S3_XML_DEPTH]; /* of path, before the element of this depth */
    size_t depth;
    char text[S3_XML_TEXT];
    size_t text_size;
    bool bad, ended;
};

static void stop_walk(struct xml_walk *walk, bool bad)
{
    walk->bad = walk->bad || bad;
    walk->ended = true;
    (void)XML_StopParser(walk->parser, XML_FALSE);
}

/* Appends the element's name to the path, without the prefix of a name space. */
static void element_begins(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    (void)attributes;
    struct xml_walk *walk = arg;
    const char *colon = strrchr(name, ':');
    const char *plain = colon == NULL ? name : colon + 1;
    size_t at = strlen(walk->path), size = strlen(plain);
    if (size == 0 || walk->depth == S3_XML_DEPTH || at + size + 2 > sizeof(walk->path)) {
        stop_walk(walk, true);
        return;
    }
    walk->length[walk->depth++] = at;
    if (at > 0)
        walk->path[at++] = '/';
    memcpy(walk->path + at, plain, size + 1);
    walk->text_size = 0;
}

static void element_ends(void *arg, const XML_Char *name)
{
    (void)name;
    struct xml_walk *walk = arg;
    if (walk->ended)
        return; /* an empty element, stopped at its beginning */
    walk->text[walk->text_size] = '\0';
    if (!walk->fn(walk->arg, walk->path, walk->text))
        stop_walk(walk, false);
    walk->path[walk->length[--walk->depth]] = '\0';
    walk->text_size = 0;
}

static void characters(void *arg, const XML_Char *text, int size)
{
    struct xml_walk *walk = arg;
    if ((size_t)size >= sizeof(walk->text) - walk->text_size) {
        stop_walk(walk, true);
        return;
    }
    memcpy(walk->text + walk->text_size, text, (size_t)size);
    walk->text_size += (size_t)size;
}

static void document_type(void *arg, const XML_Char *name, const XML_Char *system,
                          const XML_Char *public, int internal)
{
    (void)name, (void)system, (void)public, (void)internal;
    stop_walk(arg, true);
}

enum status s3_xml_walk(const char *bytes, size_t size, s3_xml_fn fn, void *arg)
{
    if (size > INT_MAX)
        return ST_IO;
    struct xml_walk *walk = calloc(1, sizeof(*walk));
    if (walk == NULL)
        return ST_NO_MEMORY;
    walk->fn = fn;
    walk->arg = arg;
    walk->parser = XML_ParserCreate(NULL);
    if (walk->parser == NULL) {
        free(walk);
        return ST_NO_MEMORY;
    }
    XML_SetUserData(walk->parser, walk);
    XML_SetElementHandler(walk->parser, element_begins, element_ends);
    XML_SetCharacterDataHandler(walk->parser, characters);
    XML_SetStartDoctypeDeclHandler(walk->parser, document_type);
    enum XML_Status parsed = XML_Parse(walk->parser, bytes, (int)size, XML_TRUE);
    bool good = !walk->bad && (parsed == XML_STATUS_OK || walk->ended);
    XML_ParserFree(walk->parser);
    free(walk);
    return good ? ST_OK : ST_IO;
}

/* Copies one line of text that may be shown to people. */
static void copy_line(char *out, size_t capacity, const char *text)
{
    size_t at = 0;
    for (; text[at] != '\0' && at + 1 < capacity; at++)
        out[at] = text[at];
    for (size_t i = 0; i < at; i++) {
        if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f)
            out[i] = ' ';
    }
    out[at] = '\0';
}

static bool take_error(void *arg, const char *path, const char *text)
{
    struct s3_error *error = arg;
    if (strcmp(path, "Error/Code") == 0) {
        copy_line(error->code, sizeof(error->code), text);
    } else if (strcmp(path, "Error/Message") == 0) {
        copy_line(error->message, sizeof(error->message), text);
    } else if (strcmp(path, "Error/Region") == 0) {
        copy_line(error->region, sizeof(error->region), text);
    }
    return true;
}

struct s3_error s3_error_parse(const char *bytes, size_t size)
{
    struct s3_error error = { .code = "" };
    (void)!s3_xml_walk(bytes, size, take_error, &error); /* elements before the error count */
    return error;
}

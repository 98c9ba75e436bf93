#include "identity/identity.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

#define SCHEME "cairn://"
#define DIGITS "0123456789"
#define SMALL  "abcdefghijklmnopqrstuvwxyz"
#define LARGE  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

static const enum identity_role roles[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER,
                                            IDENTITY_COORDINATOR };

const char *identity_role_name(enum identity_role role)
{
    switch (role) {
    case IDENTITY_NODE:
        return "node";
    case IDENTITY_OPERATOR:
        return "operator";
    case IDENTITY_VIEWER:
        return "viewer";
    case IDENTITY_COORDINATOR:
        return "coordinator";
    }
    return "?";
}

static bool is_word(const char *text, size_t capacity, const char *first, const char *rest)
{
    size_t size = strlen(text);
    return size > 0 && size < capacity && strchr(first, text[0]) != NULL &&
           strspn(text, rest) == size;
}

bool identity_name_valid(const char *name)
{
    return is_word(name, LIMIT_NAME, SMALL LARGE DIGITS, SMALL LARGE DIGITS "._-");
}

bool identity_cluster_valid(const char *cluster)
{
    return is_word(cluster, IDENTITY_CLUSTER, SMALL DIGITS, SMALL DIGITS ".-");
}

/* Cuts what stands before the next '/', and it, off the front of a text. NULL: there is none. */
static char *take_part(char **text)
{
    char *part = *text;
    char *slash = strchr(part, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    *text = slash + 1;
    return part;
}

bool identity_parse(const char *uri, size_t size, struct identity *out)
{
    char text[IDENTITY_URI];
    const size_t scheme = sizeof(SCHEME) - 1;
    if (size >= sizeof(text) || size < scheme || memcmp(uri, SCHEME, scheme) != 0 ||
        memchr(uri, '\0', size) != NULL)
        return false;
    memcpy(text, uri, size);
    text[size] = '\0';
    char *name = text + scheme;
    const char *cluster = take_part(&name);
    const char *role = cluster == NULL ? NULL : take_part(&name);
    if (role == NULL || !identity_cluster_valid(cluster) || !identity_name_valid(name))
        return false;
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(role, identity_role_name(roles[i])) != 0)
            continue;
        out->role = roles[i];
        memcpy(out->cluster, cluster, strlen(cluster) + 1); /* their sizes were looked at */
        memcpy(out->name, name, strlen(name) + 1);
        return true;
    }
    return false;
}

void identity_uri(const struct identity *identity, char out[IDENTITY_URI])
{
    CHECK(identity_cluster_valid(identity->cluster));
    CHECK(identity_name_valid(identity->name));
    (void)snprintf(out, IDENTITY_URI, SCHEME "%s/%s/%s", identity->cluster,
                   identity_role_name(identity->role), identity->name);
}

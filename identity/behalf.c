#include "identity/behalf.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define WHO "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-:"

_Static_assert(IDENTITY_BEHALF_ADDRESS >= INET6_ADDRSTRLEN, "an address of IPv6 fits");

void identity_behalf_text(const struct identity_behalf *behalf, char out[IDENTITY_BEHALF])
{
    (void)snprintf(out, IDENTITY_BEHALF, "%s/%s %s", identity_role_name(behalf->role), behalf->who,
                   behalf->address);
}

static bool is_address(const char *text)
{
    struct in6_addr parsed;
    return inet_pton(AF_INET, text, &parsed) == 1 || inet_pton(AF_INET6, text, &parsed) == 1;
}

/* Cuts the text behind the first of that character. NULL: there is none. */
static char *cut_at(char *text, char character)
{
    char *found = strchr(text, character);
    if (found == NULL)
        return NULL;
    *found = '\0';
    return found + 1;
}

bool identity_behalf_read(const void *text, size_t size, struct identity_behalf *out)
{
    char line[IDENTITY_BEHALF];
    if (size >= sizeof(line) || memchr(text, '\0', size) != NULL)
        return false;
    memcpy(line, text, size);
    line[size] = '\0';
    char *who = cut_at(line, '/');
    const char *address = who == NULL ? NULL : cut_at(who, ' ');
    if (address == NULL || !is_address(address) || strlen(who) >= sizeof(out->who) ||
        who[0] == '\0' || who[strspn(who, WHO)] != '\0')
        return false;
    if (strcmp(line, identity_role_name(IDENTITY_OPERATOR)) == 0) {
        out->role = IDENTITY_OPERATOR;
    } else if (strcmp(line, identity_role_name(IDENTITY_VIEWER)) == 0) {
        out->role = IDENTITY_VIEWER;
    } else {
        return false;
    }
    memcpy(out->who, who, strlen(who) + 1); /* their sizes were looked at */
    memcpy(out->address, address, strlen(address) + 1);
    return true;
}

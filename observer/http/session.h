/*
 * Sessions say who may look and who may act: sessions of browsers, tokens of scripts.
 *
 * Both are sealed tokens (identity/seal.h) under HOME/observer/key, whose first half says
 *
 *      0  1   role: 'a' operator, 'b' viewer
 *      1  8   when it ends, Unix seconds in hexadecimal
 *      9 23   random
 *
 * so nothing about them is kept, and they outlive a restart. HOME/observer/token has one of an
 * operator that never ends, HOME/observer/viewer-token a viewer's; HOME/observer/header and
 * viewer-header have them as the line of HTTP that shows them (`curl -H @FILE`): who writes a token
 * on a command line shows it to all accounts of the machine.
 *
 * Another key makes all of them worthless: the file is looked at once a second (sessions_look), and
 * where it is gone, or has changed, what was sealed under the old one ends, open streams too.
 *
 * A link lets a browser in once: `cairn open` makes the file HOME/observer/links/CODE (CODE: 32
 * hexadecimal digits; in it the role's name), whoever asks for /open?code=CODE within
 * SESSION_LINK_S gets a session, and the file is gone. Who can make such files owns the home.
 *
 * Thread: any, but sessions_open and sessions_look on one.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/limits.h"
#include "common/paths.h"
#include "identity/identity.h"
#include "identity/seal.h"

#define SESSION_S      43200 /* of a browser: 12 hours */
#define SESSION_LINK_S 60

/* Identifies the state of a file without reading it. */
struct session_file {
    uint64_t inode, size;
    struct timespec changed;
};

struct sessions {
    pthread_mutex_t mutex; /* protects what another key changes */
    char key[IDENTITY_TOKEN];
    uint32_t keys;              /* how many there were: another number, another key */
    struct session_file of_key; /* all 0: it couldn't be made */
    char links[LIMIT_PATH];     /* the folder */
};

/* Makes HOME/observer and what is in it. */
MUST_CHECK enum status sessions_open(struct sessions *sessions, const struct paths *paths);

/* Takes another key if the file with it was removed or written. From then on nothing that was
 * sealed with the old key lets anybody in. That holds also if the new key can't be kept, which is
 * an error and is tried again with the next look. *out_changed: the key is another one. */
MUST_CHECK enum status sessions_look(struct sessions *sessions, const struct paths *paths,
                                     bool *out_changed);

/* The number of keys that there were so far. */
uint32_t sessions_keys(struct sessions *sessions);

/* Makes a token of that role, which is valid until then. */
void session_make(struct sessions *sessions, enum identity_role role, int64_t until_unix_s,
                  char out[IDENTITY_TOKEN]);

/* Returns whose token that is at this time: IDENTITY_OPERATOR, _VIEWER or _NOBODY. A NULL token is
 * nobody's. */
enum identity_role session_role(struct sessions *sessions, const char *token, int64_t now_unix_s);

/* session_who names a valid token as people are shown it: by six of its random digits, which help
 * nobody to guess the rest. session_until_s: when a valid token ends, in Unix seconds. */
#define SESSION_WHO 16 /* bytes of "session:3f2a9c" or "token:3f2a9c", with the NUL */
void session_who(const char *token, char out[SESSION_WHO]);
int64_t session_until_s(const char *token);

/* Uses a link up and returns the role that it gives. IDENTITY_NOBODY: there is no such link, or it
 * was used, or is too old. */
enum identity_role session_link(const struct sessions *sessions, const char *code,
                                int64_t now_unix_s);

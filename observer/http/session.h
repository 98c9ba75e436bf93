/*
 * Who may look, and who may act: sessions of browsers, tokens of scripts.
 *
 * Both are sealed tokens (identity/seal.h) under HOME/observer/key, whose first half says
 *
 *      0  1   role: 'a' operator, 'b' viewer
 *      1  8   when it ends, Unix seconds in hexadecimal
 *      9 23   random
 *
 * so nothing about them is kept, and they outlive a restart. HOME/observer/token has one of an
 * operator that never ends, for `Authorization: Bearer`; HOME/observer/viewer-token a viewer's.
 *
 * A link lets a browser in once: `cairn open` makes the file HOME/observer/links/CODE (CODE: 32
 * hexadecimal digits; in it the role's name), whoever asks for /open?code=CODE within
 * SESSION_LINK_S gets a session, and the file is gone. Who can make such files owns the home.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/paths.h"
#include "identity/seal.h"

#define SESSION_S      43200 /* of a browser: 12 hours */
#define SESSION_LINK_S 60

enum session_role { SESSION_NOBODY, SESSION_VIEWER, SESSION_OPERATOR };

struct sessions {
    char key[IDENTITY_TOKEN];
    char links[LIMIT_PATH]; /* the folder */
};

/* "operator". */
const char *session_role_name(enum session_role role);

/* Makes HOME/observer and what is in it. */
MUST_CHECK enum status sessions_open(struct sessions *sessions, const struct paths *paths);

/* A token of that role until then. */
void session_make(const struct sessions *sessions, enum session_role role, int64_t until_unix_s,
                  char out[IDENTITY_TOKEN]);

/* Whose token that is at this time; NULL: nobody's. */
enum session_role session_role(const struct sessions *sessions, const char *token,
                               int64_t now_unix_s);

/* Uses a link up; SESSION_NOBODY: it isn't one, was used, or is too old. */
enum session_role session_link(const struct sessions *sessions, const char *code,
                               int64_t now_unix_s);

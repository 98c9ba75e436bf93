/*
 * The file of contexts: named ways to reach a coordinator.
 *
 * It is $XDG_CONFIG_HOME/cairn/contexts.json, else ~/.config/cairn/contexts.json:
 *
 *   {"cairn_contexts": 1, "current": "lab", "contexts": {"lab": {"addr": "ada:7000", ...}}}
 *
 * 1. A context is variables of the environment by a name: each key stands for one (context_key).
 * 2. No secret is in it. Certificates, keys and tokens are named by the paths of their files.
 * 3. It is replaced as a whole, by one process at a time: contexts.lock beside it is held
 *    meanwhile.
 * 4. A key that this version doesn't know is refused with its place, never lost by a change.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

#define CONTEXTS_MAX   256
#define CONTEXTS_BYTES ((size_t)512 << 10) /* of the file */

enum context_key {
    CONTEXT_ADDR,
    CONTEXT_HOME,
    CONTEXT_TLS_CERT,
    CONTEXT_TLS_KEY,
    CONTEXT_TLS_CA,
    CONTEXT_TOKEN_FILE,
    CONTEXT_KEYS
};

/* Texts are borrowed; NULL: not said. */
struct context {
    const char *name;
    const char *values[CONTEXT_KEYS];
};

/* The variable of the environment that a key stands for. */
const char *context_variable(enum context_key key);

/* True for what a context may be called: letters, digits, '.', '_' and '-', the first no '-'. */
bool context_name_is_good(const char *name);

/* The file's path. ST_NOT_FOUND: there is neither XDG_CONFIG_HOME nor HOME; ST_FULL */
MUST_CHECK enum status contexts_path(char out[LIMIT_PATH]);

struct contexts;

/*
 * Reads the file; a missing one, or one that can't be seen, holds nothing. reason names the place
 * of a mistake and the way out.
 * Errors: ST_CONFIG   the file has a mistake
 *         ST_REFUSED  it is another account's, or others may write to it
 *         ST_IO, ST_NO_MEMORY
 */
MUST_CHECK enum status contexts_read(const char *path, struct contexts **out,
                                     struct reason *reason);
/* NULL is fine. */
void contexts_free(struct contexts *contexts);

/* The current context's name, as `cairn context use` said; NULL: none. */
const char *contexts_current(const struct contexts *contexts);
/* How many there are, in the order in which they were added. */
size_t contexts_count(const struct contexts *contexts);
/* Fills one of them, which borrows from contexts. */
void contexts_at(const struct contexts *contexts, size_t index, struct context *out);
/* Finds one by its name; false: there is none. */
bool contexts_find(const struct contexts *contexts, const char *name, struct context *out);
/* The name that is most like `name`; NULL: none is like it. */
const char *contexts_like(const struct contexts *contexts, const char *name);

/* Adds one, or replaces that of its name. Errors: ST_FULL, ST_NO_MEMORY */
MUST_CHECK enum status contexts_put(struct contexts *contexts, const struct context *context);
/* Takes one away; if it was the current one, there is none then. Errors: ST_NOT_FOUND */
MUST_CHECK enum status contexts_remove(struct contexts *contexts, const char *name);
/* Makes one the current one; NULL: none. Errors: ST_NOT_FOUND, ST_NO_MEMORY */
MUST_CHECK enum status contexts_use(struct contexts *contexts, const char *name);

/* Changes what was read; anything but ST_OK leaves the file as it is, and reason says why. */
typedef enum status (*contexts_change_fn)(struct contexts *contexts, const void *arg,
                                          struct reason *reason);
/*
 * Reads the file, has it changed, and replaces it; makes the folder (0700) and the file (0600).
 * Durable: on ST_OK.
 * Errors: those of contexts_read and of the change
 *         ST_TIMED_OUT  another process held the lock for 5 s
 */
MUST_CHECK enum status contexts_change(const char *path, contexts_change_fn change, const void *arg,
                                       struct reason *reason);

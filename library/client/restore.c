/* The state that a start of the program goes on from. */
#include "library/client/internal.h"
#include "library/stored/stored.h"

int cairn_restore(struct cairn *c, struct cairn_state **out)
{
    struct reason why = { .text = "" };
    struct cairn_state *state = NULL;
    const int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (c->source == WIRE_NOTHING)
        return library_say(CAIRN_NOT_FOUND, "there is no state to go on from");
    enum status st = c->source == WIRE_MEMORY
                         ? stored_open_memory(c->paths, c->path_count, &state, &why)
                         : stored_open_checkpoint(c->paths, &state, &why);
    if (st == ST_OK && state->info.step != c->info.step) {
        reason_set(&why, "the state is of step %llu, not of %llu",
                   (unsigned long long)state->info.step, (unsigned long long)c->info.step);
        cairn_state_close(state);
        st = ST_CORRUPT;
    }
    if (st == ST_OK) {
        *out = state;
        return CAIRN_OK;
    }
    /* NOT_FOUND would mean to begin anew. */
    const int public = st == ST_NOT_FOUND ? CAIRN_CORRUPT : library_status(st);
    return library_say(public, "%s", why.text[0] != '\0' ? why.text : status_string(st));
}

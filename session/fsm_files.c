/* The copy files as the state machine sees them: which is free, which copy lies where. */
#include "common/check.h"
#include "session/fsm.h"

bool session_save_holds(const struct session_save_record *save)
{
    return save->state == SESSION_SAVE_COPYING || save->state == SESSION_SAVE_BEGUN ||
           save->state == SESSION_SAVE_WRITING;
}

void session_fsm_files(struct session_fsm *fsm, int file_count, int saves_max)
{
    CHECK(file_count >= 1 && file_count <= SESSION_FILES_MAX);
    CHECK(saves_max >= 1 && saves_max <= file_count);
    fsm->file_count = file_count;
    fsm->saves_max = saves_max;
}

void session_fsm_copies_alone(struct session_fsm *fsm, const struct reason *why)
{
    if (fsm->memory_reason.text[0] != '\0')
        return;
    fsm->memory_reason = *why;
    fsm->copies_alone = true;
}

static bool is_held(const struct session_fsm *fsm, int file)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        if (session_save_holds(&fsm->saves[i]) && fsm->saves[i].file == file)
            return true;
    }
    return fsm->files[file].busy || fsm->files[file].kept > 0;
}

enum status session_fsm_copy_begin(struct session_fsm *fsm, uint64_t step, int *out_file)
{
    int best = -1;
    if (session_fsm_ended(fsm))
        return ST_STALE;
    for (int i = 0; i < fsm->file_count; i++) {
        const struct session_file_record *file = &fsm->files[i];
        if (is_held(fsm, i))
            continue;
        if (best < 0 || (fsm->files[best].complete && !file->complete) ||
            (fsm->files[best].complete == file->complete && file->step < fsm->files[best].step))
            best = i;
    }
    if (best < 0)
        return ST_AGAIN;
    fsm->files[best] = (struct session_file_record){ .step = step, .busy = true };
    *out_file = best;
    return ST_OK;
}

void session_fsm_copied(struct session_fsm *fsm, int file, bool ok)
{
    CHECK(fsm->files[file].busy);
    fsm->files[file].busy = false;
    fsm->files[file].complete = ok;
}

int session_fsm_newest(const struct session_fsm *fsm)
{
    int found = -1;
    for (int i = 0; i < fsm->file_count; i++) {
        if (fsm->files[i].complete && (found < 0 || fsm->files[i].step > fsm->files[found].step))
            found = i;
    }
    return found;
}

int session_fsm_complete_copy(const struct session_fsm *fsm, uint64_t step)
{
    int found = -1;
    for (int i = 0; found < 0 && i < fsm->file_count; i++) {
        if (fsm->files[i].complete && fsm->files[i].step == step)
            found = i;
    }
    return found;
}

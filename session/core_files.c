/* The copy files as the state machine sees them: which is free, which copy lies where. */
#include "common/check.h"
#include "session/core.h"

bool session_save_holds(const struct session_save_record *save)
{
    return save->state == SESSION_SAVE_COPYING || save->state == SESSION_SAVE_BEGUN ||
           save->state == SESSION_SAVE_WRITING;
}

void session_core_files(struct session_core *core, int file_count, int saves_max)
{
    CHECK(file_count >= 1 && file_count <= SESSION_FILES_MAX);
    CHECK(saves_max >= 1 && saves_max <= file_count);
    core->file_count = file_count;
    core->saves_max = saves_max;
}

static bool is_held(const struct session_core *core, int file)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        if (session_save_holds(&core->saves[i]) && core->saves[i].file == file)
            return true;
    }
    return core->files[file].busy || core->files[file].kept > 0;
}

enum status session_core_copy_begin(struct session_core *core, uint64_t step, int *out_file)
{
    int best = -1;
    if (session_core_ended(core))
        return ST_STALE;
    for (int i = 0; i < core->file_count; i++) {
        const struct session_file_record *file = &core->files[i];
        if (is_held(core, i))
            continue;
        if (best < 0 || (core->files[best].whole && !file->whole) ||
            (core->files[best].whole == file->whole && file->step < core->files[best].step))
            best = i;
    }
    if (best < 0)
        return ST_AGAIN;
    core->files[best] = (struct session_file_record){ .step = step, .busy = true };
    *out_file = best;
    return ST_OK;
}

void session_core_copied(struct session_core *core, int file, bool ok)
{
    CHECK(core->files[file].busy);
    core->files[file].busy = false;
    core->files[file].whole = ok;
}

int session_core_newest(const struct session_core *core)
{
    int found = -1;
    for (int i = 0; i < core->file_count; i++) {
        if (core->files[i].whole && (found < 0 || core->files[i].step > core->files[found].step))
            found = i;
    }
    return found;
}

int session_core_whole(const struct session_core *core, uint64_t step)
{
    int found = -1;
    for (int i = 0; found < 0 && i < core->file_count; i++) {
        if (core->files[i].whole && core->files[i].step == step)
            found = i;
    }
    return found;
}

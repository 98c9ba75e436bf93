/* A worker's saver, which writes its files of saves, and its reader of checkpoints. */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "tests/sim/worker/sim_trainer.h"

static void save_file(struct sim *sim, struct sim_trainer *t)
{
    struct session_save_record *save = &t->fsm.saves[t->saving];
    struct sim_folder *folder = sim_folder_at(sim, save->dir);
    uint32_t rank = t->view.rank;
    if (sim->store_full || folder == NULL || !folder->there || folder->file[rank] != 0) {
        enum status st = sim->store_full ? ST_FULL : ST_IO;
        session_fsm_save_failed(&t->fsm, t->saving, st, status_string(st), true);
        return;
    }
    if (folder->manifest)
        sim_fail(sim, "%s r%u writes into a published checkpoint", t->id, rank);
    uint64_t content = sim_part(sim_state(t->view.start.job, save->step), rank);
    folder->file[rank] = content;
    folder->taint[rank] = t->save_taint[t->saving];
    struct ckpt_hash hash;
    memset(&hash, (int)(content & 0xff), sizeof(hash));
    struct ckpt_report report = { .step = save->step,
                                  .generation = t->view.start.generation,
                                  .rank = rank,
                                  .size = content % 100000,
                                  .hash = hash,
                                  .scalars = hash };
    /* The ranks agree: what they were told is the same. */
    const struct sim_folder *base = save->base_dir[0] ? sim_folder_at(sim, save->base_dir) : NULL;
    if (base != NULL && base->there && base->manifest) {
        report.parent.step = base->step;
        report.parent.generation = base->generation;
    } else if (base != NULL) { /* the save was dropped meanwhile, or its base set aside */
        folder->file[rank] = 0;
        session_fsm_save_failed(&t->fsm, t->saving, ST_NOT_FOUND, status_string(ST_NOT_FOUND),
                                true);
        return;
    }
    (void)snprintf(report.file, sizeof(report.file), "shard-%05u", rank);
    Cairn__V1__SaveReport *message = session_report_new(&report, 5);
    CHECK(message != NULL);
    session_fsm_save_written(&t->fsm, t->saving, message);
}

void sim_saver_run(struct sim *sim, struct sim_trainer *t)
{
    bool hangs = sim->now < sim->savers_hang_until || sim->now < t->view.saver_hangs_until;
    if (t->saving >= 0) {
        if (sim->now < t->write_until || hangs)
            return;
        t->progress.saving++;
        struct session_save_record *save = &t->fsm.saves[t->saving];
        if (save->state == SESSION_SAVE_WRITING) {
            save_file(sim, t);
        } else if (save->state == SESSION_SAVE_REMOVING) {
            struct sim_folder *folder = sim_folder_at(sim, save->dir);
            if (folder != NULL && folder->there) {
                if (folder->manifest)
                    sim_fail(sim, "%s r%u removes its file of a checkpoint", t->id, t->view.rank);
                folder->file[t->view.rank] = 0;
            }
            session_fsm_save_removed(&t->fsm, t->saving);
        }
        t->saving = -1;
    }
    int work = session_fsm_saver_work(&t->fsm);
    if (work < 0)
        return;
    t->saving = work;
    t->write_until = sim->now + (int64_t)sim_below(sim, sim_chance(sim, 50) ? 4000 : 200);
}

/* ---- reading back ---- */

/* The files that are its part, up to the first bad one. */
static enum status read_files(struct sim *sim, const struct sim_trainer *t, uint32_t *out_shard)
{
    struct sim_folder *folder = sim_folder_at(sim, t->read.dir);
    enum status st = folder != NULL ? ST_OK : ST_NOT_FOUND;
    for (uint32_t s = 0; s < t->read.shards && st == ST_OK; s++) {
        if ((s + 1) % t->read.ranks != t->read.rank)
            continue;
        *out_shard = s;
        st = sim_folder_read(sim, folder, s);
    }
    return st;
}

/* While there is chaos it may hang for ever, fail, or find damage where there is none. */
void sim_reader_run(struct sim *sim, struct sim_trainer *t)
{
    if (session_fsm_read_order(&t->fsm, &t->read))
        t->read_until = sim->now + 1 + (int64_t)sim_below(sim, sim_chance(sim, 50) ? 20000 : 500);
    if (t->read_until == 0 || sim->now < t->read_until)
        return;
    t->read_until = 0;
    if (sim->chaos && sim_chance(sim, 20))
        return;
    struct readback_news news = {
        .step = t->read.step, .generation = t->read.generation, .bytes = 100, .done = true
    };
    news.status = read_files(sim, t, &news.shard);
    if (sim->chaos && sim_chance(sim, 60))
        news.status = sim_chance(sim, 500) ? ST_IO : ST_CORRUPT;
    reason_set(&news.why, "%s", status_string(news.status));
    sim->read_backs += news.status == ST_OK;
    session_fsm_read_news(&t->fsm, &news);
}

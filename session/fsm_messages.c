/* Outputs of the state machine as messages, and the two records that outlive a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/unconst.h"
#include "session/fsm.h"

/* ---- next message ---- */

static bool out_hello(const struct session_fsm *fsm, const struct session_progress *progress,
                      struct session_out *out)
{
    cairn__v1__trainer_hello__init(&out->hello);
    out->hello.job = unconst(fsm->job);
    out->hello.generation = fsm->generation;
    out->hello.rank = fsm->number;
    out->hello.pid = fsm->pid;
    out->hello.version = unconst(CAIRN_VERSION);
    out->hello.attached = fsm->assigned != NULL || fsm->park.state >= SESSION_PARK_PARKED;
    out->hello.pins = fsm->pins;
    out->hello.step = progress->step;
    if (fsm->assigned == NULL) {
        out->hello.copies = fsm->copy_list;
        out->hello.n_copies = fsm->copy_count;
    }
    if (session_fill_parked(fsm, &out->parked))
        out->hello.parked = &out->parked;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
    out->message.hello = &out->hello;
    out->kind = SESSION_OUT_HELLO;
    return true;
}

static bool out_fault(const struct session_fsm *fsm, struct session_out *out)
{
    const struct session_fault_record *fault = &fsm->fault;
    if (!fault->known || fault->said)
        return false;
    cairn__v1__fault__init(&out->fault);
    out->text = fault->why;
    memcpy(out->phase_text, fault->phase, sizeof(out->phase_text));
    memcpy(out->ranks, fault->ranks, sizeof(out->ranks));
    out->fault.kind = fault->kind;
    out->fault.message = out->text.text;
    out->fault.phase = out->phase_text;
    out->fault.ranks = out->ranks;
    out->fault.n_ranks = fault->rank_count;
    out->fault.step = fault->step;
    out->fault.of_node = fault->of_node;
    out->fault.outside = fault->outside;
    out->fault.stays = fault->stays;
    out->fault.shard = fault->shard;
    out->fault.good_step = fault->good_step;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT;
    out->message.fault = &out->fault;
    out->kind = SESSION_OUT_FAULT;
    return true;
}

static bool out_join(const struct session_fsm *fsm, struct session_out *out)
{
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        const struct session_rendezvous_round *round = &fsm->rounds[i];
        if (round->name[0] == '\0' || round->said)
            continue;
        cairn__v1__rendezvous_join__init(&out->join);
        out->join.name = unconst(round->name);
        out->join.common.data = unconst(round->common);
        out->join.common.len = round->common_size;
        out->join.items.data = round->items;
        out->join.items.len = round->ranks * round->item_size;
        out->join.answered = round->answered;
        out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN;
        out->message.join = &out->join;
        out->kind = SESSION_OUT_MEET;
        out->index = i;
        return true;
    }
    return false;
}

static bool out_ready(const struct session_fsm *fsm, struct session_out *out)
{
    if (!fsm->ready_known || fsm->ready_said)
        return false;
    cairn__v1__ready__init(&out->ready);
    out->ready.total_steps = fsm->planned_steps;
    out->ready.last_step = fsm->last_step;
    out->ready.last_reason = unconst(fsm->last_reason.text);
    out->ready.steps_per_epoch = fsm->ready.steps_per_epoch;
    out->ready.parameters = fsm->ready.parameters;
    out->ready.state_bytes = fsm->ready.state_bytes;
    out->ready.pins = fsm->ready_pins;
    out->ready.step = fsm->ready.step;
    out->ready.memory_every = fsm->ready.memory_every;
    out->ready.memory_bytes = fsm->memory_bytes;
    out->ready.memory_reason = unconst(fsm->ready.memory_reason);
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_READY;
    out->message.ready = &out->ready;
    out->kind = SESSION_OUT_READY;
    return true;
}

static void fill_row(const struct session_fsm *fsm, const struct session_row_record *record, int i,
                     struct session_out *out)
{
    const struct session_row *from = &record->row;
    Cairn__V1__MetricRow *row = &out->row[i];
    cairn__v1__metric_row__init(row);
    row->step = from->step;
    row->epoch = from->epoch;
    row->loss = from->loss;
    row->lr = from->lr;
    row->grad_norm = from->grad_norm;
    row->samples_per_s = from->samples_per_s;
    row->step_ms = from->step_ms;
    row->generation = fsm->generation;
    row->wall_ms = record->wall_ms;
    row->phases = out->phase_list[i];
    for (int p = 0; p < from->phase_count && p < SESSION_PHASES_MAX; p++) {
        cairn__v1__phase__init(&out->phase[i][p]);
        out->phase[i][p].name = unconst(from->phase[p].name);
        out->phase[i][p].ms = from->phase[p].ms;
        out->phase_list[i][p] = &out->phase[i][p];
        row->n_phases++;
    }
    if (from->has_eval) {
        Cairn__V1__Eval *eval = &out->eval[i];
        cairn__v1__eval__init(eval);
        eval->loss = from->eval_loss;
        eval->accuracy = from->eval_accuracy;
        eval->correct = from->eval_correct;
        eval->count = from->eval_count;
        row->eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
        row->eval = eval;
    }
    out->row_list[i] = row;
}

/* Rows wait for company, but not beyond a save: rows of its steps are said before it is committed.
 * */
static bool out_rows(const struct session_fsm *fsm, int64_t now_ms, struct session_out *out)
{
    const uint64_t waiting = fsm->row_end - fsm->row_said;
    if (waiting == 0)
        return false;
    if (waiting < SESSION_ROWS_PER_SEND && now_ms < fsm->rows_ms + SESSION_ROWS_MS &&
        !fsm->finished && !session_fsm_ended(fsm) && !session_out_save(fsm, now_ms, NULL))
        return false;
    const int count = (int)(waiting < SESSION_ROWS_PER_SEND ? waiting : SESSION_ROWS_PER_SEND);
    cairn__v1__metric_rows__init(&out->rows);
    for (int i = 0; i < count; i++)
        fill_row(fsm, &fsm->rows[(fsm->row_said + (uint64_t)i) % LIMIT_METRIC_ROWS], i, out);
    out->rows.n_rows = (size_t)count;
    out->rows.rows = out->row_list;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    out->message.metrics = &out->rows;
    out->kind = SESSION_OUT_ROWS;
    out->through = fsm->row_said + (uint64_t)count;
    return true;
}

static bool out_passed(const struct session_fsm *fsm, struct session_out *out)
{
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        const struct session_announced *one = &fsm->announced[i];
        if (one->state != SESSION_ANNOUNCED_PASSED || one->said)
            continue;
        cairn__v1__save_passed__init(&out->passed);
        out->passed.step = one->step;
        out->passed.at = one->at;
        out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_PASSED;
        out->message.save_passed = &out->passed;
        out->kind = SESSION_OUT_PASSED;
        out->index = i;
        out->id = one->step;
        return true;
    }
    return false;
}

static bool out_wanted(const struct session_fsm *fsm, struct session_out *out)
{
    const struct session_wanted_record *wanted = &fsm->wanted;
    if (!wanted->known || wanted->said)
        return false;
    cairn__v1__save_wanted__init(&out->wanted);
    reason_set(&out->text, "%s", wanted->reason);
    out->wanted.leaves = wanted->leaves;
    out->wanted.grace_ms = wanted->grace_ms;
    out->wanted.reason = out->text.text;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_WANTED;
    out->message.save_wanted = &out->wanted;
    out->kind = SESSION_OUT_WANTED;
    return true;
}

static bool out_read(const struct session_fsm *fsm, int64_t now_ms, struct session_out *out)
{
    const struct session_read_record *read = &fsm->read;
    if (!read->known || read->said ||
        (!read->news.done && read->said_ms != 0 && now_ms < read->said_ms + SESSION_READ_MS))
        return false;
    cairn__v1__read_back_state__init(&out->read);
    out->text = read->news.why;
    out->read.step = read->news.step;
    out->read.generation = read->news.generation;
    out->read.bytes = read->news.bytes;
    out->read.done = read->news.done;
    out->read.status = (int32_t)read->news.status;
    out->read.shard = read->news.shard;
    out->read.message = out->text.text;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_READ_BACK;
    out->message.read_back = &out->read;
    out->kind = SESSION_OUT_READ;
    out->through = read->news.bytes;
    out->state = read->news.done;
    return true;
}

static bool out_finished(const struct session_fsm *fsm, struct session_out *out)
{
    if (!fsm->finished || fsm->finished_said)
        return false;
    cairn__v1__finished__init(&out->finished);
    out->finished.step = fsm->finished_step;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED;
    out->message.finished = &out->finished;
    out->kind = SESSION_OUT_FINISHED;
    return true;
}

/* Returns the report interval of the plan, or the default; plans make it longer for many
 * workers. */
static int64_t heartbeat_ms(const struct session_fsm *fsm)
{
    const uint32_t ms = fsm->assigned != NULL ? fsm->assigned->plan->heartbeat_ms : 0;
    if (ms == 0)
        return SESSION_HEARTBEAT_MS;
    return ms < SESSION_HEARTBEAT_MAX_MS ? ms : SESSION_HEARTBEAT_MAX_MS;
}

static bool out_progress(const struct session_fsm *fsm, const struct session_progress *progress,
                         int64_t now_ms, struct session_out *out)
{
    const struct session_progress *said = &fsm->progress_said;
    const bool changed =
        said->step != progress->step || said->counter != progress->counter ||
        said->saving != progress->saving || said->collectives != progress->collectives ||
        said->exchanges != progress->exchanges || strcmp(said->phase, progress->phase) != 0;
    const int64_t since_ms = now_ms - fsm->progress_ms;
    const int64_t beat_ms = heartbeat_ms(fsm);
    if (fsm->progress_ms != 0 && since_ms < (changed ? beat_ms / 2 : beat_ms))
        return false;
    cairn__v1__progress__init(&out->progress_message);
    out->progress_message.step = progress->step;
    out->progress_message.phase = unconst(progress->phase);
    out->progress_message.counter = progress->counter;
    out->progress_message.saving = progress->saving;
    out->progress_message.at_store = session_fsm_at_store(fsm);
    out->progress_message.memory_every = fsm->ready_known ? fsm->ready.memory_every : 0;
    if (progress->collective != NULL) {
        out->progress_message.collectives = progress->collectives;
        out->progress_message.collective = unconst(progress->collective);
        out->progress_message.exchanges = progress->exchanges;
    }
    out->progress_message.audited = fsm->audited;
    out->progress_message.lanes = fsm->timed.lanes;
    out->progress_message.timed_steps = fsm->timed.steps;
    out->progress_message.timed_us = fsm->timed.us;
    out->progress_message.step_flops = fsm->ready_known ? fsm->ready.step_flops : 0;
    out->progress_message.peak_flops = fsm->ready_known ? fsm->ready.peak_flops : 0;
    if (fsm->copies_alone)
        out->progress_message.memory_reason = unconst(fsm->memory_reason.text);
    if (fsm->traffic.known) {
        cairn__v1__traffic__init(&out->traffic);
        out->traffic.sent_bytes = fsm->traffic.sent_bytes;
        out->traffic.received_bytes = fsm->traffic.received_bytes;
        out->progress_message.traffic = &out->traffic;
    }
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    out->message.progress = &out->progress_message;
    out->kind = SESSION_OUT_PROGRESS;
    out->progress = *progress;
    return true;
}

bool session_fsm_next(const struct session_fsm *fsm, const struct session_progress *progress,
                      int64_t now_ms, struct session_out *out)
{
    if (fsm->over || !fsm->up || fsm->pins == NULL)
        return false;
    cairn__v1__trainer_message__init(&out->message);
    if (!fsm->hello_said)
        return out_hello(fsm, progress, out);
    if (session_fsm_ended(fsm)) {
        const bool spare = session_fsm_is_spare(fsm);
        return out_fault(fsm, out) || (spare && out_ready(fsm, out)) ||
               out_rows(fsm, now_ms, out) || session_out_parked(fsm, out) ||
               out_finished(fsm, out) || out_progress(fsm, progress, now_ms, out);
    }
    /* Once the round "last" is answered, the coordinator knows the last step from all ranks. */
    const bool ready_first = fsm->last_step > 0 && out_ready(fsm, out);
    return out_fault(fsm, out) || ready_first || out_join(fsm, out) || out_ready(fsm, out) ||
           out_rows(fsm, now_ms, out) || session_out_save(fsm, now_ms, out) ||
           out_passed(fsm, out) || out_wanted(fsm, out) || out_read(fsm, now_ms, out) ||
           out_finished(fsm, out) || out_progress(fsm, progress, now_ms, out);
}

void session_fsm_sent(struct session_fsm *fsm, const struct session_out *out, int64_t now_ms)
{
    fsm->now_ms = now_ms;
    switch (out->kind) {
    case SESSION_OUT_HELLO:
        fsm->hello_said = true;
        fsm->park.said = out->hello.parked != NULL && fsm->park.state >= SESSION_PARK_PARKED;
        break;
    case SESSION_OUT_FAULT:
        fsm->fault.said = true;
        fsm->fault.said_ever = true;
        break;
    case SESSION_OUT_PARKED:
        fsm->park.said = true;
        break;
    case SESSION_OUT_MEET:
        fsm->rounds[out->index].said = true;
        break;
    case SESSION_OUT_READY:
        fsm->ready_said = true;
        break;
    case SESSION_OUT_ROWS:
        if (out->through > fsm->row_said)
            fsm->row_said = out->through;
        fsm->rows_ms = now_ms;
        break;
    case SESSION_OUT_SAVE:
        session_sent_save(fsm, out, now_ms);
        break;
    case SESSION_OUT_PASSED:
        if (fsm->announced[out->index].step == out->id)
            fsm->announced[out->index].said = true;
        break;
    case SESSION_OUT_WANTED:
        fsm->wanted.said = true;
        break;
    case SESSION_OUT_READ: /* news may have come while it was sent */
        fsm->read.said = fsm->read.known && fsm->read.news.bytes == out->through &&
                         fsm->read.news.done == (out->state != 0);
        fsm->read.said_ms = now_ms;
        break;
    case SESSION_OUT_FINISHED:
        fsm->finished_said = true;
        fsm->finished_said_ever = true;
        break;
    case SESSION_OUT_PROGRESS:
        fsm->progress_said = out->progress;
        fsm->progress_ms = now_ms;
        break;
    }
}

/* ---- reports ---- */

static bool copy_bytes(ProtobufCBinaryData *to, const void *from, size_t size)
{
    to->data = malloc(size > 0 ? size : 1);
    if (to->data == NULL)
        return false;
    if (size > 0)
        memcpy(to->data, from, size);
    to->len = size;
    return true;
}

static Cairn__V1__PieceRun *piece_extent_new(const struct ckpt_piece_extent *from)
{
    Cairn__V1__PieceRun *extent = calloc(1, sizeof(*extent));
    if (extent == NULL)
        return NULL;
    cairn__v1__piece_run__init(extent);
    extent->buffer = from->buffer;
    extent->first = from->first;
    extent->pieces_per_hash = from->each;
    if (!copy_bytes(&extent->xxh3_128, from->hashes, from->count * sizeof(struct ckpt_hash))) {
        free(extent);
        return NULL;
    }
    return extent;
}

Cairn__V1__SaveReport *session_report_new(const struct ckpt_report *report, int64_t write_ms)
{
    Cairn__V1__SaveReport *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    cairn__v1__save_report__init(made);
    made->step = report->step;
    made->generation = (uint32_t)report->generation;
    made->rank = report->rank;
    made->size = report->size;
    made->raw_bytes = report->raw_bytes;
    made->write_ms = (uint64_t)(write_ms > 0 ? write_ms : 0);
    made->parent_step = report->parent.step;
    made->parent_generation = report->parent.generation;
    made->encode_us = report->encode_us;
    made->io_us = report->write_us;
    made->sync_us = report->sync_us;
    char *file = strdup(report->file);
    made->file = file != NULL ? file : made->file;
    made->pieces = calloc(report->extent_count + 1, sizeof(Cairn__V1__PieceRun *));
    bool complete = file != NULL && made->pieces != NULL &&
                    copy_bytes(&made->xxh3_128, &report->hash, sizeof(report->hash)) &&
                    copy_bytes(&made->scalars_xxh3_128, &report->scalars, sizeof(report->scalars));
    for (uint32_t i = 0; complete && i < report->extent_count; i++) {
        made->pieces[i] = piece_extent_new(&report->extents[i]);
        complete = made->pieces[i] != NULL;
        made->n_pieces += complete;
    }
    if (!complete) {
        cairn__v1__save_report__free_unpacked(made, NULL);
        return NULL;
    }
    /* A share with more hashes than fit has no file: ckpt_share_of refuses it. */
    CHECK(cairn__v1__save_report__get_packed_size(made) <= LIMIT_REPORT_BYTES);
    return made;
}

/* ---- last words ---- */

/* Returns the newest reported save whose order is below `below`; NULL: none. */
static const struct session_save_record *newest_reported(const struct session_fsm *fsm,
                                                         uint64_t below)
{
    const struct session_save_record *newest = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &fsm->saves[i];
        if (save->state == SESSION_SAVE_REPORTING && save->order < below &&
            (newest == NULL || save->order > newest->order))
            newest = save;
    }
    return newest;
}

/* Newest first, as many as there is room for: agents read no more than LIMIT_LAST_WORDS_BYTES, and
 * the older ones the coordinator has had more time to hear. */
static void add_saves(const struct session_fsm *fsm, Cairn__V1__LastWords *words)
{
    size_t room = LIMIT_REPORT_BYTES;
    const struct session_save_record *save = newest_reported(fsm, UINT64_MAX);
    while (save != NULL) {
        const size_t size = cairn__v1__save_report__get_packed_size(save->report);
        if (size > room)
            return;
        room -= size;
        words->saves[words->n_saves++] = save->report;
        save = newest_reported(fsm, save->order);
    }
}

/* Adds the metric rows of the steps whose saves are in the last words: a checkpoint's metrics
 * decide whether it is kept. */
static void add_rows(const struct session_fsm *fsm, struct session_out *out,
                     Cairn__V1__LastWords *words)
{
    words->rows = out->row_list;
    for (uint64_t n = fsm->row_first; fsm->rows != NULL && n < fsm->row_end; n++) {
        const struct session_row_record *record = &fsm->rows[n % LIMIT_METRIC_ROWS];
        bool saved = false;
        for (size_t i = 0; i < words->n_saves; i++)
            saved = saved || words->saves[i]->step == record->row.step;
        if (saved && words->n_rows < SESSION_SAVES_MAX)
            fill_row(fsm, record, (int)words->n_rows++, out);
    }
}

enum status session_fsm_last_words(const struct session_fsm *fsm,
                                   const struct session_progress *progress, uint8_t **out,
                                   size_t *out_size)
{
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    Cairn__V1__SaveReport *saves[SESSION_SAVES_MAX];
    words.job = unconst(fsm->job);
    words.generation = fsm->generation;
    words.rank = fsm->number;
    words.step = progress->step;
    words.phase = unconst(progress->phase);
    words.finished = fsm->finished;
    words.saves = saves;
    add_saves(fsm, &words);
    auto_free struct session_out *parts = malloc(sizeof(*parts));
    if (parts == NULL)
        return ST_NO_MEMORY;
    add_rows(fsm, parts, &words);
    if (fsm->fault.known) {
        fault.kind = fsm->fault.kind;
        fault.message = unconst(fsm->fault.why.text);
        fault.phase = unconst(fsm->fault.phase);
        fault.ranks = unconst(fsm->fault.ranks);
        fault.n_ranks = fsm->fault.rank_count;
        fault.step = fsm->fault.step;
        fault.of_node = fsm->fault.of_node;
        fault.outside = fsm->fault.outside;
        fault.stays = fsm->fault.stays;
        fault.shard = fsm->fault.shard;
        fault.good_step = fsm->fault.good_step;
        words.fault__case = CAIRN__V1__LAST_WORDS__FAULT__FAULT;
        words.fault = &fault;
    }
    const size_t size = cairn__v1__last_words__get_packed_size(&words);
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL)
        return ST_NO_MEMORY;
    *out_size = cairn__v1__last_words__pack(&words, bytes);
    *out = bytes;
    return ST_OK;
}

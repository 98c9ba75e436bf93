/* Outputs of the state machine as messages, and the two records that outlive a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/unconst.h"
#include "session/core.h"

/* ---- next message ---- */

static bool out_hello(const struct session_core *core, const struct session_progress *progress,
                      struct session_out *out)
{
    cairn__v1__trainer_hello__init(&out->hello);
    out->hello.job = unconst(core->job);
    out->hello.generation = core->generation;
    out->hello.rank = core->number;
    out->hello.pid = core->pid;
    out->hello.version = unconst(CAIRN_VERSION);
    out->hello.attached = core->assigned != NULL || core->park.state >= SESSION_PARK_PARKED;
    out->hello.pins = core->pins;
    out->hello.step = progress->step;
    if (core->assigned == NULL) {
        out->hello.copies = core->copy_list;
        out->hello.n_copies = core->copy_count;
    }
    if (session_fill_parked(core, &out->parked))
        out->hello.parked = &out->parked;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
    out->message.hello = &out->hello;
    out->kind = SESSION_OUT_HELLO;
    return true;
}

static bool out_fault(const struct session_core *core, struct session_out *out)
{
    const struct session_fault_record *fault = &core->fault;
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
    out->fault.shard = fault->shard;
    out->fault.good_step = fault->good_step;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT;
    out->message.fault = &out->fault;
    out->kind = SESSION_OUT_FAULT;
    return true;
}

static bool out_meet(const struct session_core *core, struct session_out *out)
{
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        const struct session_meeting *meeting = &core->meetings[i];
        if (meeting->name[0] == '\0' || meeting->said)
            continue;
        cairn__v1__meet__init(&out->meet);
        out->meet.name = unconst(meeting->name);
        out->meet.common.data = unconst(meeting->common);
        out->meet.common.len = meeting->common_size;
        out->meet.items.data = meeting->items;
        out->meet.items.len = meeting->ranks * meeting->item_size;
        out->meet.answered = meeting->answered;
        out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_MEET;
        out->message.meet = &out->meet;
        out->kind = SESSION_OUT_MEET;
        out->index = i;
        return true;
    }
    return false;
}

static bool out_ready(const struct session_core *core, struct session_out *out)
{
    if (!core->ready_known || core->ready_said)
        return false;
    cairn__v1__ready__init(&out->ready);
    out->ready.total_steps = core->ready.total_steps;
    out->ready.steps_per_epoch = core->ready.steps_per_epoch;
    out->ready.parameters = core->ready.parameters;
    out->ready.state_bytes = core->ready.state_bytes;
    out->ready.pins = core->ready_pins;
    out->ready.step = core->ready.step;
    out->ready.memory_every = core->ready.memory_every;
    out->ready.memory_bytes = core->memory_bytes;
    out->ready.memory_reason = unconst(core->ready.memory_reason);
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_READY;
    out->message.ready = &out->ready;
    out->kind = SESSION_OUT_READY;
    return true;
}

static void fill_row(const struct session_core *core, const struct session_row_record *record,
                     int i, struct session_out *out)
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
    row->generation = core->generation;
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
static bool out_rows(const struct session_core *core, int64_t now_ms, struct session_out *out)
{
    const uint64_t waiting = core->row_end - core->row_said;
    if (waiting == 0)
        return false;
    if (waiting < SESSION_ROWS_PER_SEND && now_ms < core->rows_ms + SESSION_ROWS_MS &&
        !core->finished && !session_core_ended(core) && !session_out_save(core, now_ms, NULL))
        return false;
    const int count = (int)(waiting < SESSION_ROWS_PER_SEND ? waiting : SESSION_ROWS_PER_SEND);
    cairn__v1__metric_rows__init(&out->rows);
    for (int i = 0; i < count; i++)
        fill_row(core, &core->rows[(core->row_said + (uint64_t)i) % LIMIT_METRIC_ROWS], i, out);
    out->rows.n_rows = (size_t)count;
    out->rows.rows = out->row_list;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    out->message.metrics = &out->rows;
    out->kind = SESSION_OUT_ROWS;
    out->through = core->row_said + (uint64_t)count;
    return true;
}

static bool out_passed(const struct session_core *core, struct session_out *out)
{
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        const struct session_announced *one = &core->announced[i];
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

static bool out_wanted(const struct session_core *core, struct session_out *out)
{
    const struct session_wanted_record *wanted = &core->wanted;
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

static bool out_read(const struct session_core *core, int64_t now_ms, struct session_out *out)
{
    const struct session_read_record *read = &core->read;
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

static bool out_finished(const struct session_core *core, struct session_out *out)
{
    if (!core->finished || core->finished_said)
        return false;
    cairn__v1__finished__init(&out->finished);
    out->finished.step = core->finished_step;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED;
    out->message.finished = &out->finished;
    out->kind = SESSION_OUT_FINISHED;
    return true;
}

/* Returns the report interval of the plan, or the default; plans make it longer for many
 * workers. */
static int64_t heartbeat_ms(const struct session_core *core)
{
    const uint32_t ms = core->assigned != NULL ? core->assigned->plan->heartbeat_ms : 0;
    if (ms == 0)
        return SESSION_HEARTBEAT_MS;
    return ms < SESSION_HEARTBEAT_MAX_MS ? ms : SESSION_HEARTBEAT_MAX_MS;
}

static bool out_progress(const struct session_core *core, const struct session_progress *progress,
                         int64_t now_ms, struct session_out *out)
{
    const struct session_progress *said = &core->progress_said;
    const bool changed =
        said->step != progress->step || said->counter != progress->counter ||
        said->saving != progress->saving || said->collectives != progress->collectives ||
        said->exchanges != progress->exchanges || strcmp(said->phase, progress->phase) != 0;
    const int64_t since_ms = now_ms - core->progress_ms;
    const int64_t beat_ms = heartbeat_ms(core);
    if (core->progress_ms != 0 && since_ms < (changed ? beat_ms / 2 : beat_ms))
        return false;
    cairn__v1__progress__init(&out->progress_message);
    out->progress_message.step = progress->step;
    out->progress_message.phase = unconst(progress->phase);
    out->progress_message.counter = progress->counter;
    out->progress_message.saving = progress->saving;
    out->progress_message.at_store = session_core_at_store(core);
    out->progress_message.memory_every = core->ready_known ? core->ready.memory_every : 0;
    if (progress->collective != NULL) {
        out->progress_message.collectives = progress->collectives;
        out->progress_message.collective = unconst(progress->collective);
        out->progress_message.exchanges = progress->exchanges;
    }
    out->progress_message.audited = core->audited;
    out->progress_message.lanes = core->timed.lanes;
    out->progress_message.timed_steps = core->timed.steps;
    out->progress_message.timed_us = core->timed.us;
    out->progress_message.step_flops = core->ready_known ? core->ready.step_flops : 0;
    out->progress_message.peak_flops = core->ready_known ? core->ready.peak_flops : 0;
    if (core->traffic.known) {
        cairn__v1__traffic__init(&out->traffic);
        out->traffic.sent_bytes = core->traffic.sent_bytes;
        out->traffic.received_bytes = core->traffic.received_bytes;
        out->progress_message.traffic = &out->traffic;
    }
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    out->message.progress = &out->progress_message;
    out->kind = SESSION_OUT_PROGRESS;
    out->progress = *progress;
    return true;
}

bool session_core_next(const struct session_core *core, const struct session_progress *progress,
                       int64_t now_ms, struct session_out *out)
{
    if (core->over || !core->up || core->pins == NULL)
        return false;
    cairn__v1__trainer_message__init(&out->message);
    if (!core->hello_said)
        return out_hello(core, progress, out);
    if (session_core_ended(core)) {
        const bool spare = session_core_is_spare(core);
        return out_fault(core, out) || (spare && out_ready(core, out)) ||
               out_rows(core, now_ms, out) || session_out_parked(core, out) ||
               out_finished(core, out) || out_progress(core, progress, now_ms, out);
    }
    return out_fault(core, out) || out_meet(core, out) || out_ready(core, out) ||
           out_rows(core, now_ms, out) || session_out_save(core, now_ms, out) ||
           out_passed(core, out) || out_wanted(core, out) || out_read(core, now_ms, out) ||
           out_finished(core, out) || out_progress(core, progress, now_ms, out);
}

void session_core_sent(struct session_core *core, const struct session_out *out, int64_t now_ms)
{
    core->now_ms = now_ms;
    switch (out->kind) {
    case SESSION_OUT_HELLO:
        core->hello_said = true;
        core->park.said = out->hello.parked != NULL && core->park.state >= SESSION_PARK_PARKED;
        break;
    case SESSION_OUT_FAULT:
        core->fault.said = true;
        core->fault.said_ever = true;
        break;
    case SESSION_OUT_PARKED:
        core->park.said = true;
        break;
    case SESSION_OUT_MEET:
        core->meetings[out->index].said = true;
        break;
    case SESSION_OUT_READY:
        core->ready_said = true;
        break;
    case SESSION_OUT_ROWS:
        if (out->through > core->row_said)
            core->row_said = out->through;
        core->rows_ms = now_ms;
        break;
    case SESSION_OUT_SAVE:
        session_sent_save(core, out, now_ms);
        break;
    case SESSION_OUT_PASSED:
        if (core->announced[out->index].step == out->id)
            core->announced[out->index].said = true;
        break;
    case SESSION_OUT_WANTED:
        core->wanted.said = true;
        break;
    case SESSION_OUT_READ: /* news may have come while it was sent */
        core->read.said = core->read.known && core->read.news.bytes == out->through &&
                          core->read.news.done == (out->state != 0);
        core->read.said_ms = now_ms;
        break;
    case SESSION_OUT_FINISHED:
        core->finished_said = true;
        core->finished_said_ever = true;
        break;
    case SESSION_OUT_PROGRESS:
        core->progress_said = out->progress;
        core->progress_ms = now_ms;
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

static Cairn__V1__PieceRun *piece_run_new(const struct ckpt_piece_run *from)
{
    Cairn__V1__PieceRun *run = calloc(1, sizeof(*run));
    if (run == NULL)
        return NULL;
    cairn__v1__piece_run__init(run);
    run->buffer = from->buffer;
    run->first = from->first;
    run->pieces_per_hash = from->each;
    if (!copy_bytes(&run->xxh3_128, from->hashes, from->count * sizeof(struct ckpt_hash))) {
        free(run);
        return NULL;
    }
    return run;
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
    made->pieces = calloc(report->run_count + 1, sizeof(Cairn__V1__PieceRun *));
    bool whole = file != NULL && made->pieces != NULL &&
                 copy_bytes(&made->xxh3_128, &report->hash, sizeof(report->hash)) &&
                 copy_bytes(&made->scalars_xxh3_128, &report->scalars, sizeof(report->scalars));
    for (uint32_t i = 0; whole && i < report->run_count; i++) {
        made->pieces[i] = piece_run_new(&report->runs[i]);
        whole = made->pieces[i] != NULL;
        made->n_pieces += whole;
    }
    if (!whole) {
        cairn__v1__save_report__free_unpacked(made, NULL);
        return NULL;
    }
    /* A share with more hashes than fit has no file: ckpt_share_of refuses it. */
    CHECK(cairn__v1__save_report__get_packed_size(made) <= LIMIT_REPORT_BYTES);
    return made;
}

/* ---- last words ---- */

/* Returns the newest reported save whose order is below `below`; NULL: none. */
static const struct session_save_record *newest_reported(const struct session_core *core,
                                                         uint64_t below)
{
    const struct session_save_record *newest = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &core->saves[i];
        if (save->state == SESSION_SAVE_REPORTING && save->order < below &&
            (newest == NULL || save->order > newest->order))
            newest = save;
    }
    return newest;
}

/* Newest first, as many as there is room for: agents read no more than LIMIT_LAST_WORDS_BYTES, and
 * the older ones the coordinator has had more time to hear. */
static void add_saves(const struct session_core *core, Cairn__V1__LastWords *words)
{
    size_t room = LIMIT_REPORT_BYTES;
    const struct session_save_record *save = newest_reported(core, UINT64_MAX);
    while (save != NULL) {
        const size_t size = cairn__v1__save_report__get_packed_size(save->report);
        if (size > room)
            return;
        room -= size;
        words->saves[words->n_saves++] = save->report;
        save = newest_reported(core, save->order);
    }
}

/* Adds the metric rows of the steps whose saves are in the last words: a checkpoint's metrics
 * decide whether it is kept. */
static void add_rows(const struct session_core *core, struct session_out *out,
                     Cairn__V1__LastWords *words)
{
    words->rows = out->row_list;
    for (uint64_t n = core->row_first; core->rows != NULL && n < core->row_end; n++) {
        const struct session_row_record *record = &core->rows[n % LIMIT_METRIC_ROWS];
        bool saved = false;
        for (size_t i = 0; i < words->n_saves; i++)
            saved = saved || words->saves[i]->step == record->row.step;
        if (saved && words->n_rows < SESSION_SAVES_MAX)
            fill_row(core, record, (int)words->n_rows++, out);
    }
}

enum status session_core_last_words(const struct session_core *core,
                                    const struct session_progress *progress, uint8_t **out,
                                    size_t *out_size)
{
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    Cairn__V1__SaveReport *saves[SESSION_SAVES_MAX];
    words.job = unconst(core->job);
    words.generation = core->generation;
    words.rank = core->number;
    words.step = progress->step;
    words.phase = unconst(progress->phase);
    words.finished = core->finished;
    words.saves = saves;
    add_saves(core, &words);
    auto_free struct session_out *parts = malloc(sizeof *parts);
    if (parts == NULL)
        return ST_NO_MEMORY;
    add_rows(core, parts, &words);
    if (core->fault.known) {
        fault.kind = core->fault.kind;
        fault.message = unconst(core->fault.why.text);
        fault.phase = unconst(core->fault.phase);
        fault.ranks = unconst(core->fault.ranks);
        fault.n_ranks = core->fault.rank_count;
        fault.step = core->fault.step;
        fault.of_node = core->fault.of_node;
        fault.shard = core->fault.shard;
        fault.good_step = core->fault.good_step;
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

#include "tests/unit/trainer/tape/stage_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

#define ACTIONS_MAX (3 * STAGE_MICROS)

struct mail {
    void *data[PLAN_GRADIENTS_MAX];
    struct plan_border border; /* bytes as the sender had them */
};

enum kind { FORWARD, BACKWARD, PARAMS, KINDS }; /* PARAMS: the second half, BACKWARD the first */

struct action {
    enum kind kind;
    int micro;
};

struct stage {
    struct plan *plan;
    float *lane;
    int stashes;
    bool split;
    struct action actions[ACTIONS_MAX];
    int action_count;
    int done[KINDS];
    int next;                          /* action */
    struct mail sent[2][STAGE_MICROS]; /* to the next stage; back to the one before */
};

struct run {
    struct training *t;
    struct stage_inputs *inputs;
    struct stage stages[STAGE_RUNS_MAX];
    int count;
    /* The values that were called final: */
    float *vector; /* as it was then */
    int *covered;  /* times */
    float *lane_now;
    size_t final; /* of the pass */
    const float *device_lane;
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    assert_non_null(memory);
    return memory;
}

/* Between any two memories, and done on return. */
static void copy(const struct training *t, void *to, const void *from, size_t bytes)
{
    assert_int_equal(t->table->vector.copy(t->backend, to, from, bytes, t->stream), ST_OK);
    assert_int_equal(t->table->stream_sync(t->backend, t->stream), ST_OK);
}

static void *copied(const void *from, size_t bytes)
{
    void *memory = zeroed(bytes, 1);
    memcpy(memory, from, bytes);
    return memory;
}

/* ---- inputs ---- */

void stage_inputs_open(struct stage_inputs *inputs, struct training *t)
{
    const struct training_options *o = &t->options;
    const int64_t pixels = o->micro * o->channels * o->side * o->side;
    memset(inputs, 0, sizeof(*inputs));
    inputs->label_bytes = (size_t)t->rows * sizeof(int32_t);
    inputs->x_bytes = t->tokens != NULL ? inputs->label_bytes : (size_t)pixels * sizeof(float);
    inputs->draw_bytes = (size_t)(OP_DRAW_SAMPLES + o->micro) * sizeof(uint32_t);
    for (int k = 0; k < STAGE_MICROS; k++) {
        training_fill(t, (uint32_t)(k * o->micro));
        inputs->x[k] = copied(t->x, inputs->x_bytes);
        inputs->labels[k] = copied(t->labels, inputs->label_bytes);
        inputs->draw[k] = copied(t->draw, inputs->draw_bytes);
    }
    assert_int_equal(t->table->alloc(t->backend, inputs->x_bytes, &inputs->in_x), ST_OK);
    assert_int_equal(t->table->alloc(t->backend, inputs->label_bytes, &inputs->in_labels), ST_OK);
    assert_int_equal(t->table->alloc(t->backend, inputs->draw_bytes, &inputs->in_draw), ST_OK);
}

void stage_inputs_close(struct stage_inputs *inputs, struct training *t)
{
    for (int k = 0; k < STAGE_MICROS; k++) {
        free(inputs->x[k]);
        free(inputs->labels[k]);
        free(inputs->draw[k]);
    }
    t->table->free(t->backend, inputs->in_x);
    t->table->free(t->backend, inputs->in_labels);
    t->table->free(t->backend, inputs->in_draw);
}

/* One set of pointers for all micro-batches: a recording must tell them apart by their stashes. */
static struct plan_call call_of(const struct training *t, struct stage_inputs *inputs, int micro)
{
    copy(t, inputs->in_x, inputs->x[micro], inputs->x_bytes);
    copy(t, inputs->in_labels, inputs->labels[micro], inputs->label_bytes);
    copy(t, inputs->in_draw, inputs->draw[micro], inputs->draw_bytes);
    return (struct plan_call){ .inputs = { inputs->in_x, inputs->in_labels },
                               .draw = inputs->in_draw,
                               .params = optimizer_params(t->optimizer),
                               .stats = optimizer_stats(t->optimizer),
                               .lane = t->lane,
                               .micro = (uint32_t)micro };
}

float *stage_whole_lane(struct training *t, struct stage_inputs *inputs)
{
    for (int k = 0; k < STAGE_MICROS; k++) {
        struct plan_call call = call_of(t, inputs, k);
        assert_int_equal(plan_forward(t->plan, &call), ST_OK);
        assert_int_equal(plan_backward(t->plan, &call, NULL, NULL), ST_OK);
    }
    float *lane = zeroed(t->layout.count, sizeof(*lane));
    copy(t, lane, t->lane, t->layout.count * sizeof(*lane));
    return lane;
}

/* ---- schedules ---- */

static int stashes_of(int stages, int stage, enum stage_order order)
{
    const int busy = stages - stage;
    return order != STAGE_1F1B || busy > STAGE_MICROS ? STAGE_MICROS : busy;
}

static void add_action(struct stage *stage, enum kind kind)
{
    stage->actions[stage->action_count++] = (struct action){ kind, stage->done[kind]++ };
}

/* So many forward, then one backward for each forward. Second halves come `late` first ones after
 * their own, or at the end. */
static void fill_actions(struct stage *stage, int ahead, int late)
{
    while (stage->done[BACKWARD] < STAGE_MICROS) {
        const bool full = stage->done[FORWARD] - stage->done[BACKWARD] == ahead;
        if (!full && stage->done[FORWARD] < STAGE_MICROS) {
            add_action(stage, FORWARD);
            continue;
        }
        add_action(stage, BACKWARD);
        if (stage->split && stage->done[BACKWARD] > late)
            add_action(stage, PARAMS);
    }
    while (stage->split && stage->done[PARAMS] < STAGE_MICROS)
        add_action(stage, PARAMS);
}

struct plan_options stage_options(struct training *t, const int *first, int stages, int stage,
                                  enum stage_order order)
{
    const struct training_options *o = &t->options;
    return (struct plan_options){ .table = t->table,
                                  .backend = t->backend,
                                  .stream = t->stream,
                                  .begin = first[stage],
                                  .end = stage + 1 < stages ? first[stage + 1] : 0,
                                  .stashes = stashes_of(stages, stage, order),
                                  .batch = o->micro,
                                  .training = true,
                                  .split = order == STAGE_SPLIT,
                                  .math = o->math,
                                  .amp = o->amp,
                                  .recompute = o->recompute,
                                  .graphs = o->graphs,
                                  .bucket_begin = t->bucket_begin,
                                  .bucket_count = t->bucket_count,
                                  .poison = true };
}

/* ---- messages ---- */

static void free_mail(struct mail *mail)
{
    for (int i = 0; i < PLAN_GRADIENTS_MAX; i++)
        free(mail->data[i]);
}

static void fetch(const struct run *run, struct mail *mail, const struct plan *plan,
                  enum plan_side side, enum plan_direction direction, int stash)
{
    plan_border(plan, side, direction, stash, &mail->border);
    for (int i = 0; i < mail->border.count; i++) {
        const size_t bytes = mail->border.tensor[i].bytes;
        assert_true(bytes > 0);
        free(mail->data[i]);
        mail->data[i] = zeroed(bytes, 1);
        copy(run->t, mail->data[i], mail->border.tensor[i].data, bytes);
    }
}

static void deliver(const struct run *run, const struct mail *mail, const struct plan *plan,
                    enum plan_side side, enum plan_direction direction, int stash)
{
    struct plan_border to;
    plan_border(plan, side, direction, stash, &to);
    assert_int_equal(to.count, mail->border.count);
    for (int i = 0; i < to.count; i++) {
        assert_int_equal(to.tensor[i].bytes, mail->border.tensor[i].bytes);
        copy(run->t, to.tensor[i].data, mail->data[i], to.tensor[i].bytes);
    }
}

/* What was sent lies there still. */
static void assert_unchanged(const struct run *run, const struct mail *mail)
{
    for (int i = 0; i < mail->border.count; i++) {
        const size_t bytes = mail->border.tensor[i].bytes;
        void *now = zeroed(bytes, 1);
        copy(run->t, now, mail->border.tensor[i].data, bytes);
        assert_memory_equal(now, mail->data[i], bytes);
        free(now);
    }
}

/* Overwrites this memory, as if the next data for it were already on their way. */
static void scribble(const struct run *run, const struct plan *plan, int stash)
{
    struct plan_border border;
    plan_border(plan, PLAN_AFTER, PLAN_BACKWARD, stash, &border);
    for (int i = 0; i < border.count; i++) {
        void *noise = zeroed(border.tensor[i].bytes, 1);
        memset(noise, 0x7F, border.tensor[i].bytes);
        copy(run->t, border.tensor[i].data, noise, border.tensor[i].bytes);
        free(noise);
    }
}

/* The stash is about to be used again, or the run is over. */
static void assert_still_sent(const struct run *run, struct stage *stage, int micro)
{
    if (micro < 0 || stage->split) /* looked at before the second half */
        return;
    assert_unchanged(run, &stage->sent[1][micro]);
    struct plan_border back;
    plan_border(stage->plan, PLAN_AFTER, PLAN_BACKWARD, 0, &back);
    if (back.count == 0)
        assert_unchanged(run, &stage->sent[0][micro]);
}

/* ---- runs ---- */

static void on_final(void *arg, size_t first, size_t count)
{
    struct run *run = arg;
    assert_true(count > 0);
    assert_true(first + count <= run->final);
    run->final = first;
    copy(run->t, run->vector + first, run->device_lane + first, count * sizeof(float));
    for (size_t i = first; i < first + count; i++)
        run->covered[i]++;
}

static bool is_ready(const struct run *run, int s, struct action action)
{
    if (action.kind == FORWARD)
        return s == 0 || run->stages[s - 1].done[FORWARD] > action.micro;
    if (action.kind == PARAMS)
        return true;
    return s + 1 == run->count || run->stages[s + 1].done[BACKWARD] > action.micro;
}

static void run_forward(struct run *run, int s, int micro)
{
    struct stage *stage = &run->stages[s];
    struct plan_call call = call_of(run->t, run->inputs, micro);
    call.lane = stage->lane;
    call.stash = micro % stage->stashes;
    assert_still_sent(run, stage, micro - stage->stashes);
    if (s > 0) {
        deliver(run, &run->stages[s - 1].sent[0][micro], stage->plan, PLAN_BEFORE, PLAN_FORWARD,
                call.stash);
    }
    assert_int_equal(plan_forward(stage->plan, &call), ST_OK);
    fetch(run, &stage->sent[0][micro], stage->plan, PLAN_AFTER, PLAN_FORWARD, call.stash);
    scribble(run, stage->plan, call.stash);
}

/* Into the lane: a whole backward, or its second half. */
static void run_gradients(struct run *run, int s, int micro)
{
    struct stage *stage = &run->stages[s];
    struct plan_call call = call_of(run->t, run->inputs, micro);
    const plan_final_fn final = micro == STAGE_MICROS - 1 ? on_final : NULL;
    call.lane = stage->lane;
    call.stash = micro % stage->stashes;
    run->final = run->t->layout.count;
    run->device_lane = stage->lane;
    if (stage->split) {
        assert_unchanged(run, &stage->sent[1][micro]);
        assert_int_equal(plan_backward_params(stage->plan, &call, final, run), ST_OK);
    } else {
        assert_int_equal(plan_backward(stage->plan, &call, final, run), ST_OK);
    }
}

static void run_backward(struct run *run, int s, int micro)
{
    struct stage *stage = &run->stages[s];
    struct plan_call call = call_of(run->t, run->inputs, micro);
    call.lane = NULL;
    call.stash = micro % stage->stashes;
    assert_unchanged(run, &stage->sent[0][micro]);
    if (s + 1 < run->count) {
        deliver(run, &run->stages[s + 1].sent[1][micro], stage->plan, PLAN_AFTER, PLAN_BACKWARD,
                call.stash);
    }
    if (stage->split)
        assert_int_equal(plan_backward_inputs(stage->plan, &call), ST_OK);
    else
        run_gradients(run, s, micro);
    fetch(run, &stage->sent[1][micro], stage->plan, PLAN_BEFORE, PLAN_BACKWARD, call.stash);
}

/* Each stage takes its next action as soon as what that needs has come. */
static void run_round(struct run *run)
{
    int left = 0;
    for (int s = 0; s < run->count; s++) {
        struct stage *stage = &run->stages[s];
        memset(stage->done, 0, sizeof(stage->done));
        stage->next = 0;
        left += stage->action_count;
    }
    while (left > 0) {
        const int before = left;
        for (int s = 0; s < run->count; s++) {
            struct stage *stage = &run->stages[s];
            if (stage->next == stage->action_count ||
                !is_ready(run, s, stage->actions[stage->next]))
                continue;
            const struct action action = stage->actions[stage->next++];
            if (action.kind == FORWARD)
                run_forward(run, s, action.micro);
            else if (action.kind == BACKWARD)
                run_backward(run, s, action.micro);
            else
                run_gradients(run, s, action.micro);
            stage->done[action.kind]++;
            left--;
        }
        assert_true(left < before);
    }
    for (int s = 0; s < run->count; s++) {
        for (int k = STAGE_MICROS - run->stages[s].stashes; k < STAGE_MICROS; k++)
            assert_still_sent(run, &run->stages[s], k);
    }
}

/* Each element once, but for the number of micro-batches, which each stage has. */
static void assert_covered(struct run *run)
{
    const struct lane_layout *layout = &run->t->layout;
    size_t wrong = 0;
    for (size_t i = 0; i < layout->count; i++)
        wrong += run->covered[i] != (i == layout->micro_at ? run->count : 1);
    assert_int_equal(wrong, 0);
    memset(run->covered, 0, layout->count * sizeof(*run->covered));
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* What a stage called final hasn't changed since; what it didn't, it hasn't touched. */
static void assert_parts(struct run *run, const float *whole)
{
    const size_t count = run->t->layout.count;
    assert_covered(run);
    assert_memory_equal(run->vector, whole, count * sizeof(float));
    for (int s = 0; s < run->count; s++) {
        size_t wrong = 0;
        copy(run->t, run->lane_now, run->stages[s].lane, count * sizeof(float));
        for (size_t i = 0; i < count; i++) {
            if (isnan(run->lane_now[i]))
                continue;
            wrong += bits_of(run->lane_now[i]) != bits_of(whole[i]);
            run->covered[i]++;
        }
        assert_int_equal(wrong, 0);
    }
    assert_covered(run);
}

static void open_run(struct run *run, struct training *t, const int *first, int stages,
                     enum stage_order order)
{
    const size_t count = t->layout.count;
    run->t = t;
    run->count = stages;
    run->vector = zeroed(count, sizeof(float));
    run->lane_now = zeroed(count, sizeof(float));
    run->covered = zeroed(count, sizeof(int));
    for (int s = 0; s < stages; s++) {
        struct stage *stage = &run->stages[s];
        const struct plan_options options = stage_options(t, first, stages, s, order);
        stage->stashes = options.stashes;
        stage->split = options.split;
        fill_actions(stage, order == STAGE_SPLIT ? stages - s : stage->stashes, s + 1);
        assert_int_equal(plan_new(t->tape, &options, &stage->plan), ST_OK);
        assert_int_equal(plan_refresh(stage->plan, optimizer_params(t->optimizer)), ST_OK);
        assert_int_equal(t->table->alloc(t->backend, count * sizeof(float), (void **)&stage->lane),
                         ST_OK);
    }
}

static void close_run(struct run *run)
{
    for (int s = 0; s < run->count; s++) {
        struct stage *stage = &run->stages[s];
        plan_free(stage->plan);
        run->t->table->free(run->t->backend, stage->lane);
        for (int k = 0; k < STAGE_MICROS; k++) {
            free_mail(&stage->sent[0][k]);
            free_mail(&stage->sent[1][k]);
        }
    }
    free(run->vector);
    free(run->lane_now);
    free(run->covered);
}

void stage_assert_lane(struct training *t, struct stage_inputs *inputs, const int *first,
                       int stages, enum stage_order order, int rounds, const float *whole)
{
    struct run run = { .inputs = inputs };
    open_run(&run, t, first, stages, order);
    for (int round = 0; round < rounds; round++) {
        for (int s = 0; s < stages; s++) {
            assert_int_equal(t->table->vector.fill(t->backend, run.stages[s].lane, NAN,
                                                   t->layout.count, t->stream),
                             ST_OK);
        }
        run_round(&run);
        assert_parts(&run, whole);
    }
    close_run(&run);
}

/* ---- evaluation ---- */

struct sums {
    double loss;
    int64_t correct, counted;
};

static void want_sums(struct plan_call *call, struct sums *sums)
{
    call->lane = NULL;
    call->loss_sum = &sums->loss;
    call->correct = &sums->correct;
    call->counted = &sums->counted;
}

void stage_assert_eval(struct training *t, struct stage_inputs *inputs, const int *first,
                       int stages)
{
    struct sums whole = { 0 }, cut = { 0 };
    assert_int_equal(plan_refresh(t->eval_plan, optimizer_params(t->optimizer)), ST_OK);
    for (int k = 0; k < STAGE_MICROS; k++) {
        struct plan_call call = call_of(t, inputs, k);
        want_sums(&call, &whole);
        assert_int_equal(plan_forward(t->eval_plan, &call), ST_OK);
    }
    const struct run run = { .t = t };
    struct mail mails[STAGE_MICROS] = { 0 };
    for (int s = 0; s < stages; s++) { /* a stage after the other: all may be in flight */
        struct plan *plan = NULL, *trains = NULL;
        struct plan_options options = stage_options(t, first, stages, s, STAGE_1F1B);
        assert_int_equal(plan_new(t->tape, &options, &trains), ST_OK);
        options.training = false;
        options.stashes = STAGE_MICROS;
        options.share = trains; /* where four of these fit into its stashes */
        assert_int_equal(plan_new(t->tape, &options, &plan), ST_OK);
        assert_int_equal(plan_refresh(plan, optimizer_params(t->optimizer)), ST_OK);
        for (int k = 0; k < STAGE_MICROS; k++) {
            struct plan_call call = call_of(t, inputs, k);
            call.lane = NULL;
            call.stash = k;
            if (s + 1 == stages)
                want_sums(&call, &cut);
            if (s > 0)
                deliver(&run, &mails[k], plan, PLAN_BEFORE, PLAN_FORWARD, k);
            assert_int_equal(plan_forward(plan, &call), ST_OK);
        }
        for (int k = 0; k < STAGE_MICROS; k++) {
            struct plan_border border;
            plan_border(plan, PLAN_AFTER, PLAN_BACKWARD, k, &border);
            assert_int_equal(border.count, 0);
            fetch(&run, &mails[k], plan, PLAN_AFTER, PLAN_FORWARD, k);
        }
        plan_free(plan);
        plan_free(trains);
    }
    for (int k = 0; k < STAGE_MICROS; k++)
        free_mail(&mails[k]);
    assert_true(whole.counted > 0);
    assert_int_equal(whole.counted, cut.counted);
    assert_int_equal(whole.correct, cut.correct);
    assert_memory_equal(&whole.loss, &cut.loss, sizeof(whole.loss));
}

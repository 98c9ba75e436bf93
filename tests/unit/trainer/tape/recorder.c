#include "tests/unit/trainer/tape/recorder.h"

#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/noted_kernels.h"

#define CALLS_MAX 8192

struct recorder recorder;

enum call {
    CALL_FORWARD,
    CALL_BACKWARD,
    CALL_ADD,
    CALL_COPY,
    CALL_FILL,
    CALL_SUM,
    CALL_REFORMAT,
    CALL_REFRESH,
};

/* One call, with everything that it was given by value. */
struct recorded {
    enum call what;
    enum op op;
    struct kernel *kernel;
    struct op_buffers buffers;
    const void *x, *y;
    void *out;
    size_t size;
    float value;
    struct tensor from, to;
};

static struct {
    struct recorded calls[CALLS_MAX];
    int call_count;
    int graph_begin[RECORDER_GRAPHS_MAX], graph_end[RECORDER_GRAPHS_MAX];
} tape;

static const struct backend_table *cpu(void)
{
    return backend_cpu();
}

static enum status keep(const struct recorded *call)
{
    assert_true(tape.call_count < CALLS_MAX);
    tape.calls[tape.call_count++] = *call;
    return ST_OK;
}

static enum status recorder_forward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, struct stream *stream)
{
    struct recorded call = {
        .what = CALL_FORWARD, .op = noted_op(kernel), .kernel = kernel, .buffers = *buffers
    };
    recorder.ran += !recorder.recording;
    recorder.gave += buffers->din[0] != NULL && buffers->din[0] == buffers->in[0];
    return recorder.recording ? keep(&call)
                              : cpu()->op[call.op].forward(backend, kernel, buffers, stream);
}

static enum status recorder_backward(struct backend *backend, struct kernel *kernel,
                                     const struct op_buffers *buffers, struct stream *stream)
{
    struct recorded call = {
        .what = CALL_BACKWARD, .op = noted_op(kernel), .kernel = kernel, .buffers = *buffers
    };
    recorder.ran += !recorder.recording;
    return recorder.recording ? keep(&call)
                              : cpu()->op[call.op].backward(backend, kernel, buffers, stream);
}

static enum status recorder_add(struct backend *b, float *out, const float *x, const float *y,
                                size_t n, struct stream *s)
{
    struct recorded call = { .what = CALL_ADD, .out = out, .x = x, .y = y, .size = n };
    return recorder.recording ? keep(&call) : cpu()->vector.add(b, out, x, y, n, s);
}

static enum status recorder_copy(struct backend *b, void *to, const void *from, size_t bytes,
                                 struct stream *s)
{
    struct recorded call = { .what = CALL_COPY, .out = to, .x = from, .size = bytes };
    return recorder.recording ? keep(&call) : cpu()->vector.copy(b, to, from, bytes, s);
}

static enum status recorder_fill(struct backend *b, float *out, float value, size_t n,
                                 struct stream *s)
{
    struct recorded call = { .what = CALL_FILL, .out = out, .value = value, .size = n };
    return recorder.recording ? keep(&call) : cpu()->vector.fill(b, out, value, n, s);
}

static enum status recorder_sum(struct backend *b, const struct tensor *tensor, const void *x,
                                const void *y, void *out, struct stream *s)
{
    struct recorded call = { .what = CALL_SUM, .to = *tensor, .x = x, .y = y, .out = out };
    return recorder.recording ? keep(&call) : cpu()->sum(b, tensor, x, y, out, s);
}

static enum status recorder_reformat(struct backend *b, const struct tensor *from, const void *in,
                                     const struct tensor *to, void *out, struct stream *s)
{
    struct recorded call = { .what = CALL_REFORMAT, .from = *from, .x = in, .to = *to, .out = out };
    return recorder.recording ? keep(&call) : cpu()->reformat(b, from, in, to, out, s);
}

static enum status recorder_refresh(struct backend *b, struct kernel *kernel,
                                    const float *const param[OP_PARAM_MAX], void *cache,
                                    struct stream *s)
{
    struct recorded call = { .what = CALL_REFRESH,
                             .kernel = kernel,
                             .buffers = { .param = { param[0], param[1] } },
                             .out = cache };
    recorder.refreshed += !recorder.recording;
    return recorder.recording ? keep(&call) : cpu()->refresh(b, kernel, param, cache, s);
}

static enum status recorder_sync(struct backend *b, struct stream *s)
{
    assert_false(recorder.recording); /* a stream that records can't be waited for */
    return cpu()->stream_sync(b, s);
}

static enum status recorder_capture_begin(struct backend *b, struct stream *s)
{
    (void)b;
    (void)s;
    assert_false(recorder.recording);
    if (recorder.graph_count == recorder.room)
        return ST_FULL;
    assert_true(recorder.graph_count < RECORDER_GRAPHS_MAX);
    tape.graph_begin[recorder.graph_count] = tape.call_count;
    recorder.recording = true;
    return ST_OK;
}

static enum status recorder_capture_end(struct backend *b, struct stream *s, int *out_graph)
{
    (void)b;
    (void)s;
    assert_true(recorder.recording);
    recorder.recording = false;
    tape.graph_end[recorder.graph_count] = tape.call_count;
    *out_graph = recorder.graph_count++;
    return ST_OK;
}

static enum status run_recorded(struct backend *b, const struct recorded *c, struct stream *s)
{
    switch (c->what) {
    case CALL_FORWARD:
        return cpu()->op[c->op].forward(b, c->kernel, &c->buffers, s);
    case CALL_BACKWARD:
        return cpu()->op[c->op].backward(b, c->kernel, &c->buffers, s);
    case CALL_ADD:
        return cpu()->vector.add(b, c->out, c->x, c->y, c->size, s);
    case CALL_COPY:
        return cpu()->vector.copy(b, c->out, c->x, c->size, s);
    case CALL_FILL:
        return cpu()->vector.fill(b, c->out, c->value, c->size, s);
    case CALL_SUM:
        return cpu()->sum(b, &c->to, c->x, c->y, c->out, s);
    case CALL_REFORMAT:
        return cpu()->reformat(b, &c->from, c->x, &c->to, c->out, s);
    case CALL_REFRESH:
        return cpu()->refresh(b, c->kernel, c->buffers.param, c->out, s);
    }
    return ST_INVALID;
}

static enum status recorder_replay(struct backend *b, int graph, struct stream *s)
{
    assert_false(recorder.recording);
    assert_in_range(graph, 0, recorder.graph_count - 1);
    recorder.replays++;
    for (int i = tape.graph_begin[graph]; i < tape.graph_end[graph]; i++) {
        enum status st = run_recorded(b, &tape.calls[i], s);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

const struct backend_table *recorder_open(int room)
{
    memset(&recorder, 0, sizeof(recorder));
    memset(&tape, 0, sizeof(tape));
    recorder.room = room;
    recorder.table = *cpu();
    noted_clear();
    for (int op = 0; op < OP_COUNT; op++) {
        recorder.table.op[op] = (struct op_table){ .prepare = noted_prepare,
                                                   .forward = recorder_forward,
                                                   .backward = recorder_backward };
    }
    recorder.table.vector.add = recorder_add;
    recorder.table.vector.copy = recorder_copy;
    recorder.table.vector.fill = recorder_fill;
    recorder.table.sum = recorder_sum;
    recorder.table.reformat = recorder_reformat;
    recorder.table.refresh = recorder_refresh;
    recorder.table.stream_sync = recorder_sync;
    recorder.table.capture_begin = recorder_capture_begin;
    recorder.table.capture_end = recorder_capture_end;
    recorder.table.replay = recorder_replay;
    return &recorder.table;
}

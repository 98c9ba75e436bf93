/*
 * Memory of a device: plan and optimizer on a backend whose memory the host can't touch. It is the
 * CPU's behind a fence that only the backend's own calls open.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/test.h"
#include "tests/unit/trainer/noted_kernels.h"
#include "tests/unit/trainer/training.h"

#define FENCED_MAX 64
#define PAGE       4096

static struct {
    struct backend_table table;
    void *memory[FENCED_MAX];
    size_t size[FENCED_MAX];
    int count;
    int depth; /* of calls into the backend */
    int syncs;
} fence;

static const struct backend_table *cpu(void)
{
    return backend_cpu();
}

static void set_fence(int access)
{
    for (int i = 0; i < fence.count; i++)
        assert_int_equal(mprotect(fence.memory[i], fence.size[i], access), 0);
}

static void enter(void)
{
    if (fence.depth++ == 0)
        set_fence(PROT_READ | PROT_WRITE);
}

static enum status leave(enum status st)
{
    if (--fence.depth == 0)
        set_fence(PROT_NONE);
    return st;
}

static enum status fenced_alloc(struct backend *b, size_t bytes, void **out)
{
    (void)b;
    assert_true(fence.count < FENCED_MAX);
    size_t size = (bytes + PAGE) / PAGE * PAGE;
    void *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ST_NO_MEMORY;
    fence.memory[fence.count] = memory;
    fence.size[fence.count++] = size;
    *out = memory;
    return ST_OK;
}

static void fenced_free(struct backend *b, void *memory)
{
    (void)b;
    int i = 0;
    while (fence.memory[i] != memory)
        i++;
    assert_true(i < fence.count);
    assert_int_equal(munmap(memory, fence.size[i]), 0);
    fence.count--;
    fence.memory[i] = fence.memory[fence.count];
    fence.size[i] = fence.size[fence.count];
}

static enum status fenced_forward(struct backend *b, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *s)
{
    enter();
    return leave(cpu()->op[noted_op(kernel)].forward(b, kernel, buffers, s));
}

static enum status fenced_backward(struct backend *b, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *s)
{
    enter();
    return leave(cpu()->op[noted_op(kernel)].backward(b, kernel, buffers, s));
}

static enum status fenced_add(struct backend *b, float *out, const float *x, const float *y,
                              size_t n, struct stream *s)
{
    enter();
    return leave(cpu()->vector.add(b, out, x, y, n, s));
}

static enum status fenced_copy(struct backend *b, void *to, const void *from, size_t bytes,
                               struct stream *s)
{
    enter();
    return leave(cpu()->vector.copy(b, to, from, bytes, s));
}

static enum status fenced_fill(struct backend *b, float *out, float value, size_t n,
                               struct stream *s)
{
    enter();
    return leave(cpu()->vector.fill(b, out, value, n, s));
}

static enum status fenced_square_sums(struct backend *b, double *out, const float *x,
                                      const uint64_t *begin, size_t n, struct stream *s)
{
    enter();
    return leave(cpu()->vector.square_sums(b, out, x, begin, n, s));
}

static enum status fenced_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                              size_t n, const struct sgd_args *args, struct stream *s)
{
    enter();
    return leave(cpu()->vector.sgd(b, param, momentum, grad, n, args, s));
}

static enum status fenced_adamw(struct backend *b, float *param, float *m, float *v,
                                const float *grad, size_t n, const struct adamw_args *args,
                                struct stream *s)
{
    enter();
    return leave(cpu()->vector.adamw(b, param, m, v, grad, n, args, s));
}

static enum status fenced_sum(struct backend *b, const struct tensor *tensor, const void *x,
                              const void *y, void *out, struct stream *s)
{
    enter();
    return leave(cpu()->sum(b, tensor, x, y, out, s));
}

static enum status fenced_reformat(struct backend *b, const struct tensor *from, const void *in,
                                   const struct tensor *to, void *out, struct stream *s)
{
    enter();
    return leave(cpu()->reformat(b, from, in, to, out, s));
}

static enum status fenced_refresh(struct backend *b, struct kernel *kernel,
                                  const float *const param[OP_PARAM_MAX], void *cache,
                                  struct stream *s)
{
    enter();
    return leave(cpu()->refresh(b, kernel, param, cache, s));
}

static enum status fenced_sync(struct backend *b, struct stream *s)
{
    fence.syncs++;
    return cpu()->stream_sync(b, s);
}

static const struct backend_table *fenced(void)
{
    memset(&fence, 0, sizeof(fence));
    fence.table = *cpu();
    fence.table.host_memory = false;
    fence.table.alloc = fenced_alloc;
    fence.table.free = fenced_free;
    noted_clear();
    for (int op = 0; op < OP_COUNT; op++) {
        fence.table.op[op] = (struct op_table){ .prepare = noted_prepare,
                                                .forward = fenced_forward,
                                                .backward = fenced_backward };
    }
    fence.table.vector.add = fenced_add;
    fence.table.vector.copy = fenced_copy;
    fence.table.vector.fill = fenced_fill;
    fence.table.vector.square_sums = fenced_square_sums;
    fence.table.vector.sgd = fenced_sgd;
    fence.table.vector.adamw = fenced_adamw;
    fence.table.sum = fenced_sum;
    fence.table.reformat = fenced_reformat;
    fence.table.refresh = fenced_refresh;
    fence.table.stream_sync = fenced_sync;
    return &fence.table;
}

/* ---- cases ---- */

struct outcome {
    float *params;
    size_t bytes;
    double loss, eval;
};

static void open_case(struct training *t, const char *arch, const struct backend_table *table)
{
    struct training_options options = {
        .arch = arch,
        .side = 8,
        .hidden = 16,
        .layers = 2,
        .heads = 2,
        .embed = 32,
        .context = 8,
        .vocab = 31,
        .dropout = 0.1f,
        .micro = 2,
        .seed = 7,
        .table = table,
        .optimizer = { .kind = JOBSPEC_OPTIMIZER_ADAMW,
                       .beta1 = 0.9f,
                       .beta2 = 0.99f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .clip_norm = 1,
                       .no_decay = TAPE_NORM | TAPE_BIAS },
    };
    training_open(t, &options);
}

static struct outcome steps(const char *arch, const struct backend_table *table)
{
    struct training t;
    open_case(&t, arch, table);
    struct outcome out = { .bytes = t.layout.param_count * sizeof(float) };
    for (uint32_t step = 0; step < 3; step++)
        out.loss = training_step(&t, step * 8, 2, 2, 1e-3, step + 1).loss;
    out.eval = training_eval(&t);
    out.params = malloc(out.bytes);
    assert_non_null(out.params);
    assert_int_equal(t.table->vector.copy(t.backend, out.params, optimizer_params(t.optimizer),
                                          out.bytes, t.stream),
                     ST_OK);
    training_close(&t);
    return out;
}

static void the_host_never_touches_the_memory_of_a_device(void **state)
{
    (void)state;
    const char *const models[] = { "mlp", "resnet18", "gpt2" };
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct outcome ours = steps(models[i], fenced());
        assert_int_equal(fence.count, 0); /* all was given back */
        struct outcome wanted = steps(models[i], NULL);
        assert_memory_equal(ours.params, wanted.params, wanted.bytes);
        assert_true(ours.loss == wanted.loss);
        assert_true(ours.eval == wanted.eval);
        free(ours.params);
        free(wanted.params);
    }
}

static void a_pass_whose_loss_nobody_wants_to_know_never_waits(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, "gpt2", fenced());
    training_fill(&t, 0);
    training_micro(&t, false); /* copies the inputs, and waits for that */
    struct plan_call call = { .inputs = { t.device_x, t.device_labels },
                              .draw = t.device_draw,
                              .params = optimizer_params(t.optimizer),
                              .lane = t.lane,
                              .micro = 1 };
    int before = fence.syncs;
    assert_int_equal(plan_forward(t.plan, &call), ST_OK);
    assert_int_equal(plan_backward(t.plan, &call, NULL, NULL), ST_OK);
    assert_int_equal(plan_refresh(t.plan, optimizer_params(t.optimizer)), ST_OK);
    assert_int_equal(fence.syncs, before);
    double loss = 0;
    int64_t correct = 0;
    int64_t counted = 0;
    call.loss_sum = &loss;
    call.correct = &correct;
    call.counted = &counted;
    assert_int_equal(plan_forward(t.plan, &call), ST_OK);
    assert_int_equal(fence.syncs, before + 1);
    assert_int_equal(counted, t.rows);
    training_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_never_touches_the_memory_of_a_device),
        cmocka_unit_test(a_pass_whose_loss_nobody_wants_to_know_never_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "bench/checkpoint_state.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

#define SIMULATED ((size_t)4 << 20) /* elements; more are repetitions */
#define ROW       1024              /* elements with one scale of gradients */
#define STEPS     12
#define CHUNK     262144 /* elements: repetitions start at a chunk */
#define FILES_MAX 64

static float normal(uint64_t key, uint32_t i, uint32_t step)
{
    struct rng_counter words = rng_words(key, i, step, 0, 0);
    float u = rng_uniform(words.word[0]), v = rng_uniform(words.word[1]);
    return sqrtf(-2.0f * logf(1.0f - u)) * cosf(6.2831853f * v);
}

/* Adam, with the usual constants, on a gradient that is noise around a small drift. */
static void simulate(struct bench_state *s, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t at = (uint32_t)i, row = (uint32_t)(i / ROW);
        const float scale = 1e-3f * expf(normal(2, row, 0));
        const float drift = 0.3f * normal(3, at, 0);
        float w = 0.02f * normal(1, at, 0), m = 0, v = 0;
        for (uint32_t step = 1; step <= STEPS; step++) {
            const float g = scale * (drift + normal(4, at, step));
            m = 0.9f * m + 0.1f * g;
            v = 0.999f * v + 0.001f * g * g;
            const float mean = m / (1.0f - powf(0.9f, (float)step));
            const float square = v / (1.0f - powf(0.999f, (float)step));
            w -= 3e-4f * (mean / (sqrtf(square) + 1e-8f) + 0.1f * w);
        }
        s->data[0][i] = w;
        s->data[1][i] = m;
        s->data[2][i] = v;
    }
}

static size_t append(float *to, size_t at, size_t room, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return at;
    at += fread(to + at, sizeof(*to), room - at, file);
    (void)fclose(file);
    return at;
}

/* Elements of one kind read from dir/<letter>_*.f32. */
static size_t load(const char *dir, char letter, float *to, size_t room)
{
    char pattern[1024];
    glob_t found = { 0 };
    size_t at = 0;
    (void)snprintf(pattern, sizeof(pattern), "%s/%c_*.f32", dir, letter);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && i < FILES_MAX && at < room; i++)
            at = append(to, at, room, found.gl_pathv[i]);
    }
    globfree(&found);
    return at;
}

static void repeat(float *data, size_t have, size_t count)
{
    for (size_t at = have; at < count; at += have)
        memcpy(data + at, data, (count - at < have ? count - at : have) * sizeof(*data));
}

static void describe(struct bench_state *s)
{
    static const char *const names[] = { "parameters", "adam.m", "adam.v" };
    for (uint32_t i = 0; i < 3; i++) {
        s->buffers[i] =
            (struct ckpt_buffer){ .dtype = CKPT_F32, .count = s->count, .data = s->data[i] };
        (void)snprintf(s->buffers[i].name, sizeof(s->buffers[i].name), "%s", names[i]);
        s->tensors[i] = (struct ckpt_tensor){ .buffer = i, .ndim = 1, .dims = { s->count } };
        (void)snprintf(s->tensors[i].name, sizeof(s->tensors[i].name), "%s/all", names[i]);
    }
    s->state = (struct ckpt_state){
        .job = "bench",
        .generation = 1,
        .buffers = s->buffers,
        .buffer_count = 3,
        .tensors = s->tensors,
        .tensor_count = 3,
        .scalars = { .seed = 17, .step = 1000, .loss_scale = 1 },
    };
}

const char *bench_state_make(struct bench_state *out, const char *dir, size_t count)
{
    *out = (struct bench_state){ .count = count };
    size_t have[3] = { 0 };
    for (int i = 0; i < 3; i++) {
        out->data[i] = malloc(count * sizeof(float));
        if (out->data[i] == NULL)
            return "no memory";
    }
    if (dir == NULL) {
        have[0] = count < SIMULATED ? count : SIMULATED;
        simulate(out, have[0]);
        have[1] = have[2] = have[0];
    }
    for (int i = 0; dir != NULL && i < 3; i++) {
        have[i] = load(dir, "wmv"[i], out -> data[i], count);
        have[i] = have[i] > CHUNK ? have[i] / CHUNK * CHUNK : have[i];
        if (have[i] == 0)
            return "the folder has no w_*.f32, m_*.f32, v_*.f32";
    }
    for (int i = 0; i < 3; i++)
        repeat(out->data[i], have[i], count);
    describe(out);
    return NULL;
}

void bench_state_release(struct bench_state *state)
{
    for (int i = 0; i < 3; i++)
        free(state->data[i]);
}

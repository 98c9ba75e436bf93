/*
 * A program that lets Cairn save its state: logistic regression, the same on each rank, with a
 * position and random numbers of the rank's own. It goes on after a failure where it was, to the
 * same bits; without Cairn it trains from step 0.
 *
 *     cc library.c -lcairn -lm -o library_example        (docs/libcairn.md)
 *     ./library_example STEPS MS_PER_STEP OUTPUT       rank r writes its state to OUTPUT.r
 */
#include <cairn.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INPUTS 1000

struct state {
    double weights[INPUTS]; /* the same on all ranks */
    double momentum[INPUTS];
    uint64_t seen;   /* this rank's own: examples that it has looked at */
    uint64_t random; /* likewise: the state of its random numbers, saved as a blob */
};

static uint64_t draw(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void train_step(struct state *s, uint64_t step)
{
    double input[INPUTS], sum = 0;
    uint64_t example = step; /* an example is a function of the step: ranks needn't talk */
    for (int i = 0; i < INPUTS; i++) {
        input[i] = (double)(draw(&example) >> 11) / (double)(UINT64_C(1) << 53) - 0.5;
        sum += input[i] * s->weights[i];
    }
    const double target = input[0] + input[1] > 0 ? 1 : 0;
    const double error = 1 / (1 + exp(-sum)) - target;
    for (int i = 0; i < INPUTS; i++) {
        s->momentum[i] = 0.9 * s->momentum[i] + error * input[i];
        s->weights[i] -= 0.1 * s->momentum[i];
    }
    s->seen += 1 + draw(&s->random) % 8;
}

/* Ends the program with what the library says, unless status is one of success. */
static int check(struct cairn *c, int status)
{
    if (status >= 0)
        return status;
    fprintf(stderr, "%s\n", cairn_why(c));
    if (c != NULL)
        cairn_fail(c, cairn_why(c));
    exit(1);
}

static void describe(struct cairn *c, struct state *s)
{
    struct cairn_tensor tensors[] = {
        { .name = "weights", .kind = CAIRN_REPLICATED, .data = s->weights },
        { .name = "momentum", .kind = CAIRN_REPLICATED, .data = s->momentum },
        { .name = "seen", .kind = CAIRN_PRIVATE, .data = &s->seen },
    };
    for (int i = 0; i < 2; i++) {
        tensors[i].dtype = CAIRN_F64;
        tensors[i].ndim = 1;
        tensors[i].shape[0] = INPUTS;
    }
    tensors[2].dtype = CAIRN_U64; /* a number: no dimensions */
    check(c, cairn_layout(c, tensors, 3, sizeof(s->random)));
}

/* Gets the state back, and returns the steps that it has finished. A rank that wasn't there when
 * it was saved has nothing of its own. */
static uint64_t restore(struct cairn *c, uint32_t rank, struct state *s)
{
    struct cairn_state *stored = NULL;
    struct cairn_state_info info;
    const int status = cairn_restore(c, &stored);
    if (status == CAIRN_NOT_FOUND)
        return 0;
    check(c, status);
    cairn_state_info(stored, &info);
    check(NULL, cairn_state_read(stored, "weights", 0, NULL, NULL, s->weights));
    check(NULL, cairn_state_read(stored, "momentum", 0, NULL, NULL, s->momentum));
    if (rank < info.ranks) {
        check(NULL, cairn_state_read(stored, "seen", rank, NULL, NULL, &s->seen));
        check(NULL, cairn_state_read_blob(stored, "random", rank, &s->random, sizeof(s->random)));
    }
    cairn_state_close(stored);
    return info.step;
}

/* Saves what is due after a step. Returns whether the program has to end. */
static int save(struct cairn *c, struct state *s, uint64_t finished, int due)
{
    int status = cairn_save_begin(c, finished, NULL);
    while (status != CAIRN_AGAIN) { /* it is late, or saved already */
        check(c, status);
        check(c, cairn_save_blob(c, "random", &s->random, sizeof(s->random)));
        check(c, cairn_save_start(c));
        if (due != CAIRN_DUE_SAVE_AND_EXIT)
            return 0;
        check(c, cairn_save_copied(c));
        status = cairn_finish(c, finished);
        if (status == CAIRN_OK)
            return 1;
        if (status == CAIRN_REFUSED) /* another rank has passed that step */
            return 0;
        if (status == CAIRN_AGAIN) /* it was dropped: once more */
            status = cairn_save_begin(c, finished, NULL);
    }
    return 0;
}

static void write_state(const struct state *s, const char *output, uint32_t rank)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s.%" PRIu32, output, rank);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    for (size_t i = 0; i < sizeof(*s); i++)
        fprintf(file, "%02x", ((const unsigned char *)s)[i]);
    fprintf(file, "\n");
    if (fclose(file) != 0)
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: %s STEPS MS_PER_STEP OUTPUT [LAST]\n", argv[0]);
        return 2;
    }
    const uint64_t last = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
    uint64_t steps = strtoull(argv[1], NULL, 10), ms = strtoull(argv[2], NULL, 10);
    const struct timespec pause = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };
    static struct state s;
    struct cairn *c = NULL;
    struct cairn_info info = { .rank = 0, .size = 1 };
    uint64_t step = 0;
    const int opened =
        cairn_open(&(struct cairn_options){ .client = "library_example", .catch_sigterm = 1 }, &c);
    if (opened != CAIRN_NOT_FOUND) /* else it trains without Cairn */
        check(NULL, opened);
    if (c != NULL)
        cairn_info(c, &info);
    s.random = info.rank + 1;
    if (c != NULL) {
        step = restore(c, info.rank, &s);
        describe(c, &s);
        check(c, cairn_ready(c, step, steps, 0));
    }
    for (int leaves = 0; step < steps && !leaves; step++) {
        nanosleep(&pause, NULL);
        if (c != NULL)
            check(c, cairn_save_copied(c)); /* the state changes now */
        train_step(&s, step);
        printf("step %" PRIu64 "\n", step + 1);
        fflush(stdout);
        if (step + 1 == last && last < steps) { /* as if it were good enough by now */
            if (c != NULL)
                check(c, cairn_last(c, last, "it is good enough"));
            steps = last;
        }
        const int due = c != NULL ? check(c, cairn_step(c, step + 1)) : CAIRN_DUE_NOTHING;
        if (due != CAIRN_DUE_NOTHING)
            leaves = save(c, &s, step + 1, due);
        if (leaves && step + 1 < steps) {
            cairn_close(c);
            return 0;
        }
    }
    write_state(&s, argv[3], info.rank);
    if (c != NULL) {
        int status = cairn_finish(c, steps);
        while (status == CAIRN_AGAIN) {
            save(c, &s, steps, CAIRN_DUE_SAVE);
            status = cairn_finish(c, steps);
        }
        check(c, status);
    }
    cairn_close(c);
    return 0;
}

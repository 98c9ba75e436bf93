/*
 * What TensorBoard's two readers make of a folder of event files (observer/tensorboard/curve.h), as
 * far as curves go: written anew from what they do, not from what we write.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READER_STEPS 150000
#define READER_TAGS  16

enum reader_kind { READER_PYTHON, READER_RUST, READERS };

struct reader_curve {
    char tag[40];
    uint64_t newest;
    uint64_t steps; /* that the next two have room for */
    bool *there;    /* by step */
    float *value;
};

struct events {
    uint32_t files, torn, starts, events;
    uint32_t twice; /* points that one of them shows twice at a step */
    struct reader_curve curve[READERS][READER_TAGS];
};

/* Reads all of a folder; fails the test where a reader would give up. events_free frees it. */
struct events *events_read(const char *folder);
void events_free(struct events *events);

/* Points of a curve; 0: there is no such tag. */
uint32_t events_count(const struct events *events, enum reader_kind kind, const char *tag);
/* The value at a step, which must be there. */
double events_value(const struct events *events, enum reader_kind kind, const char *tag,
                    uint64_t step);
bool events_has(const struct events *events, enum reader_kind kind, const char *tag, uint64_t step);

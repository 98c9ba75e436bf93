/*
 * A small linear on the CUDA backend over the fakes, for tests of the backend's host side.
 */
#pragma once

#include "kernels/backend.h"
#include "tests/test.h"

#define ROWS 3
#define IN   64
#define OUT  8

struct small {
    struct backend *b;
    struct stream *stream;
    struct kernel *kernel;
    struct kernel_info info;
    float *in, *out, *param;
    void *saved, *scratch, *cache;
    struct op_buffers buffers;
};

const struct backend_table *cuda(void);
/* stored: pins, or NULL. */
struct backend *open_cuda(const char *stored);
/* Neither memory nor objects of the fakes. */
void nothing_is_left(void);

struct op_spec small_spec(void);
void small_open(struct small *s, const char *stored);
void small_close(struct small *s);
/* Device memory, the backend's. */
void *small_memory(struct small *s, size_t bytes);
/* Numbers whose sum depends on its order. */
void small_upload(struct small *s, float *to, size_t count, float from);
MUST_CHECK enum status small_forward(struct small *s);
/* Own device code first, then the product. */
MUST_CHECK enum status small_step(struct small *s);
/* Waits. */
void small_download(struct small *s, float out[ROWS * OUT]);

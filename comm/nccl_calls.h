/*
 * The calls of comm_table that enqueue something for NCCL, or wait for it. Inside of comm/nccl.h.
 */
#pragma once

#include "comm/comm.h"

enum status nccl_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                              const struct comm_segment *recv, int64_t timeout_ms);
enum status nccl_all_gather_v(struct comm *comm, const struct comm_segment *segments,
                              int64_t timeout_ms);
enum status nccl_send_to(struct comm *comm, int peer, const void *data, size_t size,
                         int64_t timeout_ms);
enum status nccl_recv_from(struct comm *comm, int peer, void *data, size_t size,
                           int64_t timeout_ms);
enum status nccl_all_reduce_f32(struct comm *comm, float *data, size_t count, int64_t timeout_ms);
enum status nccl_wait(struct comm *comm, int64_t timeout_ms);
enum status nccl_post_begin(struct comm *comm);
enum status nccl_post_send(struct comm *comm, int peer, uint32_t channel, const void *data,
                           size_t size, struct comm_post *out);
enum status nccl_post_recv(struct comm *comm, int peer, uint32_t channel, void *data, size_t size,
                           struct comm_post *out);
enum status nccl_post_end(struct comm *comm, int64_t timeout_ms);
enum status nccl_wait_one(struct comm *comm, const struct comm_post *post, int64_t timeout_ms);

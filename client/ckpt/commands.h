/*
 * The commands of `cairn ckpt`, and `cairn audit`: each prints its result and returns the exit
 * code. What they take and do is said in client/commands.c, as `cairn COMMAND -h` prints it.
 */
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/weights.h"
#include "client/base/client.h"
#include "jobspec/jobspec.h"

enum exit_code cmd_ckpt_ls(struct client *client);
enum exit_code cmd_ckpt_show(struct client *client);
enum exit_code cmd_ckpt_verify(struct client *client);
enum exit_code cmd_ckpt_scrub(struct client *client);
enum exit_code cmd_ckpt_digest(struct client *client);
enum exit_code cmd_ckpt_diff(struct client *client);
enum exit_code cmd_ckpt_export(struct client *client);
enum exit_code cmd_ckpt_import(struct client *client);
enum exit_code cmd_ckpt_rm(struct client *client);
enum exit_code cmd_audit(struct client *client);

/*
 * Writes the config.json that Hugging Face's libraries want beside the weights `file` of a Llama, a
 * ViT or a BERT, which was exported so from reader: what no shape tells. One that is there stays,
 * unless the file replaced another.
 * Says on stderr why it could not.
 */
enum exit_code ckpt_write_config(const struct client *client, const char *file,
                                 const struct jobspec_model *model,
                                 const struct ckpt_reader *reader,
                                 const struct weights_export *options);

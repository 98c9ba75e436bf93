/*
 * Whole jobs that take a second: what tests of the step loop run. What a test needs otherwise it
 * sets over them (struct ranks_job).
 */
#pragma once

static const char tiny_mlp[] =
    "name: test\n"
    "model: {arch: mlp, hidden: 40, classes: 10}\n"
    "data:\n"
    "  train: {format: synthetic, samples: 150}\n"
    "  eval: {format: synthetic, samples: 61}\n"
    "  augment: [crop, flip]\n"
    "train:\n"
    "  duration: 9 steps\n"
    "  global_batch: 24\n"
    "  optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 1e-4}\n"
    "  schedule: {name: cosine, warmup: 2 steps}\n"
    "  clip_norm: 1\n"
    "  seed: 5\n"
    "eval: {every: 4 steps}\n";

static const char tiny_lenet[] = "name: test\n"
                                 "model: {arch: lenet, classes: 10}\n"
                                 "data:\n"
                                 "  train: {format: synthetic, samples: 60}\n"
                                 "  eval: {format: synthetic, samples: 20}\n"
                                 "train:\n"
                                 "  duration: 3 steps\n"
                                 "  global_batch: 12\n"
                                 "  lanes: 4\n"
                                 "  optimizer: {name: adamw, lr: 0.001}\n"
                                 "  seed: 5\n";

static const char tiny_resnet[] = "name: test\n"
                                  "model: {arch: resnet18, classes: 10}\n"
                                  "data:\n"
                                  "  train: {format: synthetic, samples: 40}\n"
                                  "  eval: {format: synthetic, samples: 7}\n"
                                  "train:\n"
                                  "  duration: 3 steps\n"
                                  "  global_batch: 6\n"
                                  "  lanes: 3\n"
                                  "  optimizer: {name: adamw, lr: 0.001}\n"
                                  "  seed: 5\n";

static const char tiny_gpt2[] = "name: test\n"
                                "model: {arch: gpt2, layers: 2, heads: 3, width: 48, context: 24,\n"
                                "        vocab: 97, dropout: 0.1}\n"
                                "data:\n"
                                "  train: {format: synthetic, samples: 100}\n"
                                "  eval: {format: synthetic, samples: 7}\n"
                                "train:\n"
                                "  duration: 4 steps\n"
                                "  global_batch: 12\n"
                                "  optimizer: {name: adamw, lr: 0.001, weight_decay: 0.1,\n"
                                "              no_decay: [bias, norm]}\n"
                                "  clip_norm: 1\n"
                                "  seed: 5\n"
                                "eval: {every: 2 steps}\n";

/*
 * The job file: YAML in, a checked `struct jobspec` out, and back to text. What its keys mean:
 * docs/job.md.
 *
 *     text        →  tree of keys, values   jobspec/yaml: YAML, then each --set
 *     tree        →  struct jobspec             parse.c: value.h and lists.c read, then defaults
 *     keys given  →  what follows of them   resolve.c; what doesn't fit together is a mistake
 *     struct jobspec  →  text                   print.c
 *
 * schema.h has a row per key: path, kind, unit, default, range, whether this version builds it.
 * Parsing reports all mistakes of a file in one go (jobspec/yaml/report.h), each as
 *
 *     FILE:LINE:COLUMN: cause
 *       the line
 *       ^ caret
 *       way out
 *
 * Memory: a job is a value without pointers. What a job has no use for (keys of another model or
 *         optimizer) is zero, so equal jobs are equal bytes. The nodes of its graph come last: who
 *         keeps many jobs keeps jobspec_bytes of each, and doesn't copy such a one as a value.
 * Errors: ST_CONFIG   the errors are in out_errors
 *         ST_INVALID  base_dir isn't absolute
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"
#include "common/status.h"
#include "jobspec/graph/graph.h"
#include "jobspec/words.h"

#define JOBSPEC_ENV_MAX   32 /* settings that a job passes to NCCL */
#define JOBSPEC_ENV_NAME  64
#define JOBSPEC_ENV_VALUE 256

/* The vocabularies of GPT-2, Llama and of bytes: defaults of model.vocab. */
#define JOBSPEC_VOCAB_GPT2  50257
#define JOBSPEC_VOCAB_LLAMA 32000
#define JOBSPEC_VOCAB_BYTES 256

/* `micro_batch: auto` on CPU: the largest divisor of a lane's samples up to this many. */
#define JOBSPEC_AUTO_TOKENS 4096
#define JOBSPEC_AUTO_IMAGES 32
#define JOBSPEC_EVERY_AUTO  INT64_C(-1) /* of checkpoint.memory_every */
#define JOBSPEC_SETS_MAX    256         /* --set of one job */
#define JOBSPEC_SET_BYTES   8192        /* one of them */

/* Bounds of a command. */
#define JOBSPEC_TEXTS_BYTES   8192
#define JOBSPEC_PATTERN_BYTES 256
#define JOBSPEC_CODES_MAX     32
#define JOBSPEC_VARIABLES_MAX 256 /* of its environment */

struct jobspec_duration {
    enum jobspec_unit { JOBSPEC_STEPS, JOBSPEC_EPOCHS, JOBSPEC_MS, JOBSPEC_AUTO } unit;
    double value; /* steps, epochs, milliseconds */
};

struct jobspec_model {
    enum jobspec_arch arch;
    int64_t classes;                /* image models */
    int64_t hidden;                 /* mlp */
    enum jobspec_size size;         /* gpt2; resolved: none, the numbers say it */
    int64_t layers, heads, width;   /* transformers */
    int64_t context, vocab;         /* text models; context: tokens of a sample */
    double dropout;                 /* gpt2, vit, bert */
    int64_t kv_heads, intermediate; /* llama */
    double rope_theta, norm_eps;    /* llama */
    bool tied;                      /* llama: the output's weight is the table of tokens */
    int64_t patch;                  /* vit: side in pixels */
    int64_t mask;                   /* bert: the token that masks others */
    double mask_share;              /* bert: of the tokens that are to be guessed */
    char weights[LIMIT_PATH];       /* safetensors to start from; "" : drawn from the seed */
    int64_t input[3];         /* graph, library: channels, height, width; 0: it reads tokens */
    char library[LIMIT_PATH]; /* library: what makes the graph */
    uint64_t parameters;      /* graph: counted */
};

/*
 * How many steps a duration is: 0 stays 0, anything else is at least one.
 * Errors: ST_CONFIG  it is a time, or too much; or epochs, and steps_per_epoch is 0: there are none
 */
MUST_CHECK enum status jobspec_duration_steps(const struct jobspec_duration *duration,
                                              uint64_t steps_per_epoch, uint64_t *out);

/* True if the model reads tokens, not images. */
bool jobspec_is_text(const struct jobspec_model *model);
/* True if the model cuts images into patches, for 224×224 with three channels rather than 28×28
 * with one: the side of a patch is 8 or more. */
bool jobspec_has_large_patches(const struct jobspec_model *model);

/* How the model is cut: 1 stage, or more. */
struct jobspec_cuts {
    uint32_t stages;
    /* The first node of the tape of each stage. 0 (but for stage 0) if the trainer chooses the
     * cuts, so that stages cost alike; either all are 0, or none is. */
    uint32_t first_node[LIMIT_STAGES];
};

struct jobspec_dataset {
    enum jobspec_format format; /* none: the split is absent */
    char images[LIMIT_PATH], labels[LIMIT_PATH], path[LIMIT_PATH];
    enum jobspec_tokenizer tokenizer;
    int64_t samples; /* synthetic */
};

/*
 * A list of texts in one array: each '\1', the text, '\0'; behind the last one '\0'.
 * Returns the next text of a list after `before` (NULL: the first); NULL: no more.
 */
const char *jobspec_next_text(const char *texts, const char *before);

/* A program of the user's, in place of a model that Cairn trains. */
struct jobspec_command {
    /* Texts: the program and its arguments; with `shell` one, for /bin/sh -c. "": the job has a
     * model. */
    char run[JOBSPEC_TEXTS_BYTES];
    bool shell;
    char env[JOBSPEC_TEXTS_BYTES];         /* texts: NAME=VALUE, by name */
    char preload[JOBSPEC_TEXTS_BYTES / 4]; /* texts: modules of Python that are imported once */
    char workdir[LIMIT_PATH];
    char folder[LIMIT_PATH];              /* where the program writes; "": none */
    int64_t processes;                    /* of the program, per worker */
    char progress[JOBSPEC_PATTERN_BYTES]; /* its group 1 is the finished step; "": none */
    int64_t grace_ms;                     /* from SIGTERM to SIGKILL */
    int64_t hang_ms;                      /* without progress; 0: never */
    bool saves; /* the job has a `checkpoint`: Cairn saves what the program hands over */
    struct {
        bool codes_given; /* false: every code is restarted */
        uint32_t codes[JOBSPEC_CODES_MAX];
        size_t code_count;
        char on_output[JOBSPEC_TEXTS_BYTES / 4]; /* texts: patterns */
        int64_t budget;                          /* failures in a row without progress */
    } restart;
};

struct jobspec {
    char name[LIMIT_NAME];
    struct jobspec_model model;
    struct {
        struct jobspec_dataset train, eval;
        struct {
            bool crop, flip;
        } augment;
    } data;
    struct {
        struct jobspec_duration duration;
        int64_t global_batch, lanes;
        int64_t accumulate, micro_batch; /* both 0: auto, the device's memory says it */
        struct {
            enum jobspec_optimizer name;
            double lr, momentum, weight_decay, beta1, beta2, eps;
            bool nesterov;
            struct {
                bool bias, norm, embedding;
            } no_decay; /* parameters that weight_decay leaves alone */
        } optimizer;
        struct {
            enum jobspec_schedule name;
            struct jobspec_duration warmup;
            double min_lr;                 /* the end of a decay; fraction of lr */
            double gamma;                  /* step: factor */
            struct jobspec_duration every; /* step: interval */
            double power;                  /* polynomial */
            double start_lr;               /* one_cycle: the beginning; fraction of lr */
            struct jobspec_duration decay; /* wsd: the last steps */
        } schedule;
        struct {
            enum jobspec_metric metric; /* none: the job runs its duration */
            int64_t patience;           /* evaluations (loss: steps) without a better value */
            double min_delta;           /* a value counts as better if it is so much better */
        } stop;
        enum jobspec_precision precision;
        enum jobspec_amp amp;             /* bf16, fp16 */
        enum jobspec_recompute recompute; /* what is computed again instead of being kept */
        double loss_scale;                /* bf16, fp16: 1 none, 0 dynamic */
        double clip_norm;                 /* 0: off */
        double label_smoothing;
        double ema; /* decay of the moving average of the weights; 0: none is kept */
        int64_t seed;
    } train;
    struct jobspec_duration eval_every; /* value 0: at the end only */
    bool eval_ema;                      /* the average of the weights is evaluated */
    struct {
        int64_t count, min; /* the job trains with any number from min to count */
        int64_t spares;     /* started besides, to take the seat of one that dies */
        int64_t threads;
        uint32_t shares[LIMIT_RANKS]; /* lanes per rank, count of them; resolved. Of a pipeline
                                       * stage by stage */
        bool by_speed;                /* `shares: auto`: these are what it begins with */
        enum jobspec_device device;
        enum jobspec_memory memory;
    } workers;
    struct jobspec_env {
        char name[JOBSPEC_ENV_NAME];
        char value[JOBSPEC_ENV_VALUE];
    } nccl[JOBSPEC_ENV_MAX]; /* environment of NCCL, by name; behind the last one "" */
    struct {
        int64_t zero; /* 1: each worker has the optimizer's moments of its own part alone */
        enum jobspec_reduction reduction;
        struct jobspec_cuts pipeline;
        enum jobspec_pipeline schedule; /* none: of one stage */
        /* With `count` workers: the workers of each stage; 0: there is one stage. */
        uint32_t stages[LIMIT_STAGES];
    } parallel;
    struct {
        struct jobspec_duration every; /* JOBSPEC_AUTO: Young/Daly from what is measured */
        int64_t keep_last;
        struct {
            enum jobspec_metric metric; /* none: off */
            int64_t n;
        } keep_best;
        int64_t keep_every;     /* steps: checkpoints at multiples of it are kept; 0: off */
        char store[LIMIT_PATH]; /* folder, or s3://bucket/prefix */
        enum jobspec_level level;
        bool delta;           /* differences to the checkpoint before */
        int64_t memory_bytes; /* most host memory for snapshots and encoders; 0: what they want */
        int64_t memory_every; /* steps between copies in memory; 0: only those of checkpoints;
                               * JOBSPEC_EVERY_AUTO: as often as they cost next to nothing */
        int64_t peers;        /* other nodes that hold each copy: 0, 1 */
        int64_t threads;      /* threads that encode */
        int64_t grace_ms;     /* a worker's time for a last checkpoint after SIGTERM */
    } checkpoint;
    struct {
        int64_t every;    /* steps in which each lane is computed twice, once; 0: never */
        int64_t checksum; /* steps between two comparisons of the replicas; 0: never */
    } audit;
    struct {
        enum jobspec_exactness exactness;
        enum jobspec_on_nan on_nan;
        enum jobspec_on_spike on_spike; /* none: a spike is a step like others */
        double spike;                   /* times the median of the losses before */
        int64_t spike_window;           /* losses that the median is of */
    } recovery;
    struct jobspec_command command;
    struct jobspec_graph graph; /* model.graph; last */
};

/* Returns the bytes of a job up to its last node. */
size_t jobspec_bytes(const struct jobspec *job);

/* True if the job runs a command of the user's: it has no model, data or training, and checkpoints
 * only if command.saves. */
bool jobspec_is_command(const struct jobspec *job);
/* The command as one line for people: arguments in quotes where a shell would want them. What has
 * no room is left out, and "..." ends it. */
void jobspec_command_line(const struct jobspec *job, char *out, size_t capacity);

/*
 * Reads a job file and the `key=value` settings over it. The job counts as one that was taken
 * before (struct jobspec_origin). text is the content of file_name; base_dir (absolute) is where
 * relative paths start. out_errors gets every mistake, as above, in the order of the file; it is
 * empty on ST_OK.
 */
MUST_CHECK enum status jobspec_parse(const char *text, size_t size, const char *file_name,
                                     const char *base_dir, const char *const *sets,
                                     size_t set_count, struct jobspec *out, struct buf *out_errors);

/* A path that a job names. */
struct jobspec_named {
    const char *key; /* "data.train.images" */
    const char *path;
    enum jobspec_named_kind {
        JOBSPEC_NAMED_FILE,
        JOBSPEC_NAMED_FILES,   /* the last part may be a pattern */
        JOBSPEC_NAMED_STORE,   /* a folder that may have to be made, or s3://bucket/prefix */
        JOBSPEC_NAMED_FOLDER,  /* that is there */
        JOBSPEC_NAMED_MADE,    /* a folder that may have to be made, on nodes */
        JOBSPEC_NAMED_PROGRAM, /* a file that can be run */
    } kind;
};

/* Checks whether a path that a job names can be used. False: why not, and a way out. */
struct jobspec_look {
    bool (*usable)(void *arg, const struct jobspec_named *named, char cause[LIMIT_REASON],
                   char way_out[LIMIT_REASON]);
    void *arg;
};

struct jobspec_origin {
    const char *file_name, *base_dir; /* as above */
    const char *allowed;
    const struct jobspec_look *look; /* asked about each path that is allowed; NULL: nobody */
    bool commands; /* where `allowed` isn't NULL: the job may have a command all the same */
    bool taken;    /* the job was taken before: its store's length is let be */
};

/*
 * Like jobspec_parse, with more of the job's origin: the caller may be somebody who may not name
 * every path. allowed: folders, absolute, and s3://bucket/prefix, separated by ':'; NULL: all.
 * Every path and store of the job, and every value of `nccl` with a '/' in it, has to be one of the
 * allowed folders or below it. That holds also for a path that nobody wrote and that begins at
 * base_dir. Paths are compared as text: whether a folder is a link is not looked at. A command and
 * a library are code, which does what its account can: without `commands` there may be none.
 */
MUST_CHECK enum status jobspec_parse_within(const struct jobspec_origin *origin, const char *text,
                                            size_t size, const char *const *sets, size_t set_count,
                                            struct jobspec *out, struct buf *out_errors);
/* Whether a text can be `allowed`. */
bool jobspec_allowed_valid(const char *allowed);

/* The settings of a running job that `cairn set` can change. */
struct jobspec_change {
    int64_t workers; /* the new number of workers */
};

/*
 * Reads `key=value` settings for a job that was submitted already; places of mistakes are
 * "set:NUMBER:COLUMN". Whether the values fit the job is for the caller to see.
 * Errors: ST_CONFIG  the errors are in out_errors: also a key that can't be changed, and no setting
 */
MUST_CHECK enum status jobspec_parse_change(const char *const *sets, size_t set_count,
                                            struct jobspec_change *out, struct buf *out_errors);

/* The job as YAML with every key, resolved values and absolute paths; parses to the same job. */
MUST_CHECK enum status jobspec_print(const struct jobspec *job, struct buf *out);

#define JOBSPEC_SPIKE_WINDOW_MAX 64 /* losses */

#define JOBSPEC_MOMENTS_MAX 3 /* an optimizer's, and train.ema's */
/* Returns how many buffers of moments an optimizer keeps, each as large as the parameters; below
 * JOBSPEC_MOMENTS_MAX. momentum is the job's; only sgd depends on it. */
int jobspec_moments(enum jobspec_optimizer name, double momentum);

/*
 * Returns the number of a model's parameters. Of an image model it is that for the images with
 * which it was published: 28×28 with one channel for mlp and lenet, three channels for resnet18,
 * 224×224 with three channels for the larger ones; for vit as jobspec_has_large_patches says. On
 * other images it has a few more or less. What a library makes isn't known: 0.
 */
uint64_t jobspec_parameters(const struct jobspec_model *model);
/* Bytes of the training state: parameters, as jobspec_parameters counts them, and moments. */
uint64_t jobspec_state_bytes(const struct jobspec *job);

/*
 * Spreads lanes over count workers as evenly as it goes; the first ones carry what is over.
 * out: count shares, in the order of the ranks.
 * Errors: ST_INVALID  fewer lanes than workers, or over the limits
 */
MUST_CHECK enum status jobspec_shares(int64_t lanes, int64_t count, uint32_t *out);

/* True if the workers' shares are even: no two shares of a stage differ by more than one. */
bool jobspec_shares_even(const struct jobspec *job);
/* True if the loss scale is adjusted while training: steps that overflow are left out. */
bool jobspec_scale_is_dynamic(const struct jobspec *job);

/* Which rank computes what, in a generation. Ranks go stage by stage, in a stage share by share. */
struct jobspec_layout {
    uint32_t stage_count;              /* 1: no pipeline */
    uint32_t workers[LIMIT_STAGES];    /* of each stage */
    uint32_t first_node[LIMIT_STAGES]; /* as in struct jobspec_cuts */
    uint32_t shares[LIMIT_RANKS];      /* lanes, rank by rank; of each stage they are all lanes */
};
/*
 * The layout for so many workers, as many as the job has for a while. For workers.count it is what
 * the job file says. Else workers are spread over stages as common/layout/widths.h does, and lanes
 * over them as jobspec_shares does. Where stages begin follows from their number: with fewer stages
 * than in the file, some of its cuts are left out.
 * Errors: ST_INVALID  more than the lanes of all stages, or over the limits
 */
MUST_CHECK enum status jobspec_layout_of(const struct jobspec *job, int64_t workers,
                                         struct jobspec_layout *out);
/*
 * Like jobspec_layout_of, for stages that have so many workers each; the server decides by the
 * workers that go on in each stage (server/jobfsm). A stage as wide as the file says has the file's
 * shares.
 * Errors: ST_INVALID  more stages than the file's; a stage without workers, or with more than lanes
 */
MUST_CHECK enum status jobspec_layout_with(const struct jobspec *job, const uint32_t *workers,
                                           uint32_t stage_count, struct jobspec_layout *out);
/* The most workers that the job can ever have. */
int64_t jobspec_workers_most(const struct jobspec *job);

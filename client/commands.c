/* Every command of `cairn`, one row each: parsing, help and completion come from here. */
#include "client/commands.h"

#include "client/action/commands.h"
#include "client/base/client.h"
#include "client/bundle/commands.h"
#include "client/cert/commands.h"
#include "client/ckpt/commands.h"
#include "client/context/commands.h"
#include "client/manual.h"
#include "client/preflight/files.h"
#include "client/query/commands.h"

#define AT(member) offsetof(struct arguments, member)

static const struct option options_of_all[] = {
    { "addr", '\0', OPTION_TEXT, AT(addr), "ADDR",
      "coordinator: unix:/path or host:port (CAIRN_ADDR)" },
    { "context", '\0', OPTION_TEXT, AT(context), "CONTEXT",
      "a coordinator by its name of 'cairn context ls'; -: none (CAIRN_CONTEXT)" },
    { "tls-cert", '\0', OPTION_TEXT, AT(tls.cert), "FILE",
      "your certificate, for a coordinator elsewhere (CAIRN_TLS_CERT)" },
    { "tls-key", '\0', OPTION_TEXT, AT(tls.key), "FILE", "its key (CAIRN_TLS_KEY)" },
    { "tls-ca", '\0', OPTION_TEXT, AT(tls.ca), "FILE", "the authority (CAIRN_TLS_CA)" },
    { "output", 'o', OPTION_FORMAT, AT(output), "FORMAT", "table, wide, json, jsonl or name" },
    { "no-color", '\0', OPTION_FLAG, AT(no_color), NULL, "no colours (NO_COLOR)" },
    { "quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "only results, no remarks" },
    { "help", 'h', OPTION_FLAG, AT(help), NULL, "this help" },
    { 0 },
};

#define WATCH                                                                                      \
    {                                                                                              \
        "watch", 'w', OPTION_FLAG, AT(watch), NULL, "follow it, until Ctrl-C"                      \
    }

#define BUNDLE                                                                                     \
    {                                                                                              \
        "bundle", '\0', OPTION_TEXT, AT(bundle), "FILE",                                           \
            "what 'cairn bundle' recorded, instead of a coordinator"                               \
    }

static const struct option bundled_options[] = { BUNDLE, { 0 } };

static const struct option show_options[] = { WATCH, BUNDLE, { 0 } };

static const struct option bundle_options[] = {
    { "to", 'o', OPTION_TEXT, AT(to), "FILE.tar.gz",
      "where it goes: a new file (default: cairn-bundle-TIME.tar.gz here)" },
    { 0 },
};

/* Options of listings; "help" for either lists the names. */
#define SORT                                                                                       \
    {                                                                                              \
        "sort", '\0', OPTION_TEXT, AT(sort), "KEYS",                                               \
            "columns to order by, as state,-loss; '-' turns one round (help: all)"                 \
    }
#define COLUMNS                                                                                    \
    {                                                                                              \
        "columns", '\0', OPTION_TEXT, AT(columns), "NAMES",                                        \
            "these columns, with commas between them (help: all there are)"                        \
    }

#define SET                                                                                        \
    {                                                                                              \
        "set", '\0', OPTION_SETS, AT(sets), "K=V",                                                 \
            "another value for a key, as train.lanes=4; null takes the key away"                   \
    }

#define GRACE(what)                                                                                \
    {                                                                                              \
        "grace", '\0', OPTION_DURATION, AT(grace_ms), "TIME", what                                 \
    }

static const struct option up_options[] = {
    { "slots", '\0', OPTION_NUMBER, AT(slots), "N", "workers at once (default: at least 4)" },
    { "listen", '\0', OPTION_TEXT, AT(listen), "ADDR",
      "TCP besides the socket: 127.0.0.1:0, or with TLS any, as 0.0.0.0:7000" },
    { "advertise", '\0', OPTION_TEXT, AT(advertise), "HOST:PORT",
      "where other machines reach it, if that is elsewhere than --listen" },
    { "paths", '\0', OPTION_TEXT, AT(paths), "DIR[:DIR]",
      "all that job files of people with certificates may name (default: anything); they may have "
      "no command then" },
    { "commands", '\0', OPTION_FLAG, AT(commands), NULL, "with --paths: they may have a command" },
    { "page", '\0', OPTION_TEXT, AT(page), "ADDR|none",
      "where the page is: 127.0.0.1:PORT (default: any port, the same again); HOST:PORT beyond "
      "this machine: with TLS, certificates and roles (docs/page.md)" },
    { "foreground", '\0', OPTION_FLAG, AT(foreground), NULL, "stay, until Ctrl-C or SIGTERM" },
    GRACE("for the last checkpoints, on Ctrl-C or SIGTERM (default: 10s)"),
    { 0 },
};

static const struct option down_options[] = {
    GRACE("for the last checkpoints (default: 10s)"),
    { 0 },
};

static const struct option open_options[] = {
    { "viewer", '\0', OPTION_FLAG, AT(viewer), NULL, "one who may look only" },
    { "revoke", '\0', OPTION_FLAG, AT(revoke), NULL,
      "let nobody in any more by what was made so far" },
    { 0 },
};

static const struct option submit_options[] = {
    WATCH,
    SET,
    { "wait", '\0', OPTION_FLAG, AT(wait), NULL, "wait for the end; the exit code is the result" },
    { "timeout", '\0', OPTION_DURATION, AT(timeout_ms), "TIME", "wait so long at most (exit 124)" },
    { 0 },
};

static const struct option timeout_options[] = {
    { "timeout", '\0', OPTION_DURATION, AT(timeout_ms), "TIME", "wait so long at most (exit 124)" },
    { 0 },
};

static const struct option steer_options[] = {
    { "wait", '\0', OPTION_FLAG, AT(wait), NULL, "wait until it is done" },
    { "timeout", '\0', OPTION_DURATION, AT(timeout_ms), "TIME", "wait so long at most (exit 124)" },
    { 0 },
};

static const struct option rm_job_options[] = {
    { "all-ended", '\0', OPTION_FLAG, AT(all_ended), NULL, "all jobs that have ended" },
    { "older-than", '\0', OPTION_DURATION, AT(older_ms), "TIME",
      "those that ended so long ago, as 30d" },
    { "checkpoints", '\0', OPTION_FLAG, AT(checkpoints), NULL,
      "with their checkpoints, results included" },
    { "timeout", '\0', OPTION_DURATION, AT(timeout_ms), "TIME", "wait so long at most (exit 124)" },
    { 0 },
};

static const struct option logs_options[] = {
    { "follow", 'f', OPTION_FLAG, AT(follow), NULL, "go on with what comes" },
    { "rank", '\0', OPTION_NUMBER, AT(rank), "N", "one worker only" },
    { "attempt", '\0', OPTION_NUMBER, AT(attempt), "N", "an earlier attempt (generation)" },
    { "level", '\0', OPTION_TEXT, AT(level), "debug|info|warn|error", "of that one and higher" },
    { "since", '\0', OPTION_TEXT, AT(since), "TIME", "of the last 10m" },
    { "grep", '\0', OPTION_TEXT, AT(grep), "PATTERN", "what an extended regular expression finds" },
    { 0 },
};

static const struct option ps_options[] = {
    WATCH,
    { "state", '\0', OPTION_TEXT, AT(state), "STATES",
      "active, over, or states with commas between them, as queued,running" },
    { "name", '\0', OPTION_TEXT, AT(name), "PATTERN", "names like it: * and ? stand for others" },
    SORT,
    COLUMNS,
    BUNDLE,
    { "last", 'n', OPTION_NUMBER, AT(last), "N", "the newest N of those; with --sort the first N" },
    { 0 },
};

static const struct option node_ls_options[] = { WATCH, SORT, COLUMNS, BUNDLE, { 0 } };

static const struct option top_options[] = {
    SORT,
    COLUMNS,
    { "interval", '\0', OPTION_DURATION, AT(interval_ms), "TIME",
      "between two looks (default: 2s)" },
    { "once", '\0', OPTION_FLAG, AT(once), NULL, "one picture, and no keys" },
    { 0 },
};

static const struct option metrics_options[] = {
    { "follow", 'f', OPTION_FLAG, AT(follow), NULL, "go on with what comes" },
    { "output", 'o', OPTION_ROWS_FORMAT, AT(output), "FORMAT", "table, csv or jsonl (JSON lines)" },
    { "since", '\0', OPTION_TEXT, AT(since), "STEP|TIME", "after that step, or of the last 10m" },
    { 0 },
};

static const struct option plan_options[] = {
    SET,
    { 0 },
};

static const struct option check_options[] = {
    { "device", '\0', OPTION_TEXT, AT(device), "cpu|cuda", "what to measure (default: cpu)" },
    { "ranks", '\0', OPTION_NUMBER, AT(ranks), "N", "how many (default: 2, or every GPU)" },
    { "pairs", '\0', OPTION_FLAG, AT(pairs), NULL, "the paths between the cluster's nodes" },
    { "all", '\0', OPTION_FLAG, AT(all), NULL, "with --pairs: every pair, also of many nodes" },
    { 0 },
};

static const struct option scrub_options[] = {
    { "rate", '\0', OPTION_NUMBER, AT(rate), "MB/S", "read no faster (default: no limit)" },
    { 0 },
};

static const struct option diff_options[] = {
    { "sort", '\0', OPTION_TEXT, AT(sort), "stored|relative|max", "order (largest first)" },
    { 0 },
};

static const struct option export_options[] = {
    { "names", '\0', OPTION_TEXT, AT(names), "hf|cairn",
      "names and shapes of Hugging Face and torchvision (default), or ours" },
    { "dtype", '\0', OPTION_TEXT, AT(dtype), "f32|bf16|f16", "of the values (default: as stored)" },
    { "only", '\0', OPTION_TEXT, AT(only), "model|all",
      "all: moments of the optimizer, too (default: model)" },
    { "force", '\0', OPTION_FLAG, AT(force), NULL, "replace a file that is there" },
    { 0 },
};

static const struct option rm_options[] = {
    { "force", '\0', OPTION_FLAG, AT(force), NULL,
      "also the last one of a job that is over, or a damaged folder" },
    { 0 },
};

static const struct option drain_options[] = {
    { "deadline", '\0', OPTION_DURATION, AT(deadline_ms), "TIME",
      "kill what is there after this (default: never)" },
    { "reason", '\0', OPTION_TEXT, AT(reason), "TEXT", "shown to who asks why it takes no jobs" },
    { 0 },
};

static const struct option invite_options[] = {
    { "uses", '\0', OPTION_NUMBER, AT(uses), "N", "machines that may join by it (default: 1)" },
    { "valid", '\0', OPTION_DURATION, AT(valid_ms), "TIME", "for so long (default: 1h)" },
    { "to", 'o', OPTION_TEXT, AT(to), "FILE", "where it goes: a new file, readable by you only" },
    { 0 },
};

static const struct option import_options[] = {
    { "job", '\0', OPTION_TEXT, AT(job_file), "JOBFILE", "whose model the weights are of" },
    { "to", '\0', OPTION_TEXT, AT(to), "DIR", "the checkpoint's folder, not there yet" },
    SET,
    { 0 },
};

#define DIR                                                                                        \
    {                                                                                              \
        "dir", '\0', OPTION_TEXT, AT(dir), "DIR",                                                  \
            "the authority's folder (default: tls in the home)"                                    \
    }

static const struct option init_options[] = {
    { "cluster", '\0', OPTION_TEXT, AT(cluster), "NAME", "of the fleet (default: cairn)" },
    { "hosts", '\0', OPTION_TEXT, AT(hosts), "LIST",
      "names and addresses of the coordinator, separated by commas" },
    DIR,
    { 0 },
};

static const struct option dir_options[] = { DIR, { 0 } };

static const struct option cert_check_options[] = {
    { "key", '\0', OPTION_TEXT, AT(key), "FILE", "its key (default: with .key for .crt)" },
    { "ca", '\0', OPTION_TEXT, AT(ca), "FILE", "who signs (default: ca.crt beside it)" },
    { 0 },
};

static const struct option context_add_options[] = {
    { "home", '\0', OPTION_TEXT, AT(home), "DIR", "a home of this machine, as CAIRN_HOME says it" },
    { "token-file", '\0', OPTION_TEXT, AT(token_file), "FILE",
      "the token of a coordinator on loopback without TLS (CAIRN_TOKEN_FILE)" },
    { "force", '\0', OPTION_FLAG, AT(force), NULL, "replace one of that name" },
    { 0 },
};

#define PEER                                                                                       \
    "Two files in the authority's folder, as node-NAME.crt and node-NAME.key. Good for 30 days; "  \
    "the\n"                                                                                        \
    "key is readable by its owner only. Needs no coordinator."

#define WHERE "Works on a checkpoint's folder, too; then no coordinator is needed."

static const struct command rows[] = {
    { NULL, "up", OPERAND_NONE, 0, 0, false, "[--slots N]",
      "start a coordinator and an agent on this machine",
      "Returns when both answer. Does nothing where they run already. CAIRN_HOME=DIR puts\n"
      "everything of this instance under DIR. SIGTERM (systemd, Docker, Kubernetes) saves the\n"
      "running jobs and ends everything, as 'cairn down' does; with --foreground Ctrl-C, too.",
      "up\nup --slots 8\nup --foreground --grace 1m", up_options, cmd_up, GROUP_CLUSTER },
    { NULL, "down", OPERAND_NONE, 0, 0, false, "",
      "save running jobs and end every process of this home",
      "The next 'cairn up' resumes the jobs.", "down\ndown --grace 1m", down_options, cmd_down,
      GROUP_CLUSTER },
    { NULL, "open", OPERAND_NONE, 0, 0, false, "", "open the page in a browser",
      "Prints a link that lets one browser in, once, within a minute, and opens it where there is "
      "a\n"
      "screen. From another machine: ssh -L PORT:127.0.0.1:PORT, then the link there; the link\n"
      "of a page beyond this machine (cairn up --page HOST:PORT) works from any.\n"
      "--revoke ends all sessions, links and tokens of the page; certificates stay good.",
      "open\nopen --viewer\nopen --revoke", open_options, cmd_open, GROUP_CLUSTER },
    { NULL, "submit", OPERAND_FILE, 1, 1, false, "FILE", "check a job file and train what it says",
      "Mistakes in the file are all shown at once, with their places; then nothing is sent\n"
      "(exit 2). FILE - is standard input.",
      "submit examples/mlp-fashion.yaml --watch\n"
      "submit job.yaml --set train.global_batch=64 --set workers.count=4\n"
      "submit job.yaml --set train.precision=fp32 --set train.amp=null\n"
      "submit job.yaml --wait --timeout 2h\nsubmit job.yaml -o name",
      submit_options, cmd_submit, GROUP_JOBS },
    { NULL, "plan", OPERAND_FILE, 1, 1, false, "FILE",
      "show the model of a job file as it would run, and its memory",
      "Starts nothing and needs no coordinator.",
      "plan examples/resnet18-fashion.yaml\nplan job.yaml --set train.precision=bf16", plan_options,
      cmd_plan, GROUP_JOBS },
    { NULL, "audit", OPERAND_CHECKPOINT, 1, 1, false, "JOB@A..B",
      "compute the steps between two checkpoints again, here",
      "One process trains from the checkpoint of step A (0: from the seed) to step B, at the\n"
      "lowest priority, and saves nothing. Exits 0 where it comes to the same bits, 1 where not,\n"
      "4 where this machine would compute other bits by itself (another CPU, another library),\n"
      "10 where training itself fails.\n"
      "Run it on another node than those that trained. JOB may be a job's folder in a store;\n"
      "then no coordinator is needed.",
      "audit resnet18-fashion@100..200\naudit checkpoints/j-0123456789@0..500 -o json", NULL,
      cmd_audit, GROUP_CHECKPOINTS },
    { NULL, "ps", OPERAND_NONE, 0, 0, false, "", "list jobs, newest first",
      "Long names are cut; -o wide shows them whole. What isn't known comes last in every order.",
      "ps\nps -w --state active\nps --name 'resnet*' -n 5\nps --state failed,killed -o name\n"
      "ps --sort -goodput,name --columns id,name,speed,goodput\nps --columns help",
      ps_options, cmd_ps, GROUP_JOBS },
    { NULL, "top", OPERAND_NONE, 0, 0, false, "", "show jobs, nodes and events, until q",
      "Keys: arrows or j and k choose a job, enter opens it as 'cairn watch' does (q goes back), s "
      "is\n"
      "the next order, r turns it round, h tells them all, q ends. A coordinator that is away is\n"
      "waited for. Where standard output is no terminal, or with --once, it prints one picture.",
      "top\ntop --sort -loss --interval 5s\ntop --columns name,state,goodput,reason\n"
      "top --once > picture.txt",
      top_options, cmd_top, GROUP_CLUSTER },
    { NULL, "show", OPERAND_JOB, 1, 1, false, "JOB",
      "show a job: state, workers, checkpoints, events", NULL,
      "show resnet18-fashion\nshow resnet18-fashion -w\nshow j-01 -o json", show_options, cmd_show,
      GROUP_JOBS },
    { NULL, "watch", OPERAND_JOB, 1, 1, false, "JOB", "follow a job until it is over",
      "The exit code is the job's: 0, 10 (FAILED), 11 (STOPPED, KILLED). Ctrl-C leaves (130);\n"
      "the job goes on.",
      "watch resnet18-fashion\nwatch resnet18-fashion -o jsonl", timeout_options, cmd_watch,
      GROUP_JOBS },
    { NULL, "logs", OPERAND_JOB, 1, 1, false, "JOB", "print what the workers wrote",
      "With -f also how far the job is, every few seconds and after each evaluation (not with -q,\n"
      "or where only some lines are asked for). -o json and -o jsonl both print JSON lines: an\n"
      "object a line, as the workers wrote it.",
      "logs resnet18-fashion -f\nlogs resnet18-fashion --rank 1 --attempt 1\n"
      "logs resnet18-fashion --level warn --since 1h\nlogs resnet18-fashion --grep "
      "'restored|saved'",
      logs_options, cmd_logs, GROUP_JOBS },
    { NULL, "metrics", OPERAND_JOB, 1, 1, false, "JOB",
      "print what each step came to: loss, speed, evaluations",
      "A row for each step, also of a job that is over; of steps that were computed twice the\n"
      "newer one. -o csv: a header, then a line for each; what isn't known is empty. -o json and\n"
      "-o jsonl both print JSON lines: an object a line, with the same names.",
      "metrics resnet18-fashion -o csv > rows.csv\nmetrics resnet18-fashion -f --since 10m",
      metrics_options, cmd_metrics, GROUP_JOBS },
    { NULL, "why", OPERAND_JOB, 1, 1, false, "JOB", "explain why a job waits, failed or lost time",
      NULL, "why resnet18-fashion\nwhy --bundle cairn-bundle-20261130T170000Z.tar.gz",
      bundled_options, cmd_why, GROUP_JOBS },
    { "debug", "job", OPERAND_JOB, 1, 1, false, "JOB",
      "print all that the coordinator has of a job, as JSON",
      "For who looks for a bug: states, flags, counters and times that no other command shows.\n"
      "Times of the coordinator's clock are in milliseconds from now; what is to come is\n"
      "positive. Its keys change from version to version. Secrets are left out.",
      "debug job resnet18-fashion", bundled_options, cmd_debug_job, GROUP_JOBS },
    { NULL, "pause", OPERAND_JOB, 1, 1, false, "JOB",
      "save a job and free its slots until it is resumed", NULL,
      "pause resnet18-fashion\npause resnet18-fashion --wait", steer_options, cmd_pause,
      GROUP_JOBS },
    { NULL, "resume", OPERAND_JOB, 1, 1, false, "JOB",
      "go on with a job that was paused or stopped",
      "From its newest checkpoint, with the same bits as one that was never interrupted.",
      "resume resnet18-fashion", steer_options, cmd_resume, GROUP_JOBS },
    { NULL, "stop", OPERAND_JOB, 1, 1, false, "JOB", "save a job and end it",
      "It counts as over: who waits for it exits 11, and webhooks are told. 'cairn resume' goes\n"
      "on from its newest checkpoint all the same; 'cairn pause' is for a job to wait.",
      "stop resnet18-fashion\nstop resnet18-fashion --wait", steer_options, cmd_stop, GROUP_JOBS },
    { NULL, "kill", OPERAND_JOB, 1, 1, false, "JOB", "end a job at once, without a checkpoint",
      NULL, "kill resnet18-fashion", steer_options, cmd_kill, GROUP_JOBS },
    { NULL, "rm", OPERAND_JOB, 0, ARGUMENTS_OPERANDS_MAX, false,
      "JOB... | --all-ended | --older-than TIME", "forget jobs that have ended",
      "Their events, attempts and metrics go from the coordinator's journal. What workers wrote\n"
      "goes from the nodes in time, as that of all old jobs; files for TensorBoard stay. So do\n"
      "checkpoints: 'cairn ckpt ls STORE' lists them, and another job can start from their\n"
      "weights. With --checkpoints they are removed, too. A job that goes on is refused (exit 4).",
      "rm resnet18-fashion\nrm j-01 j-02 --checkpoints\nrm --older-than 30d", rm_job_options,
      cmd_rm, GROUP_JOBS },
    { NULL, "set", OPERAND_SETTING, 2, ARGUMENTS_OPERANDS_MAX, false, "JOB KEY=VALUE...",
      "change the number of workers of a job while it trains",
      "The one key is workers.count, at most the job's train.lanes. Workers that\n"
      "are there go on with other shares when the new ones are ready; nothing is trained again,\n"
      "and the result is the same, bit for bit. Returns at once; 'cairn show' says how far it is.",
      "set resnet18-fashion workers.count=4", NULL, cmd_set, GROUP_JOBS },
    { NULL, "save", OPERAND_JOB, 1, 1, false, "JOB", "make a checkpoint now and print its step",
      NULL, "save resnet18-fashion", timeout_options, cmd_save, GROUP_JOBS },
    { "ckpt", "ls", OPERAND_CHECKPOINT, 1, 1, false, "JOB|STORE",
      "list the checkpoints of a job or of a store",
      "-o wide adds losses and paths. JOB may be a job's folder, STORE a folder of such folders;\n"
      "then no coordinator is needed.",
      "ckpt ls resnet18-fashion\nckpt ls checkpoints/j-0123456789\nckpt ls checkpoints/", NULL,
      cmd_ckpt_ls, GROUP_CHECKPOINTS },
    { "ckpt", "show", OPERAND_CHECKPOINT, 1, 1, false, "JOB[@STEP]", "show what a checkpoint holds",
      WHERE, "ckpt show resnet18-fashion@100\nckpt show resnet18-fashion -o json", NULL,
      cmd_ckpt_show, GROUP_CHECKPOINTS },
    { "ckpt", "verify", OPERAND_CHECKPOINT, 1, 1, false, "JOB[@STEP]",
      "read every byte and check it against its hashes",
      "Exits 8 if anything is damaged, and says what. Changes nothing. JOB@all checks all of\n"
      "them. " WHERE,
      "ckpt verify resnet18-fashion\nckpt verify resnet18-fashion@all\n"
      "ckpt verify checkpoints/j-0123456789/step-000000000100.g1",
      NULL, cmd_ckpt_verify, GROUP_CHECKPOINTS },
    { "ckpt", "scrub", OPERAND_CHECKPOINT, 1, 1, false, "JOB|STORE",
      "verify every checkpoint of a job or of a store",
      "Exits 8 if any is damaged, and says what. Of a JOB the coordinator reads that one, too, "
      "and\n"
      "sets it aside (bad-...). JOB may be a job's folder, STORE a folder of such folders; then "
      "no\n"
      "coordinator is needed and nothing is changed: 'cairn ckpt rm' removes one.",
      "ckpt scrub resnet18-fashion\nckpt scrub checkpoints/ --rate 50\n"
      "ckpt scrub checkpoints/j-0123456789 -o json",
      scrub_options, cmd_ckpt_scrub, GROUP_CHECKPOINTS },
    { "ckpt", "digest", OPERAND_CHECKPOINT, 1, 1, false, "JOB[@STEP]",
      "compute the digest of the stored state from its bytes",
      "Equal digests mean equal bits. " WHERE, "ckpt digest resnet18-fashion@100", NULL,
      cmd_ckpt_digest, GROUP_CHECKPOINTS },
    { "ckpt", "diff", OPERAND_CHECKPOINT, 2, 2, false, "A B",
      "compare two checkpoints, tensor by tensor",
      "A and B are JOB[@STEP] or a checkpoint's folder. Per tensor: how many elements and bits\n"
      "differ, the largest distance, and the norm of the difference over that of A's. Exits 0 if\n"
      "all bits are equal, 1 if not; -q prints nothing, -o wide the equal ones, too.",
      "ckpt diff resnet18-fashion@100 resnet18-fashion@200\n"
      "ckpt diff job@100 other@100 --sort relative\nckpt diff a@5 b@5 -o json",
      diff_options, cmd_ckpt_diff, GROUP_CHECKPOINTS },
    { "ckpt", "export", OPERAND_CHECKPOINT, 2, 2, false, "JOB[@STEP] FILE",
      "write a checkpoint's weights as a safetensors file",
      "transformers' GPT2LMHeadModel and LlamaForCausalLM and torchvision's resnets load it. The\n"
      "file appears whole or not at all. Beside a Llama's a config.json is written, unless one is\n"
      "there. " WHERE,
      "ckpt export my-gpt model.safetensors\n"
      "ckpt export my-gpt@1000 half.safetensors --dtype bf16\n"
      "ckpt export checkpoints/j-0123456789 all.safetensors --only all --names cairn",
      export_options, cmd_ckpt_export, GROUP_CHECKPOINTS },
    { "ckpt", "import", OPERAND_FILE, 1, 1, false, "FILE --job JOBFILE",
      "make a checkpoint's folder of a safetensors file",
      "Names, shapes and types are checked against the job's model. The state is that of step 0:\n"
      "moments are zero. DIR is by default FILE without .safetensors, and in it\n"
      "step-000000000000.g1. A job starts from such a file with model.weights: FILE.",
      "ckpt import gpt2.safetensors --job job.yaml\n"
      "ckpt import gpt2.safetensors --job job.yaml --to imported/gpt2/step-000000000000.g1",
      import_options, cmd_ckpt_import, GROUP_CHECKPOINTS },
    { "ckpt", "rm", OPERAND_CHECKPOINT, 1, 1, false, "JOB@STEP", "remove a checkpoint",
      "What a job still needs, or another checkpoint holds differences to, is refused (exit "
      "4).\nOf a folder only Cairn's files go; others stay, and are named. " WHERE,
      "ckpt rm resnet18-fashion@100", rm_options, cmd_ckpt_rm, GROUP_CHECKPOINTS },
    { "node", "ls", OPERAND_NONE, 0, 0, false, "", "list the machines and their slots", NULL,
      "node ls\nnode ls -w\nnode ls --sort -used,name --columns name,used,gpu-heat,reason",
      node_ls_options, cmd_node_ls, GROUP_NODES },
    { "node", "drain", OPERAND_NODE, 1, 1, false, "NODE [--reason TEXT] [--deadline TIME]",
      "keep a node free: its jobs save and go on elsewhere",
      "Until `cairn node undrain`, also when its agent or the coordinator is started anew. What "
      "ran\n"
      "there loses no step, and waits where no other node has room.",
      "node drain node3\nnode drain node3 --reason 'new disks' --deadline 10m", drain_options,
      cmd_node_drain, GROUP_NODES },
    { "node", "undrain", OPERAND_NODE, 1, 1, false, "NODE", "let a drained node take jobs again",
      NULL, "node undrain node3", NULL, cmd_node_undrain, GROUP_NODES },
    { "node", "invite", OPERAND_NONE, 0, 0, false, "[--uses N] [--valid TIME] --to FILE",
      "make a file with which machines join the cluster",
      "It holds the coordinator's addresses, its authority and a secret. On the other machine\n"
      "'cairn-agent --join FILE --name NAME' gets a certificate for that name by it. A "
      "coordinator\n"
      "that is started anew has forgotten its invites.",
      "node invite --to gpu-07.invite\nnode invite --uses 16 --valid 1d --to rack.invite",
      invite_options, cmd_node_invite, GROUP_NODES },
    { "node", "forget", OPERAND_NODE, 1, 1, false, "NAME",
      "refuse a node's certificates from now on",
      "For a machine that was stolen or given away. Its agent's session ends at once, and what "
      "ran\n"
      "there goes on elsewhere from its last checkpoint. A certificate that is made later (cert\n"
      "node, node invite) lets a node of that name in again; a renewed one has the old key.",
      "node forget gpu-07", NULL, cmd_node_forget, GROUP_NODES },
    { "node", "check", OPERAND_NODE, 0, ARGUMENTS_OPERANDS_MAX, false,
      "[--device cpu|cuda] | --pairs [NODE...]",
      "measure this machine's devices, or the paths between nodes",
      "Memory and copy bandwidth of each device; all-reduce and all-to-all between them, with\n"
      "algorithm and bus bandwidth per size as nccl-tests define them. Needs no coordinator;\n"
      "exits 4 where the device can't be used, with what is missing.\n"
      "\n"
      "With --pairs agents try the paths between the nodes (or those named, also A,B,C): a TCP\n"
      "connection to the other's --ports, then 0.2 s of data each way, 64 MiB at most. No node is\n"
      "in two pairs at a time, so that jobs that run lose little. Of more than 32 nodes each\n"
      "is tried with the next one only; --all tries every pair, of 128 nodes at most. Exits 4 "
      "where\n"
      "a path doesn't work, with what each side saw and what to do.",
      "node check\nnode check --device cuda\nnode check --ranks 4 -o json\nnode check --pairs\n"
      "node check --pairs gpu-07 gpu-08",
      check_options, cmd_node_check, GROUP_NODES },
    { "cert", "init", OPERAND_NONE, 0, 0, false, "[--hosts LIST]",
      "make a certificate authority and the coordinator's certificate",
      "What is there already stays. The coordinator's certificate names cairnd, localhost,\n"
      "127.0.0.1, ::1 and the hosts. Who has ca.key can be anybody: keep it where it is.",
      "cert init\ncert init --cluster lab --hosts cairn.example.org,10.0.0.1\n"
      "cert init --dir ~/lab-ca",
      init_options, cmd_cert_init, GROUP_CERTIFICATES },
    { "cert", "node", OPERAND_NONE, 1, 1, false, "NAME", "make a key and a certificate for a node",
      PEER, "cert node gpu-07", dir_options, cmd_cert_node, GROUP_CERTIFICATES },
    { "cert", "operator", OPERAND_NONE, 1, 1, false, "NAME",
      "make a key and a certificate for somebody who may change things", PEER,
      "cert operator alice", dir_options, cmd_cert_operator, GROUP_CERTIFICATES },
    { "cert", "viewer", OPERAND_NONE, 1, 1, false, "NAME",
      "make a key and a certificate for somebody who may look", PEER, "cert viewer bob",
      dir_options, cmd_cert_viewer, GROUP_CERTIFICATES },
    { "cert", "check", OPERAND_FILE, 1, 1, false, "FILE",
      "check a certificate, its key and its authority as a connection would",
      "Each is there and parses, the key fits, the authority signed it for its use, none is too\n"
      "old or too young. Exits 2 with what is wrong and what to do.",
      "cert check node-gpu-07.crt\ncert check a.crt --key a.pem --ca /etc/cairn/ca.crt",
      cert_check_options, cmd_cert_check, GROUP_CERTIFICATES },
    { "cert", "renew", OPERAND_FILE, 1, ARGUMENTS_OPERANDS_MAX, false, "FILE...",
      "renew certificates for 30 days from now, also expired ones",
      "Key, name and hosts stay; each file is replaced at once. Needs the authority's key.",
      "cert renew node-gpu-07.crt\ncert renew --dir ~/lab-ca ~/lab-ca/coordinator.crt", dir_options,
      cmd_cert_renew, GROUP_CERTIFICATES },
    { "cert", "show", OPERAND_FILE, 0, ARGUMENTS_OPERANDS_MAX, false, "[FILE...]",
      "show what certificates say, those of the folder by default",
      "-o wide adds hosts and serial numbers.", "cert show\ncert show node-gpu-07.crt -o json",
      dir_options, cmd_cert_show, GROUP_CERTIFICATES },
    { "webhook", "ls", OPERAND_NONE, 0, 0, false, "",
      "list the webhooks, and what became of their last message",
      "They stand in webhooks.yaml in the home. Of their addresses only the host is shown.",
      "webhook ls\nwebhook ls -o wide", NULL, cmd_webhook_ls, GROUP_CLUSTER },
    { "webhook", "test", OPERAND_WEBHOOK, 0, 1, false, "[NAME]",
      "send a test message to each webhook, or to one",
      "From here and at once, once. Exits 0 if each took it; else 4 where one refused it, 5 where\n"
      "one doesn't answer, 2 if the list has mistakes.",
      "webhook test\nwebhook test team", NULL, cmd_webhook_test, GROUP_CLUSTER },
    { NULL, "bundle", OPERAND_JOB, 0, ARGUMENTS_OPERANDS_MAX, false, "[JOB...]",
      "pack what support needs into one file, without secrets",
      "Of each job (by default eight: those that go on, then the newest) its file, state, "
      "explanation,\n"
      "checkpoints, metrics and the logs of its workers; nodes, queue, versions, this machine, "
      "this\n"
      "home's logs. What can't be had is a line in its errors.txt: it works with a coordinator "
      "that\n"
      "is down, too. Nothing is changed. 'cairn why --bundle FILE' prints from it; so do ps, "
      "show,\n"
      "node ls and debug job.",
      "bundle\nbundle resnet18-fashion -o for-support.tar.gz", bundle_options, cmd_bundle,
      GROUP_CLUSTER },
    { "context", "add", OPERAND_NONE, 1, 1, false,
      "NAME --addr ADDR [--tls-cert FILE --tls-key FILE --tls-ca FILE] | --home DIR",
      "give a name to a coordinator and the way to it",
      "Kept in ~/.config/cairn/contexts.json. Certificates, keys and tokens stay where they are: "
      "it\n"
      "holds the paths of their files. Needs no coordinator.",
      "context add lab --addr ada.example.org:7000 --tls-ca ca.crt --tls-cert me.crt --tls-key "
      "me.key\n"
      "context add scratch --home /scratch/cairn",
      context_add_options, cmd_context_add, GROUP_CLUSTER },
    { "context", "use", OPERAND_CONTEXT, 1, 1, false, "NAME|-",
      "make a context the current one; - means none",
      "It counts wherever a call has no --context and no --addr, and the environment no\n"
      "CAIRN_CONTEXT, CAIRN_ADDR or CAIRN_HOME.",
      "context use lab\ncontext use -", NULL, cmd_context_use, GROUP_CLUSTER },
    { "context", "ls", OPERAND_NONE, 0, 0, false, "", "list the contexts and mark the current one",
      NULL, "context ls\ncontext ls -o wide\ncontext ls -o name", NULL, cmd_context_ls,
      GROUP_CLUSTER },
    { "context", "rm", OPERAND_CONTEXT, 1, 1, false, "NAME", "forget a context",
      "The coordinator, its jobs and the files that the context names stay.", "context rm lab",
      NULL, cmd_context_rm, GROUP_CLUSTER },
    { "context", "show", OPERAND_CONTEXT, 0, 1, false, "[NAME]",
      "show a context, by default the one that counts, and what chose it",
      "Where none counts it shows where calls go all the same.",
      "context show\ncontext show lab -o json", NULL, cmd_context_show, GROUP_CLUSTER },
    { NULL, "completion", OPERAND_SHELL, 1, 1, false, "bash|zsh|fish",
      "print a completion script for a shell", NULL,
      "completion bash > ~/.local/share/bash-completion/completions/cairn", NULL, cmd_completion,
      GROUP_CLUSTER },
    { NULL, "version", OPERAND_NONE, 0, 0, false, "",
      "print the versions of client and coordinator", NULL, "version\nversion -o json", NULL,
      cmd_version, GROUP_CLUSTER },
    /* What the scripts of completion ask. */
    { NULL, "complete", OPERAND_NONE, 1, 2, true, "jobs|checkpoints|nodes|webhooks|contexts [WORD]",
      "list what a word may become", NULL, "complete jobs\ncomplete checkpoints tiny@", NULL,
      cmd_complete, GROUP_CLUSTER },
    /* What submit asks, for S3 with the coordinator's environment. */
    { NULL, "reach", OPERAND_NONE, 1, 1, true, "STORE", "say what stands against using a store",
      NULL, "reach s3://bucket/prefix", NULL, cmd_reach, GROUP_CLUSTER },
    /* What the build asks. */
    { NULL, "manual", OPERAND_NONE, 0, 2, true, "[PROGRAM SUMMARY]", "print a manual page", NULL,
      "manual\nmanual cairnd 'the coordinator of Cairn' < help", NULL, cmd_manual, GROUP_CLUSTER },
    /* What `cairn up` starts: the supervisor. */
    { NULL, "supervise", OPERAND_NONE, 0, 0, true, "", "keep coordinator, agent and observer alive",
      NULL, "supervise", up_options, cmd_supervise, GROUP_CLUSTER },
};

const struct command_table commands = {
    .commands = rows,
    .count = sizeof(rows) / sizeof(rows[0]),
    .options = options_of_all,
};

/* ckpt verify: every byte against its hashes. Nothing is changed here. */
#include "client/ckpt/verify.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/output.h"
#include "proto/text/json.h"

struct findings {
    const struct client *client;
    json_t *lines; /* with JSON output, else NULL */
    bool progress; /* a line of it stands on the terminal */
};

static void on_finding(void *arg, const char *line)
{
    struct findings *findings = arg;
    if (findings->lines != NULL) {
        (void)json_array_append_new(findings->lines, json_string(line));
        return;
    }
    if (findings->progress)
        (void)fprintf(stderr, "\r\033[K");
    (void)output_printf(findings->client, "  %s\n", line);
    (void)fflush(stdout);
}

static void print_verdict(const struct client *client, const char *path, enum status st)
{
    if (st == ST_OK && !client->args.quiet) {
        (void)output_printf(client, "good     %s\n", path);
    } else if (st != ST_OK && target_exit(path, st) == EXIT_DAMAGED) {
        (void)output_printf(client, "DAMAGED  %s: %s\n", path, target_status(st));
    } else if (st != ST_OK) {
        (void)target_report(client, path, st);
    }
}

enum exit_code verify_folder(const struct client *client, const struct io *io, const char *path,
                             bool progress, json_t *results)
{
    struct findings findings = { .client = client, .progress = progress };
    struct ckpt_read_options options = { .threads = target_threads() };
    bool json = output_is_json(client);
    if (json)
        findings.lines = json_array();
    enum status st = ckpt_verify(io, path, &options, on_finding, &findings);
    if (progress)
        (void)fprintf(stderr, "\r\033[K");
    if (json) {
        (void)json_array_append_new(results,
                                    json_pack("{s:o, s:b, s:s, s:o}", "path", json_from_text(path),
                                              "good", st == ST_OK, "status", target_status(st),
                                              "findings", findings.lines));
    } else {
        print_verdict(client, path, st);
    }
    return target_exit(path, st);
}

enum exit_code verify_print(const struct client *client, json_t *results)
{
    if (client->args.output == OUTPUT_JSON)
        return output_json(client, results);
    size_t i;
    json_t *result;
    enum exit_code code = EXIT_DONE;
    json_array_foreach(results, i, result)
    {
        if (code == EXIT_DONE)
            code = output_json(client, json_incref(result));
    }
    json_decref(results);
    return code;
}

enum exit_code cmd_ckpt_verify(struct client *client)
{
    struct target target;
    struct target_folders folders = { 0 };
    enum exit_code code = target_parse(client->args.operands[0], &target);
    if (code == EXIT_DONE)
        code = target_find(client, &target, &folders);
    json_t *results = code == EXIT_DONE ? json_array() : NULL;
    enum exit_code worst = code;
    for (size_t i = 0; code == EXIT_DONE && i < folders.count; i++) {
        enum exit_code one =
            verify_folder(client, target_io(client), folders.list[i].path, false, results);
        if (worst == EXIT_DONE || one == EXIT_DAMAGED)
            worst = one;
    }
    target_folders_release(&folders);
    if (code == EXIT_DONE && output_is_json(client)) {
        code = verify_print(client, results);
    } else {
        json_decref(results);
    }
    if (output_text(NULL) != EXIT_DONE)
        return EXIT_INTERNAL;
    return code != EXIT_DONE ? code : worst;
}

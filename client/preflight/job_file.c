#include "client/preflight/job_file.h"

#include <stdio.h>

#include "jobspec/yaml/input.h"

enum exit_code job_file_read(const char *name, struct job_file *out)
{
    struct jobspec_input input;
    struct reason why = { "" };
    *out = (struct job_file){ .name = name };
    enum status st = jobspec_input_read(name, &input, &why);
    if (st != ST_OK) {
        client_error("%s", why.text);
        return st == ST_CONFIG ? EXIT_USAGE : exit_of_status(st);
    }
    out->text = input.text;
    out->size = input.size;
    (void)snprintf(out->base_dir, sizeof(out->base_dir), "%s", input.base_dir);
    return EXIT_DONE;
}

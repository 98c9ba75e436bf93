#include "client/file/job_file.h"

#include <stdio.h>

#include "job/yaml/source.h"

enum exit_code job_file_read(const char *name, struct job_file *out)
{
    struct job_source source;
    struct reason why = { "" };
    *out = (struct job_file){ .name = name };
    enum status st = job_source_read(name, &source, &why);
    if (st != ST_OK) {
        client_error("%s", why.text);
        return st == ST_CONFIG ? EXIT_USAGE : exit_of_status(st);
    }
    out->text = source.text;
    out->size = source.size;
    (void)snprintf(out->base_dir, sizeof(out->base_dir), "%s", source.base_dir);
    return EXIT_DONE;
}

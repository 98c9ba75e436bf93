#include "bench/gpu_rows.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rows_add(struct rows *rows, const char *name, double value, const char *unit)
{
    if (rows->count == ROWS_MAX)
        return;
    struct row *row = &rows->rows[rows->count++];
    (void)snprintf(row->name, sizeof(row->name), "%s", name);
    (void)snprintf(row->unit, sizeof(row->unit), "%s", unit);
    row->value = value;
}

static struct row *find(struct rows *rows, const char *name)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (strcmp(rows->rows[i].name, name) == 0)
            return &rows->rows[i];
    }
    return NULL;
}

void rows_against(struct rows *rows, const char *name, const char *yardstick, double value)
{
    struct row *row = find(rows, name);
    if (row == NULL)
        return;
    (void)snprintf(row->yardstick, sizeof(row->yardstick), "%s", yardstick);
    row->against = value;
}

double rows_value(const struct rows *rows, const char *name)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (strcmp(rows->rows[i].name, name) == 0)
            return rows->rows[i].value;
    }
    return 0;
}

static void take_line(struct rows *rows, const char *line)
{
    json_t *result = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(result, "case"));
    const char *mode = json_string_value(json_object_get(result, "mode"));
    const double value = json_number_value(json_object_get(result, "value"));
    char yardstick[64];
    (void)snprintf(yardstick, sizeof(yardstick), "PyTorch%s%s", mode != NULL ? ", " : "",
                   mode != NULL ? mode : "");
    const struct row *row = name != NULL ? find(rows, name) : NULL;
    if (row != NULL && value > row->against)
        rows_against(rows, name, yardstick, value);
    json_decref(result);
}

void rows_read_peer(struct rows *rows, const char *python, const char *script, const char *cases)
{
    char command[1024];
    char line[1024];
    (void)snprintf(command, sizeof(command), "'%s' '%s' %s", python, script, cases);
    FILE *pipe = popen(command, "r"); /* NOLINT(cert-env33-c): the caller's own program */
    if (pipe == NULL) {
        (void)fprintf(stderr, "gpu: %s can't be run\n", python);
        return;
    }
    while (fgets(line, sizeof(line), pipe) != NULL)
        take_line(rows, line);
    if (pclose(pipe) != 0)
        (void)fprintf(stderr, "gpu: %s %s failed; its yardsticks are missing\n", script, cases);
}

void rows_print(const struct rows *rows)
{
    (void)fprintf(stderr, "%-24s %12s %-10s %12s %8s  %s\n", "case", "value", "unit", "yardstick",
                  "ratio", "of");
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *r = &rows->rows[i];
        (void)fprintf(stderr, "%-24s %12.2f %-10s", r->name, r->value, r->unit);
        if (r->against > 0)
            (void)fprintf(stderr, " %12.2f %8.3f  %s", r->against, r->value / r->against,
                          r->yardstick);
        (void)fputc('\n', stderr);
        (void)printf("{\"bench\":\"gpu\",\"case\":\"%s\",\"value\":%.9g,\"unit\":\"%s\"", r->name,
                     r->value, r->unit);
        if (r->against > 0)
            (void)printf(",\"yardstick\":\"%s\",\"yardstick_value\":%.9g,\"ratio\":%.4f",
                         r->yardstick, r->against, r->value / r->against);
        (void)printf("}\n");
    }
}

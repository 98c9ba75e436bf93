/* prometheus_dump [--families]: a made-up page of metrics, or the table of what there is: name,
 * type, labels, help, separated by tabs. For promtool and the test of docs/prometheus.md. */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "observer/prometheus/put.h"
#include "tests/unit/observer/prometheus/prometheus_fixture.h"

static const char *const own_labels[PROMETHEUS_OF_COUNT] = {
    [PROMETHEUS_OF_OBSERVER] = "",
    [PROMETHEUS_OF_JOB] = "job,name",
    [PROMETHEUS_OF_WORKER] = "job,name,rank",
    [PROMETHEUS_OF_NODE] = "node",
    [PROMETHEUS_OF_GPU] = "node,gpu",
};

static void print_families(void)
{
    for (enum prometheus_of of = PROMETHEUS_OF_OBSERVER; of < PROMETHEUS_OF_COUNT; of++) {
        const struct prometheus_table table = prometheus_families(of);
        for (size_t i = 0; i < table.count; i++) {
            const struct prometheus_family *family = &table.list[i];
            const char *comma = own_labels[of][0] && family->labels[0] ? "," : "";
            printf("%s\t%s\t%s%s%s\t%s\n", family->name, family->type, own_labels[of], comma,
                   family->labels, family->help);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--families") == 0) {
        print_families();
        return 0;
    }
    struct buf out;
    buf_init(&out, PROMETHEUS_BYTES_MAX);
    if (prometheus_write(fixture_full_view(), &out) != ST_OK)
        return 1;
    const size_t written = fwrite(out.data, 1, out.size, stdout);
    const int code = written == out.size ? 0 : 1;
    buf_release(&out);
    return code;
}

/* Feeds every file of the folders named to a fuzz target. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "tests/fuzz/fuzz.h"

static size_t replay(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[1024];
        auto_free char *data = NULL;
        size_t size = 0;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' ||
            io_read_file(io_system(), path, 16 << 20, &data, &size) != ST_OK)
            continue;
        (void)LLVMFuzzerTestOneInput((const uint8_t *)data, size);
        count++;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    for (int i = 1; i < argc; i++)
        count += replay(argv[i]);
    (void)printf("%zu inputs\n", count);
    return count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

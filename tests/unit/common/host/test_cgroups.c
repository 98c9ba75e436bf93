/* What control groups leave a process, by made-up trees of /proc and /sys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/host/cgroups.h"
#include "common/io.h"
#include "common/limits.h"
#include "tests/test.h"

#define MIB (UINT64_C(1) << 20)
#define NEW "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
#define OLD "33 20 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

static char root[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/cairn-cgroups-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", root);
    return system(command);
}

static void put(const char *path, const char *text)
{
    char whole[LIMIT_PATH], folder[LIMIT_PATH];
    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    (void)snprintf(folder, sizeof(folder), "%s", whole);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(io_mkdir_all(io_system(), folder), ST_OK);
    assert_int_equal(io_replace(io_system(), whole, text, strlen(text)), ST_OK);
}

static void process(const char *groups, const char *mounts)
{
    put("/proc/self/cgroup", groups);
    put("/proc/7/cgroup", groups);
    put("/proc/self/mountinfo", mounts);
}

static void expect(uint64_t limit, uint64_t left)
{
    for (pid_t pid = 0; pid <= 7; pid += 7) {
        const struct cgroup_memory memory = cgroup_memory_of(root, pid);
        assert_int_equal(memory.limit, limit);
        assert_int_equal(memory.left, left);
    }
}

static void without_groups_there_is_no_bound(void **state)
{
    (void)state;
    expect(UINT64_MAX, UINT64_MAX);
    process("0::/\n", NEW);
    expect(UINT64_MAX, UINT64_MAX);
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.current", "1048576\n");
    expect(UINT64_MAX, UINT64_MAX);
}

static void of_version_2_the_least_of_all_above_counts(void **state)
{
    (void)state;
    process("0::/a/b c\n", NEW);
    put("/sys/fs/cgroup/a/b c/memory.max", "104857600\n");
    put("/sys/fs/cgroup/a/b c/memory.current", "10485760\n");
    expect(100 * MIB, 90 * MIB);
    put("/sys/fs/cgroup/a/memory.max", "83886080\n");
    put("/sys/fs/cgroup/a/memory.current", "52428800\n");
    expect(80 * MIB, 30 * MIB);
    /* 20 MiB are pages of files on a disk, that can go */
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 31457280\nshmem 10485760\nfile_mapped 5\n");
    expect(80 * MIB, 50 * MIB);
}

static void of_version_1_likewise(void **state)
{
    (void)state;
    process("5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=memory:/x\n0::/\n", OLD);
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "52428800\n");
    put("/sys/fs/cgroup/memory/a/b/memory.stat",
        "cache 1\nhierarchical_memory_limit 9223372036854771712\ntotal_cache 20971520\n"
        "total_shmem 10485760\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "99999999999\n");
    expect(100 * MIB, 60 * MIB);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "83886080\n");
    put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "73400320\n");
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n");
    expect(80 * MIB, 10 * MIB);
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n"); /* doesn't count what is below */
    expect(100 * MIB, 60 * MIB);
}

static void of_version_1_a_bound_above_what_a_container_shows_counts(void **state)
{
    (void)state;
    process("4:memory:/docker/abc\n0::/\n",
            "33 20 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "52428800\n");
    expect(100 * MIB, 50 * MIB);
    put("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 41943040\n");
    expect(40 * MIB, 40 * MIB);
}

static void where_both_are_mounted_both_count(void **state)
{
    (void)state;
    process("3:cpu,memory:/m\n0::/u\n",
            "31 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            "33 20 0:29 / /mem rw - cgroup cgroup rw,cpu,memory\n");
    put("/mem/m/memory.limit_in_bytes", "104857600\n");
    put("/mem/m/memory.usage_in_bytes", "0\n");
    expect(100 * MIB, 100 * MIB);
    put("/sys/fs/cgroup/unified/u/memory.max", "83886080\n");
    put("/sys/fs/cgroup/unified/u/memory.current", "0\n");
    expect(80 * MIB, 80 * MIB);
}

static void whom_the_kernel_killed_for_memory_is_told_by_version_2(void **state)
{
    (void)state;
    uint64_t kills = 7;
    assert_false(cgroup_oom_kills(root, &kills));
    process("12:memory:/old\n0::/a/b c\n", NEW);
    assert_false(cgroup_oom_kills(root, &kills));
    put("/sys/fs/cgroup/a/b c/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 1\n");
    assert_true(cgroup_oom_kills(root, &kills));
    assert_int_equal(kills, 3);
    process("12:memory:/a/b c\n", OLD);
    assert_false(cgroup_oom_kills(root, &kills));
    assert_int_equal(kills, 3);
}

static void what_no_one_says_is_where_it_usually_is(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/\n0::/\n");
    put("/proc/7/cgroup", "4:memory:/\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "-1\n"); /* no number */
    expect(100 * MIB, 100 * MIB);
}

#define TREE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(without_groups_there_is_no_bound),
        TREE_TEST(of_version_2_the_least_of_all_above_counts),
        TREE_TEST(of_version_1_likewise),
        TREE_TEST(of_version_1_a_bound_above_what_a_container_shows_counts),
        TREE_TEST(where_both_are_mounted_both_count),
        TREE_TEST(whom_the_kernel_killed_for_memory_is_told_by_version_2),
        TREE_TEST(what_no_one_says_is_where_it_usually_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

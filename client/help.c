#include "client/help.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LEFT   29 /* cells of a left column; what is longer has a line for itself */
#define RIGHT  32 /* where the right one begins */
#define NARROW 40 /* a terminal below that is written to as if it had so many */
#define USUAL  80 /* of what is no terminal */

static size_t width_of_output(void)
{
    struct winsize size = { 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return USUAL;
    return size.ws_col < NARROW ? NARROW : size.ws_col;
}

/* Words from a column on; further lines begin at `indent`. */
static void print_words(const char *text, size_t size, size_t at, size_t indent)
{
    const size_t width = width_of_output();
    const char *end = text + size;
    bool begins = true;
    for (text += strspn(text, " \n"); text < end; text += strspn(text, " \n")) {
        size_t word = strcspn(text, " \n");
        word = text + word > end ? (size_t)(end - text) : word;
        if (!begins && at + 1 + word > width) {
            (void)printf("\n%*s", (int)indent, "");
            at = indent;
        } else if (!begins) {
            (void)putchar(' ');
            at++;
        }
        (void)printf("%.*s", (int)word, text);
        at += word;
        text += word;
        begins = false;
    }
    (void)putchar('\n');
}

static void print_row(const char *left, const char *right)
{
    if (strlen(left) > LEFT) {
        (void)printf("  ");
        print_words(left, strlen(left), 2, 6);
        (void)printf("%*s", RIGHT, "");
    } else {
        (void)printf("  %-*s ", LEFT, left);
    }
    print_words(right, strlen(right), RIGHT, RIGHT);
}

static void print_command(const struct command *command)
{
    char name[160];
    (void)snprintf(name, sizeof(name), "%s%s%s %s", command->noun == NULL ? "" : command->noun,
                   command->noun == NULL ? "" : " ", command->verb, command->usage);
    print_row(name, command->summary);
}

static void print_options(const struct option *options)
{
    for (const struct option *option = options; option != NULL && option->name != NULL; option++) {
        char left[64];
        char letter[8] = "    ";
        if (option->letter != '\0')
            (void)snprintf(letter, sizeof(letter), "-%c, ", option->letter);
        (void)snprintf(left, sizeof(left), "%s--%s%s%s", letter, option->name,
                       option->value == NULL ? "" : " ",
                       option->value == NULL ? "" : option->value);
        print_row(left, option->help);
    }
}

static void print_group(const struct command_table *table, enum command_group group)
{
    static const char *const titles[COMMAND_GROUPS] = { [GROUP_JOBS] = "jobs",
                                                        [GROUP_CHECKPOINTS] = "checkpoints",
                                                        [GROUP_NODES] = "nodes",
                                                        [GROUP_CERTIFICATES] = "certificates",
                                                        [GROUP_CLUSTER] = "the cluster" };
    (void)printf("\n%s\n", titles[group]);
    for (size_t i = 0; i < table->count; i++) {
        if (!table->commands[i].hidden && table->commands[i].group == group)
            print_command(&table->commands[i]);
    }
}

void help_all(const struct command_table *table)
{
    static const char title[] = "cairn: train neural networks on machines that fail";
    print_words(title, strlen(title), 0, 2);
    (void)putchar('\n');
    print_row("cairn up", "start a coordinator and an agent here");
    print_row("cairn submit job.yaml --watch", "train, and look on");
    for (enum command_group group = GROUP_JOBS; group < COMMAND_GROUPS; group++)
        print_group(table, group);
    (void)printf("\noptions of every command\n");
    print_options(table->options);
    static const char *const last[] = {
        "cairn help COMMAND says more of one; cairn --version prints the versions.",
        "JOB is an id, the start of one, or a name (then the newest job of that name).",
        "exit codes: 0 done, 1 internal, 2 usage or job file, 3 not found, 4 refused, 5 "
        "unreachable, 8 damaged checkpoint; waiting: 10 FAILED, 11 STOPPED or KILLED, 124 "
        "timeout, 130 detached"
    };
    (void)putchar('\n');
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++)
        print_words(last[i], strlen(last[i]), 0, 2);
}

void help_noun(const struct command_table *table, const char *noun)
{
    (void)printf("commands\n");
    for (size_t i = 0; i < table->count; i++) {
        const struct command *command = &table->commands[i];
        if (!command->hidden && command->noun != NULL && strcmp(command->noun, noun) == 0)
            print_command(command);
    }
}

void help_command(const struct command_table *table, const struct command *command)
{
    char usage[256];
    const bool verb = command->noun == NULL;
    (void)snprintf(usage, sizeof(usage), "cairn %s%s%s %s", verb ? "" : command->noun,
                   verb ? "" : " ", command->verb, command->usage);
    print_words(usage, strlen(usage), 0, 6);
    (void)printf("\n");
    print_words(command->summary, strlen(command->summary), 0, 0);
    if (command->details != NULL)
        print_words(command->details, strlen(command->details), 0, 0);
    (void)printf("\nexamples\n");
    const char *line = command->examples;
    while (line != NULL && line[0] != '\0') {
        size_t size = strcspn(line, "\n");
        (void)printf("  cairn ");
        print_words(line, size, 8, 10);
        line += size + (line[size] == '\n');
    }
    if (command->options != NULL && command->options[0].name != NULL) {
        (void)printf("\noptions\n");
        print_options(command->options);
    }
    (void)printf("\noptions of every command\n");
    print_options(table->options);
}

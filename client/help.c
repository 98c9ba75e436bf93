#include "client/help.h"

#include <stdio.h>
#include <string.h>

static void print_name(const struct command *command)
{
    (void)printf("cairn %s%s%s", command->noun == NULL ? "" : command->noun,
                 command->noun == NULL ? "" : " ", command->verb);
}

static void print_command(const struct command *command)
{
    char name[80];
    (void)snprintf(name, sizeof(name), "%s%s%s %s", command->noun == NULL ? "" : command->noun,
                   command->noun == NULL ? "" : " ", command->verb, command->usage);
    (void)printf("  %-28s %s\n", name, command->summary);
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
        (void)printf("  %-28s %s\n", left, option->help);
    }
}

void help_all(const struct command_table *table)
{
    (void)printf("cairn: train neural networks on machines that fail\n\n"
                 "  cairn up                          start a coordinator and an agent here\n"
                 "  cairn submit job.yaml --watch     train, and look on\n"
                 "\ncommands\n");
    for (size_t i = 0; i < table->count; i++) {
        if (!table->commands[i].hidden)
            print_command(&table->commands[i]);
    }
    (void)printf("\noptions of every command\n");
    print_options(table->options);
    (void)printf(
        "\ncairn help COMMAND says more of one; cairn --version prints the versions.\n"
        "JOB is an id, the start of one, or a name (then the newest job of that name).\n"
        "exit codes: 0 done, 1 internal, 2 usage or job file, 3 not found, 4 refused,\n"
        "  5 unreachable, 8 damaged checkpoint; waiting: 10 FAILED, 11 STOPPED or KILLED,\n"
        "  124 timeout, 130 detached\n");
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
    print_name(command);
    (void)printf(" %s\n\n%s\n", command->usage, command->summary);
    if (command->details != NULL)
        (void)printf("%s\n", command->details);
    (void)printf("\nexamples\n");
    const char *line = command->examples;
    while (line != NULL && line[0] != '\0') {
        size_t size = strcspn(line, "\n");
        (void)printf("  cairn %.*s\n", (int)size, line);
        line += size + (line[size] == '\n');
    }
    if (command->options != NULL && command->options[0].name != NULL) {
        (void)printf("\noptions\n");
        print_options(command->options);
    }
    (void)printf("\noptions of every command\n");
    print_options(table->options);
}

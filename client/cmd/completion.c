/*
 * completion: a script for bash, zsh or fish.
 *
 * All three hold the words of the table; jobs are asked for when TAB is pressed.
 */
#include "client/cmd/completion.h"

#include <stdio.h>
#include <string.h>

#include "client/cmd/commands.h"
#include "client/print/output.h"

#define COMPLETION_MAX ((size_t)256 << 10)

/* The verbs of a noun, or the first words (verbs without noun, and nouns) for NULL. */
static enum status put_words(const struct command_table *table, const char *noun,
                             const char *separator, struct buf *out)
{
    const char *last_noun = NULL;
    enum status st = ST_OK;
    const char *before = "";
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        const struct command *command = &table->commands[i];
        const char *word = command->verb;
        if (command->hidden)
            continue;
        if (noun == NULL && command->noun != NULL) {
            if (last_noun != NULL && strcmp(last_noun, command->noun) == 0)
                continue;
            last_noun = word = command->noun;
        } else if (noun != NULL && (command->noun == NULL || strcmp(command->noun, noun) != 0)) {
            continue;
        }
        st = buf_printf(out, "%s%s", before, word);
        before = separator;
    }
    return st;
}

static enum status put_options(const struct command_table *table, const struct command *command,
                               struct buf *out)
{
    const struct option *tables[] = { command->options, table->options };
    enum status st = ST_OK;
    for (size_t i = 0; i < 2; i++) {
        for (const struct option *option = tables[i];
             st == ST_OK && option != NULL && option->name != NULL; option++)
            st = buf_printf(out, " --%s", option->name);
    }
    return st;
}

/* Shell words that list what a positional argument can be. */
static const char *candidates(enum operand_kind kind)
{
    switch (kind) {
    case OPERAND_JOB:
    case OPERAND_CHECKPOINT:
        return "$(cairn ps -o name 2>/dev/null)";
    case OPERAND_NODE:
        return "$(cairn node ls -o name 2>/dev/null)";
    case OPERAND_WEBHOOK:
        return "$(cairn webhook ls -o name 2>/dev/null)";
    case OPERAND_SETTING:
        return "$(cairn ps -o name 2>/dev/null) workers.count=";
    case OPERAND_SHELL:
        return "bash zsh fish";
    case OPERAND_NONE:
    case OPERAND_FILE:
        return "";
    }
    return "";
}

/* One case per command: key "verb" or "noun verb". */
static enum status put_cases(const struct command_table *table, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        const struct command *command = &table->commands[i];
        if (command->hidden)
            continue;
        st = buf_printf(out, "        \"%s%s%s\") options=\"",
                        command->noun == NULL ? "" : command->noun,
                        command->noun == NULL ? "" : " ", command->verb);
        if (st == ST_OK)
            st = put_options(table, command, out);
        if (st == ST_OK) {
            st = buf_printf(out, "\"; words=\"%s\"; files=%d ;;\n", candidates(command->operand),
                            command->operand == OPERAND_FILE ||
                                command->operand == OPERAND_CHECKPOINT);
        }
    }
    return st;
}

/* "        ckpt) words="ls show ..." ;;" for every noun. */
static enum status put_nouns(const struct command_table *table, struct buf *out)
{
    const char *last = "";
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        const char *noun = table->commands[i].noun;
        if (noun == NULL || strcmp(noun, last) == 0)
            continue;
        last = noun;
        st = buf_printf(out, "        %s) words=\"", noun);
        if (st == ST_OK)
            st = put_words(table, noun, " ", out);
        if (st == ST_OK)
            st = buf_append_text(out, "\" ;;\n");
    }
    return st;
}

/* The part that bash and zsh share: sets options, words, files from the words typed so far. */
static enum status put_function(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "_cairn_find() {\n"
                                          "    options=\"\"; words=\"\"; files=0\n"
                                          "    if [ -z \"$1\" ]; then words=\"");
    if (st == ST_OK)
        st = put_words(table, NULL, " ", out);
    if (st == ST_OK)
        st = buf_append_text(out, "\"; return; fi\n    case \"$1\" in\n");
    if (st == ST_OK)
        st = put_nouns(table, out);
    if (st == ST_OK)
        st = put_cases(table, out);
    return st == ST_OK ? buf_append_text(out, "    esac\n}\n") : st;
}

static enum status put_bash(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "# bash completion: source <(cairn completion bash)\n");
    if (st == ST_OK)
        st = put_function(table, out);
    if (st != ST_OK)
        return st;
    return buf_append_text(
        out, "_cairn() {\n"
             "    local current=\"${COMP_WORDS[COMP_CWORD]}\" key=\"\" word count=0\n"
             "    local options words files\n"
             "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
             "        case \"$word\" in -*) continue ;; esac\n"
             "        count=$((count + 1))\n"
             "        [ $count -le 2 ] || break\n"
             "        _cairn_find \"${key:+$key }$word\"\n"
             "        [ -n \"$options$words\" ] || break\n"
             "        key=\"${key:+$key }$word\"\n"
             "    done\n"
             "    _cairn_find \"$key\"\n"
             "    case \"$current\" in\n"
             "        -*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\") ;;\n"
             "        *) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
             "           [ $files = 0 ] || mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
             "<(compgen -f -- \"$current\") ;;\n"
             "    esac\n"
             "}\n"
             "complete -o filenames -F _cairn cairn\n");
}

static enum status put_zsh(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "#compdef cairn\n");
    if (st == ST_OK)
        st = put_function(table, out);
    if (st != ST_OK)
        return st;
    return buf_append_text(
        out, "_cairn() {\n"
             "    local key=\"\" word options words_ files words_list count=0\n"
             "    local -a typed\n"
             "    typed=(\"${(@)words[2,CURRENT-1]}\")\n"
             "    for word in \"${typed[@]}\"; do\n"
             "        case \"$word\" in -*) continue ;; esac\n"
             "        count=$((count + 1))\n"
             "        (( count <= 2 )) || break\n"
             "        () { local words; _cairn_find \"${key:+$key }$word\"; words_=\"$words\" }\n"
             "        [[ -n \"$options$words_\" ]] || break\n"
             "        key=\"${key:+$key }$word\"\n"
             "    done\n"
             "    () { local words; _cairn_find \"$key\"; words_=\"$words\" }\n"
             "    if [[ \"$PREFIX\" == -* ]]; then\n"
             "        compadd -- ${=options}\n"
             "    else\n"
             "        compadd -- ${=words_}\n"
             "        (( files )) && _files\n"
             "    fi\n"
             "}\n"
             "compdef _cairn cairn\n");
}

static enum status put_fish_command(const struct command *command, struct buf *out)
{
    char seen[128];
    enum status st = ST_OK;
    if (command->noun == NULL) {
        (void)snprintf(seen, sizeof(seen), "__fish_seen_subcommand_from %s", command->verb);
    } else {
        (void)snprintf(seen, sizeof(seen),
                       "__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s",
                       command->noun, command->verb);
    }
    if (command->noun == NULL) {
        st = buf_printf(out, "complete -c cairn -f -n __fish_use_subcommand -a %s -d '%s'\n",
                        command->verb, command->summary);
    } else {
        st = buf_printf(out,
                        "complete -c cairn -f -n __fish_use_subcommand -a %s\n"
                        "complete -c cairn -f -n '__fish_seen_subcommand_from %s' -a %s -d '%s'\n",
                        command->noun, command->noun, command->verb, command->summary);
    }
    for (const struct option *option = command->options;
         st == ST_OK && option != NULL && option->name != NULL; option++) {
        st = buf_printf(out, "complete -c cairn -n '%s' -l %s%s -d '%s'\n", seen, option->name,
                        option->kind == OPTION_FLAG ? "" : " -x", option->help);
    }
    if (st == ST_OK && (command->operand == OPERAND_JOB || command->operand == OPERAND_CHECKPOINT ||
                        command->operand == OPERAND_SETTING)) {
        st = buf_printf(out, "complete -c cairn -n '%s' -a '(cairn ps -o name 2>/dev/null)'\n",
                        seen);
    }
    if (st == ST_OK && command->operand == OPERAND_SETTING)
        st = buf_printf(out, "complete -c cairn -n '%s' -a 'workers.count='\n", seen);
    if (st == ST_OK && command->operand == OPERAND_NODE) {
        st = buf_printf(out,
                        "complete -c cairn -f -n '%s' -a '(cairn node ls -o name "
                        "2>/dev/null)'\n",
                        seen);
    }
    if (st == ST_OK && command->operand == OPERAND_WEBHOOK) {
        st = buf_printf(out,
                        "complete -c cairn -f -n '%s' -a '(cairn webhook ls -o name "
                        "2>/dev/null)'\n",
                        seen);
    }
    if (st == ST_OK && command->operand == OPERAND_SHELL)
        st = buf_printf(out, "complete -c cairn -f -n '%s' -a 'bash zsh fish'\n", seen);
    if (st == ST_OK && (command->operand == OPERAND_FILE || command->operand == OPERAND_CHECKPOINT))
        st = buf_printf(out, "complete -c cairn -F -n '%s'\n", seen);
    return st;
}

static enum status put_fish(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "# fish completion: cairn completion fish | source\n");
    for (const struct option *option = table->options; st == ST_OK && option->name != NULL;
         option++) {
        st = buf_printf(out, "complete -c cairn -l %s%s -d '%s'\n", option->name,
                        option->kind == OPTION_FLAG ? "" : " -x", option->help);
    }
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        if (!table->commands[i].hidden)
            st = put_fish_command(&table->commands[i], out);
    }
    return st;
}

enum status completion_script(const struct command_table *table, const char *shell, struct buf *out)
{
    if (strcmp(shell, "bash") == 0)
        return put_bash(table, out);
    if (strcmp(shell, "zsh") == 0)
        return put_zsh(table, out);
    return strcmp(shell, "fish") == 0 ? put_fish(table, out) : ST_NOT_FOUND;
}

enum exit_code cmd_completion(struct client *client)
{
    auto_buf struct buf script;
    buf_init(&script, COMPLETION_MAX);
    enum status st = completion_script(client->table, client->args.operands[0], &script);
    if (st == ST_OK)
        return output_text(script.data);
    client_error("completion is for bash, zsh or fish, not '%s'", client->args.operands[0]);
    return EXIT_USAGE;
}

/*
 * completion: a script for bash, zsh or fish.
 *
 * All three hold the words of the table: commands, options, and what an option's value can be.
 * Jobs, checkpoints, nodes, webhooks and contexts are asked for when TAB is pressed (`cairn
 * complete`, complete.c).
 */
#include "client/action/completion.h"

#include <stdio.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "client/action/commands.h"
#include "client/print/columns.h"
#include "client/print/format.h"
#include "client/print/job_columns.h"
#include "client/print/node.h"

#define COMPLETION_MAX ((size_t)256 << 10)
#define WORDS_MAX      512

/* ---- what can stand where ---- */

/* Among what a word is looked for, beside fixed words. */
static const char *kind_of_operand(enum operand_kind kind)
{
    switch (kind) {
    case OPERAND_JOB:
    case OPERAND_SETTING:
        return "jobs";
    case OPERAND_CHECKPOINT:
        return "checkpoints";
    case OPERAND_NODE:
        return "nodes";
    case OPERAND_WEBHOOK:
        return "webhooks";
    case OPERAND_CONTEXT:
        return "contexts";
    case OPERAND_FILE:
        return "files";
    case OPERAND_NONE:
    case OPERAND_SHELL:
        return "";
    }
    return "";
}

static const char *words_of_operand(enum operand_kind kind)
{
    return kind == OPERAND_SHELL     ? "bash zsh fish"
           : kind == OPERAND_SETTING ? "workers.count="
                                     : "";
}

static void list_states(char out[WORDS_MAX])
{
    const ProtobufCEnumDescriptor *all = &cairn__v1__job_state__descriptor;
    size_t used = (size_t)snprintf(out, WORDS_MAX, "active over");
    for (unsigned i = 0; i < all->n_values; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%s", all->values[i].name);
        (void)format_lower(name);
        if (all->values[i].value != 0 && used < WORDS_MAX) /* 0: not known */
            used += (size_t)snprintf(out + used, WORDS_MAX - used, " %s", name);
    }
}

/* STATES and so on: several, with commas between them. */
static bool is_list(const struct option *option)
{
    const char *value = option->value == NULL ? "" : option->value;
    return strcmp(value, "STATES") == 0 || strcmp(value, "KEYS") == 0 ||
           strcmp(value, "NAMES") == 0;
}

/* The words that an option's value can be: "a|b" of the table. command NULL: of every one. */
static void words_of_value(const struct command *command, const struct option *option,
                           char out[WORDS_MAX])
{
    const bool nodes = command != NULL && command->noun != NULL;
    out[0] = '\0';
    if (option->kind == OPTION_FORMAT) {
        (void)snprintf(out, WORDS_MAX, "table wide json jsonl name");
    } else if (option->kind == OPTION_ROWS_FORMAT) {
        (void)snprintf(out, WORDS_MAX, "table csv jsonl");
    } else if (option->value != NULL && strcmp(option->value, "STATES") == 0) {
        list_states(out);
    } else if (is_list(option)) {
        columns_names(nodes ? node_columns : job_columns, " ", out, WORDS_MAX);
    } else if (option->value != NULL && strchr(option->value, '|') != NULL &&
               option->value[0] >= 'a' && option->value[0] <= 'z') {
        (void)snprintf(out, WORDS_MAX, "%s", option->value);
        for (char *c = out; *c != '\0'; c++)
            *c = (char)(*c == '|' ? ' ' : *c);
    }
}

static const char *kind_of_value(const struct option *option)
{
    const char *value = option->value == NULL ? "" : option->value;
    if (is_list(option))
        return "list";
    if (strcmp(value, "DIR") == 0)
        return "folders";
    if (strcmp(value, "CONTEXT") == 0)
        return "contexts";
    return strcmp(value, "FILE") == 0 || strcmp(value, "JOBFILE") == 0 ? "files" : "";
}

/* "ckpt ls" */
static void name_of(const struct command *command, char out[80])
{
    (void)snprintf(out, 80, "%s%s%s", command->noun == NULL ? "" : command->noun,
                   command->noun == NULL ? "" : " ", command->verb);
}

/* The verbs of a noun, or the first words (verbs without noun, and nouns) for NULL. */
static enum status put_words(const struct command_table *table, const char *noun, struct buf *out)
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
        before = " ";
    }
    return st;
}

/* ---- bash and zsh ---- */

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

/* One case per command. */
static enum status put_cases(const struct command_table *table, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        const struct command *command = &table->commands[i];
        char name[80];
        if (command->hidden)
            continue;
        name_of(command, name);
        st = buf_printf(out, "        \"%s\") cairn_options=\"", name);
        if (st == ST_OK)
            st = put_options(table, command, out);
        if (st == ST_OK) {
            st = buf_printf(out, "\"; cairn_words=\"%s\"; cairn_kind=\"%s\" ;;\n",
                            words_of_operand(command->operand), kind_of_operand(command->operand));
        }
    }
    return st;
}

/* "        ckpt|"help ckpt") cairn_words="ls show ..." ;;" for every noun. */
static enum status put_nouns(const struct command_table *table, struct buf *out)
{
    const char *last = "";
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        const char *noun = table->commands[i].noun;
        if (noun == NULL || strcmp(noun, last) == 0)
            continue;
        last = noun;
        st = buf_printf(out, "        %s|\"help %s\") cairn_words=\"", noun, noun);
        if (st == ST_OK)
            st = put_words(table, noun, out);
        if (st == ST_OK)
            st = buf_append_text(out, "\" ;;\n");
    }
    return st;
}

/* prefix: what stands before the option, a pattern: "ps  of a command, *"  of any (NULL). */
static enum status put_value_cases(const char *prefix, const struct command *command,
                                   const struct option *options, struct buf *out)
{
    enum status st = ST_OK;
    for (const struct option *option = options;
         st == ST_OK && option != NULL && option->name != NULL; option++) {
        char words[WORDS_MAX];
        if (option->kind == OPTION_FLAG)
            continue;
        words_of_value(command, option, words);
        st = buf_printf(out, "        %s--%s\"", prefix, option->name);
        if (st == ST_OK && option->letter != '\0')
            st = buf_printf(out, "|%s-%c\"", prefix, option->letter);
        if (st == ST_OK) {
            st = buf_printf(out, ") cairn_words=\"%s\"; cairn_kind=\"%s\" ;;\n", words,
                            kind_of_value(option));
        }
    }
    return st;
}

/* _cairn_value "COMMAND OPTION": does it take a value? */
static enum status put_value_function(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "_cairn_value() {\n"
                                          "    cairn_words=\"\"; cairn_kind=\"\"\n"
                                          "    case \"$1\" in\n");
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        char prefix[96], name[80];
        if (table->commands[i].hidden)
            continue;
        name_of(&table->commands[i], name);
        (void)snprintf(prefix, sizeof(prefix), "\"%s ", name);
        st = put_value_cases(prefix, &table->commands[i], table->commands[i].options, out);
    }
    if (st == ST_OK)
        st = put_value_cases("*\" ", NULL, table->options, out);
    return st == ST_OK ? buf_append_text(out, "        *) return 1 ;;\n    esac\n}\n") : st;
}

/* _cairn_walk WORDS, those before the one at the cursor: sets cairn_key, the command, and what may
 * follow; true: the last of them is an option, whose value does. */
static const char walk[] =
    "_cairn_walk() {\n"
    "    local word count=0 taken=1\n"
    "    cairn_key=\"\"\n"
    "    for word in \"$@\"; do\n"
    "        if [ $taken = 0 ]; then taken=1; continue; fi\n"
    "        case \"$word\" in\n"
    "            -*) _cairn_value \"$cairn_key $word\"; taken=$?; continue ;;\n"
    "        esac\n"
    "        [ $count -lt 2 ] || continue\n"
    "        _cairn_find \"${cairn_key:+$cairn_key }$word\"\n"
    "        if [ -z \"$cairn_options$cairn_words$cairn_kind\" ]; then\n"
    "            _cairn_find \"$cairn_key\"\n"
    "            case \"$cairn_options\" in *--quiet*) ;; *) cairn_key=\"?\" ;; "
    "esac\n"
    "            count=2; continue\n"
    "        fi\n"
    "        cairn_key=\"${cairn_key:+$cairn_key }$word\"\n"
    "        count=$((count + 1))\n"
    "    done\n"
    "    [ $taken = 1 ] && _cairn_find \"$cairn_key\"\n"
    "    [ $taken = 0 ]\n"
    "}\n"
    "_cairn_list() {\n"
    "    case \"$1\" in\n"
    "        jobs|checkpoints|nodes|webhooks|contexts) cairn complete \"$1\" -- \"$2\" "
    "2>/dev/null ;;\n"
    "    esac\n"
    "}\n";

/* What bash and zsh share: _cairn_find COMMAND sets options, words and kind of what follows it. */
static enum status put_functions(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(
        out, "_cairn_find() {\n"
             "    cairn_options=\"\"; cairn_words=\"\"; cairn_kind=\"\"\n"
             "    case \"$1\" in\n"
             "        \"\") cairn_options=\"--help --version\"; cairn_words=\"help ");
    if (st == ST_OK)
        st = put_words(table, NULL, out);
    if (st == ST_OK)
        st = buf_append_text(out, "\" ;;\n        help) cairn_words=\"");
    if (st == ST_OK)
        st = put_words(table, NULL, out);
    if (st == ST_OK)
        st = buf_append_text(out, "\" ;;\n");
    if (st == ST_OK)
        st = put_nouns(table, out);
    if (st == ST_OK)
        st = put_cases(table, out);
    if (st == ST_OK)
        st = buf_append_text(out, "    esac\n}\n");
    if (st == ST_OK)
        st = put_value_function(table, out);
    return st == ST_OK ? buf_append_text(out, walk) : st;
}

/* Words are cut at blanks alone: bash's own words end at '@' and '=', too. */
static enum status put_bash(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "# bash completion: source <(cairn completion bash)\n");
    if (st == ST_OK)
        st = put_functions(table, out);
    if (st != ST_OK)
        return st;
    return buf_append_text(
        out,
        "_cairn() {\n"
        "    local line=\"${COMP_LINE:0:COMP_POINT}\" current c part cut=\"\" before=\"\"\n"
        "    local cairn_options cairn_words cairn_kind cairn_key typed\n"
        "    current=\"${line##*[[:space:]]}\"\n"
        "    read -ra typed <<< \"${line%\"$current\"}\"\n"
        "    if ! _cairn_walk \"${typed[@]:1}\"; then\n"
        "        case \"$current\" in -*) cairn_words=\"$cairn_options\"; cairn_kind=\"\" ;; esac\n"
        "    fi\n"
        "    case \"$cairn_kind$current\" in list*,*) before=\"${current%,*},\" ;; esac\n"
        "    case \"$cairn_kind${current#\"$before\"}\" in list-*) before=\"$before-\" ;; esac\n"
        "    read -r -d '' -a typed <<< \"$cairn_words $(_cairn_list \"$cairn_kind\" "
        "\"$current\")\"\n"
        "    COMPREPLY=()\n"
        "    for c in \"${typed[@]}\"; do\n" /* compgen -W would run what they say */
        "        case \"$c\" in \"${current#\"$before\"}\"*) COMPREPLY+=(\"$before$c\") ;; esac\n"
        "    done\n"
        "    case \"$cairn_kind\" in\n"
        "        files|checkpoints) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
        "<(compgen -f -- \"$current\") ;;\n"
        "        folders) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < "
        "<(compgen -d -- \"$current\") ;;\n"
        "    esac\n"
        "    for c in : = @; do\n"
        "        case \"$COMP_WORDBREAKS\" in *\"$c\"*) ;; *) continue ;; esac\n"
        "        case \"$current\" in *\"$c\"*) part=\"${current%\"$c\"*}$c\" ;; *) part=\"\" ;; "
        "esac\n"
        "        [ ${#part} -le ${#cut} ] || cut=\"$part\"\n"
        "    done\n"
        "    COMPREPLY=(\"${COMPREPLY[@]#\"$cut\"}\")\n"
        "}\n"
        "complete -o filenames -F _cairn cairn\n");
}

static enum status put_zsh(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "#compdef cairn\n");
    if (st == ST_OK)
        st = put_functions(table, out);
    if (st != ST_OK)
        return st;
    return buf_append_text(
        out, "_cairn() {\n"
             "    local cairn_options cairn_words cairn_kind cairn_key\n"
             "    if ! _cairn_walk \"${(@)words[2,CURRENT-1]}\" && [[ \"$PREFIX\" == -* ]]; then\n"
             "        cairn_words=\"$cairn_options\"; cairn_kind=\"\"\n"
             "    fi\n"
             "    if [[ \"$cairn_kind\" == list ]]; then compset -P '*,'; compset -P -; fi\n"
             "    compadd -- ${=cairn_words} ${=\"$(_cairn_list \"$cairn_kind\" \"$PREFIX\")\"}\n"
             "    case \"$cairn_kind\" in\n"
             "        files|checkpoints) _files ;;\n"
             "        folders) _files -/ ;;\n"
             "    esac\n"
             "}\n"
             "compdef _cairn cairn\n");
}

/* ---- fish ---- */

/* Text in single quotes. */
static enum status put_quoted(const char *text, struct buf *out)
{
    enum status st = buf_append_text(out, "'");
    for (; st == ST_OK && *text != '\0'; text++)
        st = buf_printf(out, "%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
    return st == ST_OK ? buf_append_text(out, "'") : st;
}

/* seen: when; "": always. */
static enum status put_fish_option(const char *seen, const struct command *command,
                                   const struct option *option, struct buf *out)
{
    char words[WORDS_MAX];
    words_of_value(command, option, words);
    const char *kind = kind_of_value(option);
    enum status st = buf_append_text(out, "complete -c cairn");
    if (st == ST_OK && seen[0] != '\0')
        st = buf_printf(out, " -n '%s'", seen);
    if (st == ST_OK)
        st = buf_printf(out, " -l %s", option->name);
    if (st == ST_OK && option->letter != '\0')
        st = buf_printf(out, " -s %c", option->letter);
    const bool asked = strcmp(kind, "contexts") == 0;
    if (st == ST_OK && option->kind != OPTION_FLAG)
        st = buf_append_text(out, kind[0] == '\0' || asked || is_list(option) ? " -x" : " -r -F");
    if (st == ST_OK && asked)
        st = buf_printf(out, " -a '(cairn complete %s 2>/dev/null)'", kind);
    if (st == ST_OK && is_list(option)) {
        for (char *c = words; *c != '\0'; c++)
            *c = (char)(*c == ' ' ? ',' : *c);
        st = buf_printf(out, " -a '(__fish_complete_list , \"string split , %s\")'", words);
    } else if (st == ST_OK && words[0] != '\0') {
        st = buf_printf(out, " -a '%s'", words);
    }
    if (st == ST_OK)
        st = buf_append_text(out, " -d ");
    if (st == ST_OK)
        st = put_quoted(option->help, out);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status put_fish_operand(const char *seen, enum operand_kind operand, struct buf *out)
{
    const char *kind = kind_of_operand(operand), *words = words_of_operand(operand);
    const bool files = operand == OPERAND_FILE || operand == OPERAND_CHECKPOINT;
    const bool asked = kind[0] != '\0' && operand != OPERAND_FILE;
    enum status st = buf_printf(out, "complete -c cairn %s -n '%s'\n", files ? "-F" : "-f", seen);
    if (st == ST_OK && asked) {
        st = buf_printf(out,
                        "complete -c cairn -n '%s' -a '(cairn complete %s -- (commandline -ct) "
                        "2>/dev/null)'\n",
                        seen, kind);
    }
    if (st == ST_OK && words[0] != '\0')
        st = buf_printf(out, "complete -c cairn -n '%s' -a '%s'\n", seen, words);
    return st;
}

/* The verb, where nothing but its noun stands yet. */
static enum status put_fish_verb(const struct command_table *table, const struct command *command,
                                 struct buf *out)
{
    enum status st = buf_printf(out, "complete -c cairn -f -n __fish_use_subcommand -a %s",
                                command->noun == NULL ? command->verb : command->noun);
    if (st == ST_OK && command->noun != NULL) {
        st = buf_printf(out,
                        "\ncomplete -c cairn -f -n '__fish_seen_subcommand_from %s; and not "
                        "__fish_seen_subcommand_from ",
                        command->noun);
        if (st == ST_OK)
            st = put_words(table, command->noun, out);
        if (st == ST_OK)
            st = buf_printf(out, "' -a %s", command->verb);
    }
    return st == ST_OK ? buf_append_text(out, " -d ") : st;
}

static enum status put_fish_command(const struct command_table *table,
                                    const struct command *command, struct buf *out)
{
    char seen[160];
    enum status st = put_fish_verb(table, command, out);
    if (command->noun == NULL) {
        (void)snprintf(seen, sizeof(seen), "__fish_seen_subcommand_from %s", command->verb);
    } else {
        (void)snprintf(seen, sizeof(seen),
                       "__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s",
                       command->noun, command->verb);
    }
    if (st == ST_OK)
        st = put_quoted(command->summary, out);
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    for (const struct option *option = command->options;
         st == ST_OK && option != NULL && option->name != NULL; option++)
        st = put_fish_option(seen, command, option, out);
    return st == ST_OK ? put_fish_operand(seen, command->operand, out) : st;
}

static enum status put_fish(const struct command_table *table, struct buf *out)
{
    enum status st = buf_append_text(out, "# fish completion: cairn completion fish | source\n"
                                          "complete -c cairn -f -n __fish_use_subcommand -a help "
                                          "-d 'say more of a command'\n");
    if (st == ST_OK) {
        st =
            buf_append_text(out, "complete -c cairn -f -n '__fish_seen_subcommand_from help' -a '");
    }
    if (st == ST_OK)
        st = put_words(table, NULL, out);
    if (st == ST_OK)
        st = buf_append_text(out, "'\n");
    for (const struct option *option = table->options; st == ST_OK && option->name != NULL;
         option++)
        st = put_fish_option("", NULL, option, out);
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        if (!table->commands[i].hidden)
            st = put_fish_command(table, &table->commands[i], out);
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

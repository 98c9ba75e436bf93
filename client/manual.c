#include "client/manual.h"

#include <stdio.h>
#include <string.h>

#include "client/print/output.h"

#define PAGE_MAX ((size_t)1 << 20)

/* ---- roff ---- */

/* Text within a line: what roff would take for its own, or for a hyphen, as it is. */
static enum status put_text(const char *text, size_t size, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < size; i++) {
        switch (text[i]) {
        case '\\':
            st = buf_append_text(out, "\\e");
            break;
        case '-':
            st = buf_append_text(out, "\\-");
            break;
        case '\'':
            st = buf_append_text(out, "\\(aq");
            break;
        case '`':
            st = buf_append_text(out, "\\(ga");
            break;
        case '^':
            st = buf_append_text(out, "\\(ha");
            break;
        case '~':
            st = buf_append_text(out, "\\(ti");
            break;
        case '"':
            st = buf_append_text(out, "\\(dq");
            break;
        default:
            st = buf_append(out, &text[i], 1);
        }
    }
    return st;
}

/* Lines; one that would begin with a request doesn't. */
static enum status put_lines(const char *text, struct buf *out)
{
    enum status st = ST_OK;
    while (st == ST_OK && text[0] != '\0') {
        size_t size = strcspn(text, "\n");
        if (text[0] == '.')
            st = buf_append_text(out, "\\&");
        if (st == ST_OK)
            st = put_text(text, size, out);
        if (st == ST_OK)
            st = buf_append_text(out, "\n");
        text += size + (text[size] == '\n');
    }
    return st;
}

/* An empty line of the text begins a new paragraph. */
static enum status put_paragraphs(const char *text, struct buf *out)
{
    enum status st = ST_OK;
    while (st == ST_OK && text[0] != '\0') {
        const char *end = strstr(text, "\n\n");
        size_t size = end == NULL ? strlen(text) : (size_t)(end - text);
        char part[4096];
        (void)snprintf(part, sizeof(part), "%.*s", (int)size, text);
        st = put_lines(part, out);
        text += size;
        if (st == ST_OK && end != NULL) {
            st = buf_append_text(out, ".PP\n");
            text += 2;
        }
    }
    return st;
}

static enum status put_macro(const char *macro, const char *text, struct buf *out)
{
    enum status st = buf_printf(out, "%s ", macro);
    if (st == ST_OK)
        st = put_text(text, strlen(text), out);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status put_head(const char *name, int section, const char *summary, struct buf *out)
{
    enum status st = buf_printf(out, ".TH ");
    if (st == ST_OK)
        st = put_text(name, strlen(name), out);
    if (st == ST_OK)
        st = buf_printf(out, " %d \"\" \"Cairn " CAIRN_VERSION "\" \"Cairn\"\n.SH NAME\n", section);
    if (st == ST_OK)
        st = put_text(name, strlen(name), out);
    if (st == ST_OK)
        st = buf_append_text(out, " \\- ");
    if (st == ST_OK)
        st = put_text(summary, strlen(summary), out);
    return st == ST_OK ? buf_append_text(out, "\n.SH SYNOPSIS\n") : st;
}

/* ---- cairn(1) ---- */

static enum status put_option(const struct option *option, struct buf *out)
{
    char name[64] = "";
    if (option->letter != '\0')
        (void)snprintf(name, sizeof(name), "-%c, ", option->letter);
    enum status st = buf_append_text(out, ".TP\n\\fB");
    if (st == ST_OK)
        st = put_text(name, strlen(name), out);
    (void)snprintf(name, sizeof(name), "--%s", option->name);
    if (st == ST_OK)
        st = put_text(name, strlen(name), out);
    if (st == ST_OK)
        st = buf_append_text(out, "\\fR");
    if (st == ST_OK && option->value != NULL) {
        st = buf_append_text(out, " \\fI");
        if (st == ST_OK)
            st = put_text(option->value, strlen(option->value), out);
        if (st == ST_OK)
            st = buf_append_text(out, "\\fR");
    }
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    return st == ST_OK ? put_lines(option->help, out) : st;
}

static enum status put_options(const struct option *options, struct buf *out)
{
    enum status st = ST_OK;
    for (const struct option *option = options;
         st == ST_OK && option != NULL && option->name != NULL; option++)
        st = put_option(option, out);
    return st;
}

static enum status put_examples(const char *examples, struct buf *out)
{
    enum status st = buf_append_text(out, ".PP\n.EX\n");
    while (st == ST_OK && examples[0] != '\0') {
        size_t size = strcspn(examples, "\n");
        st = buf_append_text(out, "cairn ");
        if (st == ST_OK)
            st = put_text(examples, size, out);
        if (st == ST_OK)
            st = buf_append_text(out, "\n");
        examples += size + (examples[size] == '\n');
    }
    return st == ST_OK ? buf_append_text(out, ".EE\n") : st;
}

static enum status put_command(const struct command *command, struct buf *out)
{
    char title[256], summary[256];
    (void)snprintf(title, sizeof(title), "cairn %s%s%s %s",
                   command->noun == NULL ? "" : command->noun, command->noun == NULL ? "" : " ",
                   command->verb, command->usage);
    (void)snprintf(summary, sizeof(summary), "%s.", command->summary);
    if (summary[0] >= 'a' && summary[0] <= 'z')
        summary[0] = (char)(summary[0] - 'a' + 'A');
    size_t size = strlen(title);
    while (size > 0 && title[size - 1] == ' ')
        title[--size] = '\0';
    enum status st = put_macro(".SS", title, out);
    if (st == ST_OK)
        st = put_lines(summary, out);
    if (st == ST_OK && command->details != NULL)
        st = put_paragraphs(command->details, out);
    if (st == ST_OK)
        st = put_options(command->options, out);
    return st == ST_OK ? put_examples(command->examples, out) : st;
}

/* What isn't in the table. */
static const char after_commands[] =
    ".SH JOBS\n"
    "A \\fIJOB\\fR is an id, the start of one, or a name: then the newest job of that name.\n"
    "\\fIJOB@STEP\\fR is one of its checkpoints; a folder of a store does, too.\n"
    ".SH EXIT STATUS\n";

static const struct {
    int code;
    const char *meaning;
} exits[] = {
    { EXIT_DONE, "Done." },
    { EXIT_INTERNAL, "Something inside failed; of ckpt diff and audit: there is a difference." },
    { EXIT_USAGE, "The call, or the job file, has a mistake." },
    { EXIT_NOT_FOUND, "There is no such job, checkpoint, node or file." },
    { EXIT_REFUSED, "Not in this state, or not for this user." },
    { EXIT_UNREACHABLE, "No coordinator answers." },
    { EXIT_DAMAGED, "A checkpoint is damaged." },
    { EXIT_FAILED, "The job that was waited for has FAILED." },
    { EXIT_STOPPED, "The job that was waited for is STOPPED or KILLED." },
    { EXIT_TIMED_OUT, "The time of --timeout is over." },
    { EXIT_DETACHED, "Ctrl-C: the job goes on." },
};

static const struct {
    const char *name, *meaning;
} variables[] = {
    { "CAIRN_HOME", "The folder of this instance (default: $XDG_STATE_HOME/cairn, else "
                    "~/.local/state/cairn, of root "
                    "/var/lib/cairn)." },
    { "CAIRN_ADDR", "As --addr." },
    { "CAIRN_CONTEXT", "As --context." },
    { "XDG_CONFIG_HOME", "Contexts are in cairn/contexts.json in it (default: ~/.config)." },
    { "CAIRN_TLS_CERT, CAIRN_TLS_KEY, CAIRN_TLS_CA", "As --tls-cert, --tls-key and --tls-ca." },
    { "CAIRN_TOKEN_FILE", "The token for TCP on loopback (default: token in the home)." },
    { "NO_COLOR", "If it is set and not empty: no colours." },
};

static enum status put_rest(struct buf *out)
{
    enum status st = buf_append_text(out, after_commands);
    for (size_t i = 0; st == ST_OK && i < sizeof(exits) / sizeof(exits[0]); i++) {
        st = buf_printf(out, ".TP\n\\fB%d\\fR\n", exits[i].code);
        if (st == ST_OK)
            st = put_lines(exits[i].meaning, out);
    }
    if (st == ST_OK)
        st = buf_append_text(out, ".SH ENVIRONMENT\n");
    for (size_t i = 0; st == ST_OK && i < sizeof(variables) / sizeof(variables[0]); i++) {
        st = buf_printf(out, ".TP\n\\fB%s\\fR\n", variables[i].name);
        if (st == ST_OK)
            st = put_lines(variables[i].meaning, out);
    }
    if (st != ST_OK)
        return st;
    return buf_append_text(out, ".SH SEE ALSO\n\\fBcairnd\\fR(8), \\fBcairn\\-agent\\fR(8)\n");
}

enum status manual_of_table(const struct command_table *table, struct buf *out)
{
    enum status st = put_head("cairn", 1, "train neural networks on machines that fail", out);
    if (st == ST_OK) {
        st = buf_append_text(out, "\\fBcairn\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"
                                  ".SH DESCRIPTION\n"
                                  "\\fBcairn up\\fR starts a coordinator and an agent on this "
                                  "machine, \\fBcairn submit\\fR trains what a job\nfile says, "
                                  "\\fBcairn watch\\fR looks on, and \\fBcairn why\\fR tells what "
                                  "happened to a job.\n.SH COMMANDS\n");
    }
    for (size_t i = 0; st == ST_OK && i < table->count; i++) {
        if (!table->commands[i].hidden)
            st = put_command(&table->commands[i], out);
    }
    if (st == ST_OK)
        st = buf_append_text(out, ".SH OPTIONS OF EVERY COMMAND\n");
    if (st == ST_OK)
        st = put_options(table->options, out);
    return st == ST_OK ? put_rest(out) : st;
}

/* ---- of a program's help ---- */

static size_t indent_of(const char *line)
{
    return strspn(line, " ");
}

/* "  --slots N  workers": the option up to two blanks, and what it does. */
static enum status put_help_option(const char *line, size_t size, struct buf *out)
{
    const char *name = line + indent_of(line);
    const char *end = line + size;
    const char *text = name;
    while (text + 1 < end && !(text[0] == ' ' && text[1] == ' '))
        text++;
    const size_t name_size = text + 1 < end ? (size_t)(text - name) : (size_t)(end - name);
    const char *rest = name + name_size;
    while (rest < end && *rest == ' ')
        rest++;
    enum status st = buf_append_text(out, ".TP\n\\fB");
    if (st == ST_OK)
        st = put_text(name, name_size, out);
    if (st == ST_OK)
        st = buf_append_text(out, rest < end && rest[0] == '.' ? "\\fR\n\\&" : "\\fR\n");
    if (st == ST_OK)
        st = put_text(rest, (size_t)(end - rest), out);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status put_help_line(const char *line, size_t size, bool *after_empty, struct buf *out)
{
    const size_t indent = indent_of(line);
    if (size == 0) {
        *after_empty = true;
        return ST_OK;
    }
    const bool option = indent == 2 && line[2] == '-';
    enum status st = *after_empty && !option ? buf_append_text(out, ".PP\n") : ST_OK;
    *after_empty = false;
    if (st == ST_OK && option)
        return put_help_option(line, size, out);
    if (st == ST_OK && line[indent] == '.')
        st = buf_append_text(out, "\\&");
    if (st == ST_OK)
        st = put_text(line + indent, size - indent, out);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

enum status manual_of_help(const char *name, const char *summary, const char *help, struct buf *out)
{
    static const char usage[] = "usage: ";
    enum status st = put_head(name, 8, summary, out);
    bool synopsis = true, after_empty = false;
    if (st == ST_OK)
        st = buf_append_text(out, ".nf\n");
    while (st == ST_OK && help[0] != '\0') {
        size_t size = strcspn(help, "\n");
        const bool first = strncmp(help, usage, sizeof(usage) - 1) == 0;
        if (synopsis && size == 0) {
            synopsis = false;
            st = buf_append_text(out, ".fi\n.SH DESCRIPTION\n");
        } else if (synopsis) {
            const size_t skip =
                first || indent_of(help) >= sizeof(usage) - 1 ? sizeof(usage) - 1 : 0;
            st = put_text(help + skip, size - skip, out);
            if (st == ST_OK)
                st = buf_append_text(out, "\n");
        } else {
            st = put_help_line(help, size, &after_empty, out);
        }
        help += size + (help[size] == '\n');
    }
    if (st == ST_OK && synopsis)
        st = buf_append_text(out, ".fi\n");
    return st == ST_OK ? buf_append_text(out, ".SH SEE ALSO\n\\fBcairn\\fR(1)\n") : st;
}

/* ---- the command ---- */

static enum status read_help(struct buf *out)
{
    char piece[4096];
    size_t size;
    enum status st = buf_append_text(out, "");
    while (st == ST_OK && (size = fread(piece, 1, sizeof(piece), stdin)) > 0)
        st = buf_append(out, piece, size);
    return st;
}

enum exit_code cmd_manual(struct client *client)
{
    const struct arguments *args = &client->args;
    auto_buf struct buf page, help;
    buf_init(&page, PAGE_MAX);
    buf_init(&help, PAGE_MAX);
    if (args->operand_count == 1) {
        client_error(
            "manual takes a program's name and what it is, and its help on standard input");
        return EXIT_USAGE;
    }
    enum status st = args->operand_count == 0 ? ST_OK : read_help(&help);
    if (st == ST_OK && args->operand_count == 0)
        st = manual_of_table(client->table, &page);
    if (st == ST_OK && args->operand_count > 0) {
        st = manual_of_help(args->operands[0], args->operands[1], help.size == 0 ? "" : help.data,
                            &page);
    }
    if (st == ST_OK)
        return output_text(page.data);
    client_error("manual: %s", status_string(st));
    return EXIT_INTERNAL;
}

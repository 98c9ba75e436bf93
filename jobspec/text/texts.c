#include "jobspec/text/texts.h"

#include <string.h>

#define MARK '\1' /* before each text of a list */

const char *texts_next(const char *texts, const char *before)
{
    const char *at = before == NULL ? texts : before + strlen(before) + 1;
    return *at == MARK ? at + 1 : NULL;
}

bool texts_append(char *texts, size_t capacity, size_t *used, const char *text)
{
    const size_t size = strlen(text);
    if (size > capacity || *used + size + 3 > capacity) /* mark, NUL, and the end of the list */
        return false;
    texts[*used] = MARK;
    memcpy(texts + *used + 1, text, size + 1);
    *used += size + 2;
    texts[*used] = '\0';
    return true;
}

bool texts_hold_controls(const char *text, bool lines)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        const bool high = c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0;
        if ((*c < 0x20 && *c != '\t' && !(lines && *c == '\n')) || *c == 0x7F || high)
            return true;
    }
    return false;
}

enum status texts_print_quoted(const char *text, struct buf *out)
{
    enum status st = buf_append_text(out, "\"");
    for (; st == ST_OK && *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            st = buf_printf(out, "\\%c", *text);
        } else if (*text == '\n' || *text == '\t') {
            st = buf_append_text(out, *text == '\n' ? "\\n" : "\\t");
        } else {
            st = buf_append(out, text, 1);
        }
    }
    return st == ST_OK ? buf_append_text(out, "\"") : st;
}

enum status texts_print_list(const char *texts, struct buf *out)
{
    enum status st = buf_append_text(out, "[");
    const char *text = texts_next(texts, NULL);
    for (bool first = true; st == ST_OK && text != NULL; first = false) {
        st = buf_append_text(out, first ? "" : ", ");
        if (st == ST_OK)
            st = texts_print_quoted(text, out);
        text = texts_next(texts, text);
    }
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

#include "client/print/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/print/format.h"
#include "client/print/output.h"
#include "common/buf.h"
#include "common/check.h"

#define PAINT_BYTES  ((size_t)512 << 10)
#define LINE_BYTES   2048
#define SEQUENCE_MS  25 /* from ESC to the rest of what a key sends */
#define SEQUENCE_MAX 16 /* bytes of it */

/* The other buffer, no cursor, no automatic wrapping; and back. */
static const char enter_text[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
static const char leave_text[] = "\033[?7h\033[?25h\033[?1049l";

void screen_size(size_t *out_columns, size_t *out_rows)
{
    struct winsize size = { 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
        size.ws_col = 80; /* some terminals don't know */
    if (size.ws_row < 2)
        size.ws_row = 1000;
    *out_columns = (size_t)size.ws_col - 1;
    *out_rows = (size_t)size.ws_row - 1;
}

static enum status put_line(const struct screen *screen, const char *text, size_t size,
                            size_t columns, struct buf *out)
{
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof(line), "%.*s", (int)size, text);
    return buf_printf(out, "\r%.*s%s\033[K\n", (int)format_fit(line, columns), line,
                      output_color_off(screen->client));
}

void screen_paint(struct screen *screen, const char *text)
{
    auto_buf struct buf out;
    size_t columns = 0, rows = 0;
    screen_size(&columns, &rows);
    buf_init(&out, PAINT_BYTES);
    enum status st = ST_OK;
    if (screen->full) {
        st = buf_append_text(&out, "\033[H");
    } else if (screen->painted > 0) {
        st = buf_printf(&out, "\033[%zuA", screen->painted);
    }
    screen->painted = 0;
    while (st == ST_OK && text[0] != '\0' && screen->painted < rows) {
        size_t size = strcspn(text, "\n");
        st = put_line(screen, text, size, columns, &out);
        screen->painted++;
        text += size + (text[size] == '\n');
    }
    if (st == ST_OK && buf_append_text(&out, "\033[J") == ST_OK)
        screen->broken = output_text(out.data) != EXIT_DONE;
}

/* ---- the terminal, and back ---- */

bool screen_catch(struct screen *screen)
{
    sigset_t set;
    CHECK(screen->client->channel == NULL); /* gRPC's threads inherit the mask */
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGWINCH);
    (void)sigaddset(&set, SIGTSTP);
    (void)sigaddset(&set, SIGCONT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGQUIT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return false;
    screen->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    screen->caught = screen->signal_fd >= 0;
    return screen->caught;
}

/* Comes back at once where the process is in the background: then the kernel stops it. */
static void change_keys(struct screen *screen)
{
    struct termios now = screen->before;
    now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    now.c_cc[VMIN] = 1;
    now.c_cc[VTIME] = 0;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &now);
}

void screen_enter(struct screen *screen)
{
    screen->keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &screen->before) == 0;
    if (screen->keys)
        change_keys(screen);
    screen->full = true;
    screen->broken = output_text(enter_text) != EXIT_DONE;
}

void screen_leave(struct screen *screen)
{
    if (!screen->full)
        return;
    screen->full = false;
    screen->painted = 0;
    (void)output_text(leave_text);
    if (screen->keys)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &screen->before);
}

void screen_release(struct screen *screen)
{
    screen_leave(screen);
    if (screen->caught)
        (void)close(screen->signal_fd);
    screen->caught = false;
}

/* Ctrl-Z: stops this process, and comes back when it is continued. */
static void stop_here(struct screen *screen)
{
    sigset_t set;
    screen_leave(screen);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTSTP);
    (void)raise(SIGTSTP); /* blocked until the next line */
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    screen_enter(screen);
}

/* Goes on after somebody else stopped the process: the shell has set the terminal as it likes
 * it. */
static void go_on(struct screen *screen)
{
    if (screen->keys)
        change_keys(screen);
    (void)output_text(enter_text);
}

static enum screen_key take_signal(struct screen *screen)
{
    struct signalfd_siginfo info;
    if (read(screen->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return SCREEN_NONE;
    if (info.ssi_signo == SIGHUP || info.ssi_signo == SIGQUIT)
        return SCREEN_LEAVE;
    if (screen->full && info.ssi_signo == SIGTSTP)
        stop_here(screen);
    if (screen->full && info.ssi_signo == SIGCONT)
        go_on(screen);
    return SCREEN_AGAIN;
}

/* ---- keys ---- */

/* Returns the key of a sequence such as "ESC [ A", "ESC O A" or "ESC [ 5 ~", by its last byte and
 * its first number. */
static enum screen_key key_of_sequence(char last, char number)
{
    static const struct {
        char last, number;
        enum screen_key key;
    } keys[] = {
        { 'A', 0, SCREEN_UP },     { 'B', 0, SCREEN_DOWN },      { 'C', 0, SCREEN_RIGHT },
        { 'D', 0, SCREEN_LEFT },   { 'H', 0, SCREEN_HOME },      { 'F', 0, SCREEN_END },
        { '~', '1', SCREEN_HOME }, { '~', '7', SCREEN_HOME },    { '~', '4', SCREEN_END },
        { '~', '8', SCREEN_END },  { '~', '5', SCREEN_PAGE_UP }, { '~', '6', SCREEN_PAGE_DOWN },
        { 'M', 0, SCREEN_ENTER }, /* of the number pad */
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (keys[i].last == last && (keys[i].number == 0 || keys[i].number == number))
            return keys[i].key;
    }
    return SCREEN_OTHER;
}

enum screen_key screen_key_of(const char *bytes, size_t size, size_t *out_used, char *out_letter)
{
    const unsigned char first = size > 0 ? (unsigned char)bytes[0] : 0;
    *out_used = size > 0;
    *out_letter = '\0';
    if (size == 0)
        return SCREEN_NONE;
    if (first == '\r' || first == '\n')
        return SCREEN_ENTER;
    if (first == 0x7F || first == '\b')
        return SCREEN_LEFT;
    if (first == '\f')
        return SCREEN_AGAIN;
    *out_letter = (char)first;
    if (first != '\033')
        return first >= ' ' && first < 0x7F ? SCREEN_LETTER : SCREEN_OTHER;
    if (size == 1) {
        *out_used = 0;
        return SCREEN_NONE;
    }
    if (bytes[1] != '[' && bytes[1] != 'O')
        return SCREEN_ESCAPE;
    for (size_t i = 2; i < size; i++) {
        if (bytes[i] >= '@' && bytes[i] <= '~') {
            *out_used = i + 1;
            return key_of_sequence(bytes[i], bytes[2]);
        }
    }
    *out_used = size < SEQUENCE_MAX ? 0 : size;
    return *out_used == 0 ? SCREEN_NONE : SCREEN_OTHER;
}

static void drop_input(struct screen *screen, size_t used)
{
    screen->input_size -= used;
    memmove(screen->input, screen->input + used, screen->input_size);
}

/* false: there will be no more of it. */
static bool read_input(struct screen *screen)
{
    const ssize_t size = read(STDIN_FILENO, screen->input + screen->input_size,
                              sizeof(screen->input) - screen->input_size);
    if (size > 0)
        screen->input_size += (size_t)size;
    return size > 0 || (size < 0 && (errno == EINTR || errno == EAGAIN));
}

/* Takes the next key from the input that was read; the rest of an incomplete sequence is waited
 * for, for a moment. */
static enum screen_key take_key(struct screen *screen, char *out_letter)
{
    size_t used = 0;
    struct pollfd more = { .fd = STDIN_FILENO, .events = POLLIN };
    for (;;) {
        enum screen_key key = screen_key_of(screen->input, screen->input_size, &used, out_letter);
        if (used > 0 || screen->input_size == 0) {
            drop_input(screen, used);
            return key;
        }
        if (poll(&more, 1, SEQUENCE_MS) != 1 || !read_input(screen)) {
            drop_input(screen, screen->input_size); /* ESC by itself */
            return SCREEN_ESCAPE;
        }
    }
}

enum screen_key screen_wait(struct screen *screen, int64_t ms, char *out_letter)
{
    struct pollfd fds[] = { { .fd = screen->client->signal_fd, .events = POLLIN },
                            { .fd = screen->signal_fd, .events = POLLIN },
                            { .fd = screen->keys ? STDIN_FILENO : -1, .events = POLLIN } };
    CHECK(screen->caught);
    *out_letter = '\0';
    if (screen->broken)
        return SCREEN_LEAVE;
    if (screen->input_size > 0)
        return take_key(screen, out_letter);
    if (poll(fds, 3, ms < 0 ? 0 : (int)ms) <= 0 || fds[0].revents != 0)
        return SCREEN_NONE;
    if (fds[1].revents != 0)
        return take_signal(screen);
    if (!read_input(screen))
        return SCREEN_LEAVE;
    return take_key(screen, out_letter);
}

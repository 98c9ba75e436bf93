/*
 * Some lines of a terminal that are painted over again and again (`cairn watch`), or all of it,
 * with keys (`cairn top`). One painter for both.
 *
 * A screen that was entered has the terminal's other buffer, no cursor, and keys without Enter;
 * Ctrl-C and Ctrl-Z stay signals. screen_leave gives everything back; so does Ctrl-Z, until the
 * shell brings the process to the front again. Whoever ends the process otherwise must leave first.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <termios.h>

#include "client/base/client.h"

#define SCREEN_INPUT_MAX 64

/* Zeroed but for the client: one that paints lines, below what is there. */
struct screen {
    const struct client *client; /* borrowed */
    bool full;                   /* entered */
    bool broken;                 /* standard output is gone */
    size_t painted;              /* lines above the cursor */
    bool caught;                 /* signal_fd is open */
    int signal_fd;
    bool keys; /* standard input is a terminal, and was changed */
    struct termios before;
    char input[SCREEN_INPUT_MAX]; /* read, not yet a key */
    size_t input_size;
};

enum screen_key {
    SCREEN_NONE,   /* the time is over, or Ctrl-C came (interrupt_came) */
    SCREEN_AGAIN,  /* paint again: another size, back from Ctrl-Z, Ctrl-L */
    SCREEN_LEAVE,  /* the terminal is gone, or Ctrl-\ */
    SCREEN_LETTER, /* in out_letter */
    SCREEN_ENTER,
    SCREEN_ESCAPE,
    SCREEN_UP,
    SCREEN_DOWN,
    SCREEN_LEFT,
    SCREEN_RIGHT,
    SCREEN_PAGE_UP,
    SCREEN_PAGE_DOWN,
    SCREEN_HOME,
    SCREEN_END,
    SCREEN_OTHER, /* some other key */
};

/* The terminal's cells that are painted on: without the last column and line, in which a cursor
 * that moves on would scroll. */
void screen_size(size_t *out_columns, size_t *out_rows);

/* Paints lines, cut to the terminal, over those before. */
void screen_paint(struct screen *screen, const char *text);

/* Signals of the terminal come to screen_wait from here on. To be called before the first call of
 * the coordinator, like interrupt_catch. */
bool screen_catch(struct screen *screen);
void screen_enter(struct screen *screen);
/* Leaves a screen that was entered; else does nothing. */
void screen_leave(struct screen *screen);
/* Leaves, and closes what screen_catch opened. */
void screen_release(struct screen *screen);

/* Waits for a key, ms at most. Of a screen that was caught. */
enum screen_key screen_wait(struct screen *screen, int64_t ms, char *out_letter);

/* The key that bytes of a terminal begin with; *out_used of them; 0: the rest isn't there yet. */
enum screen_key screen_key_of(const char *bytes, size_t size, size_t *out_used, char *out_letter);

#include "trainer/data/token_kind.h"

#include <stdbool.h>
#include <string.h>

#include "trainer/data/data_error.h"

#define MAGIC_EVALUATION 20240522u /* llm.c: questions with answers */
#define LOOKED_AT        ((size_t)64 * 1024)
#define LEAST            ((size_t)128) /* bytes: less than that looks like anything */
#define FEW              3             /* the high halves of tokens of four bytes are at most */

/* ---- other formats ---- */

struct magic {
    const char *bytes;
    size_t size;
    const char *what;    /* "a NumPy array (.npy)" */
    const char *way_out; /* NULL: there is none but another file */
};

/* NOLINTBEGIN(bugprone-sizeof-expression): of texts */
#define BYTES(text) (text), sizeof(text) - 1

/* By a file's first bytes. NULL: none that is known. */
static const struct magic *find_magic(const void *bytes, size_t size)
{
    static const struct magic kinds[] = {
        { BYTES("version https://git-lfs"), "a pointer of git-lfs, not the file that it stands for",
          "fetch that with 'git lfs pull'" },
        { BYTES("\x93NUMPY"), "a NumPy array (.npy)",
          "write its elements alone: numpy.load(FILE).astype('<u2').tofile(OTHER)" },
        { BYTES("PK\x03\x04"), "a zip archive, as .npz and .pt files are", "unpack it" },
        { BYTES("\x1f\x8b"), "compressed by gzip", "unpack it" },
        { BYTES("\x28\xb5\x2f\xfd"), "compressed by zstd", "unpack it" },
        { BYTES("\xfd\x37zXZ"), "compressed by xz", "unpack it" },
        { BYTES("\x89PNG\r\n"), "an image (PNG)", NULL },
        { BYTES("\x89HDF\r\n"), "an HDF5 file", NULL },
        { BYTES("PAR1"), "a Parquet table", NULL },
        { BYTES("ARROW1"), "an Arrow table", NULL },
        { BYTES("MMIDIDX"), "Megatron's index of documents", "name the .bin file beside it" },
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (size >= kinds[i].size && memcmp(bytes, kinds[i].bytes, kinds[i].size) == 0)
            return &kinds[i];
    }
    return NULL;
}
/* NOLINTEND(bugprone-sizeof-expression) */

static enum status refuse_magic(const char *path, const struct magic *magic, struct reason *reason)
{
    reason_set(reason, "%s: is %s, not a file of tokens; %s", path, magic->what,
               magic->way_out != NULL ? magic->way_out : "correct the path in the job file");
    return ST_CONFIG;
}

/* ---- text ---- */

/* Bytes of the UTF-8 sequence that begins there, as its first byte says; 0: none begins with it. */
static size_t sequence_bytes(uint8_t first)
{
    if (first < 0x80)
        return first >= 0x20 || (first >= '\t' && first <= '\r') || first == 0x1b ? 1 : 0;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* UTF-8 without other control characters than those of lines. Tokens below 256 have zeros. */
static bool is_text(const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        const size_t length = sequence_bytes(bytes[at]);
        if (length == 0)
            return false;
        for (size_t i = 1; i < length && at + i < size; i++) {
            if ((bytes[at + i] & 0xc0) != 0x80)
                return false;
        }
        at += length;
    }
    return true;
}

/* ---- other widths ---- */

static unsigned word(const uint8_t *bytes, size_t i, bool big_endian)
{
    const unsigned a = bytes[2 * i], b = bytes[2 * i + 1];
    return big_endian ? a << 8 | b : a | b << 8;
}

/* Every second word is next to nothing, and those between aren't: they are halves of numbers.
 * high: which of each two that is, 0 or 1. */
static bool are_halves(const uint8_t *bytes, size_t size, size_t high)
{
    const size_t words = size / 4 * 2;
    size_t large = 0;
    for (size_t i = 0; i < words; i += 2) {
        if (word(bytes, i + high, high == 0) > FEW)
            return false;
        const size_t low = i + (1 - high);
        large += word(bytes, low, true) > FEW && word(bytes, low, false) > FEW;
    }
    return large >= words / 2 / 8; /* of eight bytes half are high ones, too */
}

enum status token_kind_check_text(const char *path, const uint8_t *bytes, size_t size,
                                  struct reason *reason)
{
    const struct magic *magic = find_magic(bytes, size);
    if (magic == NULL || strncmp(magic->bytes, "version", 7) != 0)
        return ST_OK;
    reason_set(reason, "%s: is %s; %s", path, magic->what, magic->way_out);
    return ST_CONFIG;
}

enum status token_kind_check(const char *path, const uint8_t *bytes, size_t size,
                             struct reason *reason)
{
    const struct magic *magic = find_magic(bytes, size);
    const uint8_t evaluation[] = { MAGIC_EVALUATION & 0xff, MAGIC_EVALUATION >> 8 & 0xff,
                                   MAGIC_EVALUATION >> 16 & 0xff, MAGIC_EVALUATION >> 24 };
    if (magic != NULL)
        return refuse_magic(path, magic, reason);
    if (size >= sizeof(evaluation) && memcmp(bytes, evaluation, sizeof(evaluation)) == 0) {
        return data_refuse(
            path,
            "is llm.c's file of questions for an evaluation, not a stream of tokens; "
            "name a file of tokens",
            reason);
    }
    size = size < LOOKED_AT ? size : LOOKED_AT;
    if (size < LEAST)
        return ST_OK;
    if (is_text(bytes, size)) {
        return data_refuse(path,
                           "is text, not tokens of two bytes; set format: text to train on its "
                           "bytes, or write the tokens that a tokenizer makes of it",
                           reason);
    }
    if (are_halves(bytes, size, 1) || are_halves(bytes, size, 0)) {
        return data_refuse(path,
                           "every second token is 0: it looks like numbers of four or eight bytes, "
                           "but a token has two; write them as numpy's '<u2'",
                           reason);
    }
    return ST_OK;
}

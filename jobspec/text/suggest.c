#include "jobspec/text/suggest.h"

#include <string.h>

#define WORD_MAX 48

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t suggest_distance(const char *a, const char *b)
{
    size_t n = strlen(a);
    size_t m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX)
        return WORD_MAX;
    size_t d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            size_t cost = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            cost = smaller(cost, d[i - 1][j] + 1);
            cost = smaller(cost, d[i][j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = smaller(cost, d[i - 2][j - 2] + 1);
            d[i][j] = cost;
        }
    }
    return d[n][m];
}

size_t suggest_limit(const char *word)
{
    return strlen(word) < 6 ? 1 : 2;
}

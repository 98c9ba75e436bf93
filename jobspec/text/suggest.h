/*
 * "Did you mean": how far two words are apart.
 */
#pragma once

#include <stddef.h>

/* Insertions, deletions, changes and swaps of neighbours that make a from b (optimal string
 * alignment). Words over 48 bytes are far from everything. */
size_t suggest_distance(const char *a, const char *b);

/* The largest distance at which a suggestion for this word is no guess: a third of its letters, 1
 * or 2. */
size_t suggest_limit(const char *word);

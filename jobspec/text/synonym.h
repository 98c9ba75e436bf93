/* Keys of a job that people know from other programs. */
#pragma once

/* Returns the path of ours that such a key means, also where a letter of a long one is wrong; NULL:
 * it is none of them. */
const char *synonym_find(const char *key);

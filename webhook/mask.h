/*
 * A list of webhooks as it may be shown: what could be a part of an address is covered, byte for
 * byte, so that places stay where they are. Also where the list is no YAML at all.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>

/* Covers what is secret in size bytes of text. */
void webhook_mask(char *text, size_t size);

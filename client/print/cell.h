/*
 * Cells of tables that several messages have: each gets a member of the kind named and writes it as
 * people read it, in at most capacity bytes.
 */
#pragma once

#include <stddef.h>

void cell_text(const void *text, char *out, size_t capacity);          /* char * */
void cell_optional_text(const void *text, char *out, size_t capacity); /* char *; "-" for "" */
void cell_u32(const void *value, char *out, size_t capacity);
void cell_u64(const void *value, char *out, size_t capacity);
void cell_size(const void *value, char *out, size_t capacity);   /* size_t */
void cell_number(const void *value, char *out, size_t capacity); /* double */
void cell_bytes(const void *bytes, char *out, size_t capacity);  /* uint64_t: "86.2 MiB" */
void cell_us(const void *us, char *out, size_t capacity);        /* uint64_t: "12.3ms" */
void cell_age(const void *since, char *out, size_t capacity);    /* char *, a time: "3m" */

/* The value by which rows are ordered, of the same members; NaN: not known. */
double cell_value_u32(const void *value);
double cell_value_size(const void *value);
double cell_value_number(const void *value);
double cell_value_time(const void *time); /* the later, the higher */
double cell_value_age(const void *since); /* the longer ago, the higher */

/* What jansson's json_loadf compares a file with, in place of stdin: nobody here calls it. */
extern void *library_no_stdin __attribute__((visibility("hidden")));
void *library_no_stdin;

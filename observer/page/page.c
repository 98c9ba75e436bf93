/* The files that assemble.cmake made, as they are, among the constants of the program. */
#include "observer/page/page.h"

__asm__(".pushsection .rodata\n"
        "page_html_begin:\n"
        ".incbin \"" PAGE_HTML "\"\n"
        "page_html_end:\n"
        "page_gzip_begin:\n"
        ".incbin \"" PAGE_HTML ".gz\"\n"
        "page_gzip_end:\n"
        "page_csp_begin:\n"
        ".incbin \"" PAGE_CSP "\"\n"
        ".byte 0\n"
        "page_tag_begin:\n"
        ".incbin \"" PAGE_TAG "\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char page_html_begin[], page_html_end[], page_gzip_begin[], page_gzip_end[];
extern const char page_csp_begin[], page_tag_begin[];

const char *page_html(size_t *out_size)
{
    *out_size = (size_t)(page_html_end - page_html_begin);
    return page_html_begin;
}

const char *page_gzip(size_t *out_size)
{
    *out_size = (size_t)(page_gzip_end - page_gzip_begin);
    return page_gzip_begin;
}

const char *page_tag(void)
{
    return page_tag_begin;
}

const char *page_csp(void)
{
    return page_csp_begin;
}

/* The files that assemble.cmake made, as they are, among the constants of the program. */
#include "observer/page/page.h"

__asm__(".pushsection .rodata\n"
        "page_html_begin:\n"
        ".incbin \"" PAGE_HTML "\"\n"
        "page_html_end:\n"
        "page_csp_begin:\n"
        ".incbin \"" PAGE_CSP "\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char page_html_begin[], page_html_end[], page_csp_begin[];

const char *page_html(size_t *out_size)
{
    *out_size = (size_t)(page_html_end - page_html_begin);
    return page_html_begin;
}

const char *page_csp(void)
{
    return page_csp_begin;
}

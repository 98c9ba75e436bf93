/* A library that is there for the linker and nowhere at run time. */
int cairn_absent(void);

int cairn_absent(void)
{
    return 0;
}

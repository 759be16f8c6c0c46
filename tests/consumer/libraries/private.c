/* A library that has hvd for itself. */
#include <hvd/c/hvd.h>

#ifdef NAME
__attribute__((visibility("default"))) const char* NAME(void);

const char* NAME(void) { return hvd_version(); }
#else
#include <stdio.h>

const char* first(void);
const char* second(void);

int main(void) {
  printf("%s %s\n", first(), second());
  return 0;
}
#endif

/* tests/c/check.h: what the C programs need to check something. */
#ifndef HVD_TESTS_C_CHECK_H
#define HVD_TESTS_C_CHECK_H

#include <hvd/c/hvd.h>

#include <stdio.h>
#include <string.h>

/* Checks of this process, and how many of them failed. */
static int checks, failures;

static void report(const char* file, int line, const char* what, const char* why) {
  ++failures;
  fprintf(stderr, "%s:%d: %s%s%s\n", file, line, what, *why ? ": " : "", why);
}

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    ++checks;                                                                                                          \
    if (!(condition)) report(__FILE__, __LINE__, #condition, "");                                                      \
  } while (0)

/* The call succeeds. */
#define OK(call)                                                                                                       \
  do {                                                                                                                 \
    ++checks;                                                                                                          \
    if ((call) != HVD_OK) report(__FILE__, __LINE__, #call, hvd_last_error());                                         \
  } while (0)

/* The call fails with this code, and a sentence that has this word in it. */
#define REFUSED(call, code, word)                                                                                      \
  do {                                                                                                                 \
    const int got_ = (call);                                                                                           \
    ++checks;                                                                                                          \
    if (got_ != (code))                                                                                                \
      report(__FILE__, __LINE__, #call " is not " #code, got_ ? hvd_last_error() : "it succeeded");                    \
    else if (strncmp(hvd_last_error(), "hvd: ", 5) != 0 || strstr(hvd_last_error(), word) == NULL)                     \
      report(__FILE__, __LINE__, #call " does not name " #word, hvd_last_error());                                     \
  } while (0)

#endif

// The main function of every doctest program here.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <support/count_cases.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  // A line that waits in a buffer would be printed again by every forked rank.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  doctest::Context context;
  context.applyCommandLine(argc, argv);
  // doctest's own skip gives no reason, so it is not honoured; support/skip.hpp leaves a test out.
  context.setOption("no-skip", true);
  const int result = context.run();
  if (context.shouldExit()) return result;
  return hvd::test::any_case_ran() ? result : 1;
}

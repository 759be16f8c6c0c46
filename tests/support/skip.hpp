// tests/support/skip.hpp: how a test says that it cannot run here, and why.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace hvd::test {

// Prints `SKIP: <test case>: <reason>`, which tools/test collects and counts; the caller then returns.
// For a part that this machine does not have, never for a test that fails.
inline void skip(const std::string& reason) {
  const auto* test = doctest::getContextOptions()->currentTest;
  std::printf("SKIP: %s: %s\n", test != nullptr ? test->m_name : "(outside a test case)", reason.c_str());
  std::fflush(stdout);  // a forked rank may leave through _exit
}

}  // namespace hvd::test

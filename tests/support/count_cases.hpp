// tests/support/count_cases.hpp: a test that ran no test case has not passed.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>

namespace hvd::test {

inline unsigned cases_run = 0;

struct count_cases : doctest::IReporter {
  explicit count_cases(const doctest::ContextOptions& /*options*/) {}
  void report_query(const doctest::QueryData& /*query*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { cases_run = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData& /*test*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*test*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*thrown*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*check*/) override {}
  void log_message(const doctest::MessageData& /*message*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*test*/) override {}
};

REGISTER_LISTENER("count_cases", 1, count_cases);

/// For main, after the run: a filter that fits nothing, such as a file's old name, is a failure.
inline bool any_case_ran() {
  if (cases_run == 0) std::fputs("no test case ran\n", stderr);
  return cases_run != 0;
}

}  // namespace hvd::test

// tests/detail/wait.cpp: the steps of waits, and their order.
#include <hvd/detail/wait.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

using hvd::detail::backoff;
using hvd::detail::pace;
using hvd::detail::spin;
using hvd::detail::wait_until;
using us = std::chrono::microseconds;
using clock_type = std::chrono::steady_clock;

TEST_CASE("a thread that spins polls after each look and each pause") {
  int polls = 0;
  const pace p{.looks = 3, .pauses = 4, .yields = 5, .sleep = us(1)};
  CHECK_FALSE(spin(p, [&] { return ++polls == 8; }));
  CHECK(polls == 7);
  CHECK(spin(p, [&] { return ++polls == 9; }));
  CHECK(polls == 9);
}

TEST_CASE("yields come before sleeps, which double up to the longest") {
  backoff rest({.yields = 2, .sleep = us(20), .longest = us(100)});
  std::vector<bool> yields;
  for (int i = 0; i != 4; ++i) yields.push_back(rest.yield());
  CHECK(yields == std::vector{true, true, false, false});
  std::vector<us> sleeps;
  for (int i = 0; i != 5; ++i) sleeps.push_back(rest.sleep());
  CHECK(sleeps == std::vector{us(20), us(40), us(80), us(100), us(100)});
}

TEST_CASE("sleeps are of one length if no longest is given, and without them yields do not end") {
  backoff same({.sleep = us(50)});
  CHECK(same.sleep() == us(50));
  CHECK(same.sleep() == us(50));
  backoff yields({.yields = 1});
  for (int i = 0; i != 3; ++i) CHECK(yields.yield());
}

TEST_CASE("a wait polls at least once, and ends at its time") {
  const auto now = clock_type::now();
  CHECK(wait_until(now, {.sleep = us(1)}, [] { return true; }));
  CHECK_FALSE(wait_until(now, {.sleep = us(1)}, [] { return false; }));
  CHECK_FALSE(wait_until(now + us(2000), {.sleep = us(100)}, [] { return false; }));
  CHECK(clock_type::now() - now >= us(2000));
  int polls = 0;
  CHECK(wait_until(clock_type::time_point::max(), {.looks = 2, .yields = 2, .sleep = us(1)},
                   [&] { return ++polls == 6; }));
}

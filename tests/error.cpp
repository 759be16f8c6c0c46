// tests/error.cpp: an error has a kind, a culprit and a sentence.
#include <hvd/error.hpp>

#include <doctest/doctest.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>

static_assert(std::is_base_of_v<std::runtime_error, hvd::error>);
static_assert(std::is_nothrow_copy_constructible_v<hvd::error>);  // or throwing one could throw another

TEST_CASE("an error says what it was given") {
  const hvd::error e(hvd::error_kind::peer_lost, "allreduce on rank 1 of 4: rank 2 is gone", 2);
  CHECK(e.kind() == hvd::error::peer_lost);
  CHECK(e.rank() == 2);
  CHECK(std::string(e.what()) == "hvd: allreduce on rank 1 of 4: rank 2 is gone");
  CHECK(hvd::error(hvd::error_kind::system, "x").rank() == -1);
}

TEST_CASE("an error is caught as what it is, and as what it derives from") {
  CHECK_THROWS_AS(throw hvd::error(hvd::error::timeout, "x"), hvd::error);
  CHECK_THROWS_AS(throw hvd::error(hvd::error::timeout, "x"), std::runtime_error);
  try {
    throw hvd::error(hvd::error::mismatch, "counts", 3);
  } catch (const std::exception& e) {
    const auto* const own = dynamic_cast<const hvd::error*>(&e);
    REQUIRE(own != nullptr);
    CHECK(own->kind() == hvd::error_kind::mismatch);
    CHECK(own->rank() == 3);
  }
}

TEST_CASE("every kind has its name, both spellings are one") {
  using hvd::error_kind;
  CHECK(hvd::name(error_kind::invalid_argument) == "invalid_argument");
  CHECK(hvd::name(error_kind::mismatch) == "mismatch");
  CHECK(hvd::name(error_kind::peer_lost) == "peer_lost");
  CHECK(hvd::name(error_kind::timeout) == "timeout");
  CHECK(hvd::name(error_kind::no_memory) == "no_memory");
  CHECK(hvd::name(error_kind::unsupported) == "unsupported");
  CHECK(hvd::name(error_kind::system) == "system");
  CHECK(hvd::name(error_kind::aborted) == "aborted");
  static_assert(hvd::error::invalid_argument == error_kind::invalid_argument);
  static_assert(hvd::error::mismatch == error_kind::mismatch);
  static_assert(hvd::error::peer_lost == error_kind::peer_lost);
  static_assert(hvd::error::timeout == error_kind::timeout);
  static_assert(hvd::error::no_memory == error_kind::no_memory);
  static_assert(hvd::error::unsupported == error_kind::unsupported);
  static_assert(hvd::error::system == error_kind::system);
  static_assert(hvd::error::aborted == error_kind::aborted);
}

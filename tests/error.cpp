// tests/error.cpp: an error has a kind, a culprit and a sentence.
#include <hvd/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
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

TEST_CASE("pieces are joined, and numbers are as short as they can be") {
  using hvd::detail::joined;
  CHECK(joined({}).empty());
  CHECK(joined({"", std::string(), std::string_view()}).empty());
  CHECK(joined({"rank ", 3, " of ", std::string("four"), std::string_view(" (threads)").substr(0, 5)}) ==
        "rank 3 of four (thr");
  CHECK(joined({0, " ", -1, " ", 7u, " ", std::size_t{1} << 40}) == "0 -1 7 1099511627776");
  CHECK(joined({std::numeric_limits<std::int64_t>::min()}) == "-9223372036854775808");
  CHECK(joined({std::numeric_limits<std::int64_t>::max()}) == "9223372036854775807");
  CHECK(joined({std::numeric_limits<std::uint64_t>::max()}) == "18446744073709551615");
  CHECK(joined({std::int8_t{-5}, ",", std::uint8_t{200}, ",", 'A'}) == "-5,200,65");  // not characters: bytes
  CHECK(joined({0.0, " ", 30.0, " ", 0.1, " ", -1.25, " ", 300.5, " ", 1e-9}) == "0 30 0.1 -1.25 300.5 1e-09");
  CHECK(joined({0.001, " ", 1e9, " ", 0.5f, " ", -1.7976931348623157e308}) ==
        "0.001 1000000000 0.5 -1.79769313486232e+308");
  static_assert(!std::is_convertible_v<bool, hvd::detail::piece>);  // "1", "true" or "yes"? let the caller say
}

TEST_CASE("what fails says the pieces, and a sentence is an error without the library's name") {
  try {
    hvd::detail::fail(hvd::error::timeout, {"rank ", 2, " did not answer"}, 2);
  } catch (const hvd::error& e) {
    CHECK(e.kind() == hvd::error::timeout);
    CHECK(e.rank() == 2);
    CHECK(std::string(e.what()) == "hvd: rank 2 did not answer");
    CHECK(hvd::detail::sentence(e) == "rank 2 did not answer");
  }
  CHECK_THROWS_WITH_AS(hvd::detail::fail(hvd::error::system, {"x"}), "hvd: x", hvd::error);
}

// tests/campaign/fuzz/fuzz.hpp: what the harnesses share. Each is one parser, and says in its head what it promises.
//
// A finding is, in all of them: a crash, a report of a sanitizer, an input that takes longer than libFuzzer's -timeout,
// an exception that is no hvd::error, an error without a sentence, an allocation beyond -malloc_limit_mb (an input has
// at most -max_len bytes), and a `require` that does not hold.
#pragma once

#include <hvd/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

/// Calls f, which may refuse what it is given; returns whether it did not.
template <class F>
bool accepts(F&& f) {
  try {
    f();
    return true;
  } catch (const hvd::error& e) {
    require(std::string_view(e.what()).size() > 10, "an error without a sentence");
    require(static_cast<unsigned>(e.kind()) <= static_cast<unsigned>(hvd::error_kind::aborted), "an error of no kind");
    return false;
  }
}

/// An input, from front to back. What is beyond its end is zero.
class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool ended() const noexcept { return rest_.empty(); }
  template <class V>
  V take() {
    V value{};
    std::memcpy(static_cast<void*>(&value), rest_.data(), std::min(rest_.size(), sizeof value));
    rest_.remove_prefix(std::min(rest_.size(), sizeof value));
    return value;
  }
  /// From 0 to below `end`.
  unsigned below(unsigned end) { return take<std::uint8_t>() % end; }
  std::string_view text(std::size_t length) {
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  /// Up to a separator, or to the end.
  std::string_view part(char separator) {
    const std::string_view taken = rest_.substr(0, rest_.find(separator));
    rest_.remove_prefix(std::min(taken.size() + 1, rest_.size()));
    return taken;
  }
  std::string_view all() { return std::exchange(rest_, {}); }

 private:
  std::string_view rest_;
};

}  // namespace fuzz

/// Defines what libFuzzer calls.
#define FUZZ(in)                                                                                                       \
  static void one_input(fuzz::input in);                                                                               \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {                                  \
    one_input({data, size});                                                                                           \
    return 0;                                                                                                          \
  }                                                                                                                    \
  static void one_input(fuzz::input in)

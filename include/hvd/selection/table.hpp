// hvd/selection/table.hpp: the choice by the user's table, HVD_TUNING.
#pragma once

#include <hvd/call.hpp>
#include <hvd/error.hpp>
#include <hvd/selection/choice.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The user's choices in place of the model's: "allreduce:0-4k=recursive_doubling,4k-inf=ring;broadcast:0-inf=tree". A
/// range includes its first number of bytes and excludes its second; k, m and g stand for 2^10, 2^20 and 2^30. If no
/// range matches, or the algorithm does not support the call (such as a ring with an operation that does not commute),
/// the model chooses.
class tuning_table {
 public:
  tuning_table() = default;
  /// Parses `text`. An invalid_argument error names `source`, the first wrong character, and the allowed values.
  explicit tuning_table(std::string_view text, std::string_view source = "HVD_TUNING");

  /// The choice of the first rule that matches, if the algorithm supports the workload; otherwise nullptr.
  [[nodiscard]] const choice* find(const workload& w) const noexcept {
    for (const rule& r : rules_) {
      if (r.kind == w.kind && r.from <= w.bytes && w.bytes < r.to) return possible(r.what, w) ? &r.what : nullptr;
    }
    return nullptr;
  }
  [[nodiscard]] bool empty() const noexcept { return rules_.empty(); }

 private:
  struct rule {
    operation kind{};
    std::size_t from = 0, to = 0;
    choice what{};
  };
  std::vector<rule> rules_;
};

namespace detail {

/// The operations for which an algorithm can be chosen.
inline std::vector<operation> tuned_operations() {
  std::vector<operation> found;
  for (unsigned k = 0; name(static_cast<operation>(k)) != "unknown"; ++k) {
    const auto kind = static_cast<operation>(k);
    const auto does = [&](std::uint32_t operations) { return (operations & bits_of(kind)) != 0; };
    if (std::any_of(operations_of.begin(), operations_of.end(), does)) found.push_back(kind);
  }
  return found;
}

/// Reads the text of a tuning_table from left to right.
class tuning_reader {
 public:
  tuning_reader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  [[nodiscard]] bool ended() const noexcept { return at_ == text_.size(); }
  bool take(char c) noexcept {
    if (ended() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(std::string("'") + c + "'");
  }
  /// One of `all` by its name.
  template <class All>
  auto one_of(const All& all) {
    std::size_t end = at_;
    while (end != text_.size() && (text_[end] == '_' || (text_[end] >= 'a' && text_[end] <= 'z'))) ++end;
    for (const auto candidate : all) {
      if (name(candidate) == text_.substr(at_, end - at_)) {
        at_ = end;
        return candidate;
      }
    }
    std::string names;
    for (const auto candidate : all) names += joined({names.empty() ? "" : ", ", name(candidate)});
    refuse(names);
  }
  std::size_t bytes() {
    if (text_.substr(at_).starts_with("inf")) {
      at_ += 3;
      return std::numeric_limits<std::size_t>::max();
    }
    std::size_t n = 0;
    const auto [next, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
    if (code != std::errc{} || n > std::numeric_limits<std::size_t>::max() >> 30) refuse("a number of bytes, or inf");
    at_ = static_cast<std::size_t>(next - text_.data());
    return take('k') ? n << 10 : take('m') ? n << 20 : take('g') ? n << 30 : n;
  }
  [[noreturn]] void refuse(const std::string& wanted) const {
    fail(error_kind::invalid_argument, {source_, "=\"", text_, "\", character ", at_ + 1, ": allowed: ", wanted});
  }

 private:
  std::string_view text_, source_;
  std::size_t at_ = 0;
};

}  // namespace detail

inline tuning_table::tuning_table(std::string_view text, std::string_view source) {
  detail::tuning_reader in(text, source);
  while (!in.ended()) {
    rule r;
    r.kind = in.one_of(detail::tuned_operations());
    in.expect(':');
    do {
      r.from = in.bytes();
      in.expect('-');
      r.to = in.bytes();
      if (r.to <= r.from) in.refuse("a range that ends above its start");
      in.expect('=');
      std::vector<choice> able;
      for (const choice c : all_choices) {
        if (possible(c, {.kind = r.kind, .native = true})) able.push_back(c);
      }
      r.what = in.one_of(able);
      rules_.push_back(r);
    } while (in.take(','));
    if (!in.ended()) in.expect(';');
  }
}

}  // namespace hvd::inline HVD_ABI

// hvd/error.hpp: the one exception type, with a kind to branch on and a sentence to print.
#pragma once

#include <hvd/version.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI {

/// The kind of a failure, as far as a program can act on it.
enum class error_kind : unsigned char {
  invalid_argument,  ///< this call can never work as written; nothing was sent and the transport is usable
  mismatch,          ///< ranks disagree on what they are doing (operation, count, type, op or root)
  peer_lost,         ///< another process of the group died or left; the transport can no longer be used
  timeout,           ///< a peer did not answer before the deadline; the transport can no longer be used
  no_memory,         ///< memory could not be reserved; the transport is usable
  unsupported,       ///< the transport or algorithm cannot do this
  system,            ///< the operating system refused something
  aborted,           ///< another rank failed in the middle of a collective; the transport can no longer be used
};

/// The name in programs and messages, such as "peer_lost".
constexpr std::string_view name(error_kind kind) noexcept {
  constexpr std::string_view names[] = {"invalid_argument", "mismatch",    "peer_lost", "timeout",
                                        "no_memory",        "unsupported", "system",    "aborted"};
  return names[static_cast<unsigned char>(kind)];
}

namespace detail {

/// The kind that another process wrote as a number; `aborted` for an invalid number.
constexpr error_kind kind_of(std::uint64_t number) noexcept {
  return number <= static_cast<std::uint64_t>(error_kind::aborted) ? static_cast<error_kind>(number)
                                                                   : error_kind::aborted;
}

}  // namespace detail

/// Every failure that hvd reports. `what()` names the operation, the rank that reports, the peer and the phase.
class error : public std::runtime_error {
 public:
  // So that hvd::error::peer_lost reads well. (`using enum` here crashes GCC 12 in templates.)
  static constexpr error_kind invalid_argument = error_kind::invalid_argument, mismatch = error_kind::mismatch,
                              peer_lost = error_kind::peer_lost, timeout = error_kind::timeout,
                              no_memory = error_kind::no_memory, unsupported = error_kind::unsupported,
                              system = error_kind::system, aborted = error_kind::aborted;

  /// For transports and algorithms. `what` is a sentence, which gets the prefix "hvd: "; `culprit` is the rank at
  /// fault, or -1.
  error(error_kind kind, const std::string& what, int culprit = -1)
      : std::runtime_error("hvd: " + what), kind_(kind), culprit_(culprit) {}

  /// The kind of the failure, on which a program can act.
  [[nodiscard]] error_kind kind() const noexcept { return kind_; }

  /// The rank that caused the failure (the one that died, or did not answer); -1 if no single rank did. It is a rank of
  /// the group whose operation failed.
  [[nodiscard]] int rank() const noexcept { return culprit_; }

 private:
  error_kind kind_;
  int culprit_;
};

namespace detail {

/// After the name of a rank, in every error of kind peer_lost.
inline constexpr std::string_view is_lost = " has exited or was killed";

/// A part of a text: characters, by reference, or a number, written as short as it can be ("0.1", "30").
class piece {
 public:
  template <std::convertible_to<std::string_view> T>
  piece(const T& text) noexcept : kind_(characters), text_(text) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  piece(T number) noexcept
      : kind_(std::signed_integral<T> ? with_sign : without_sign), number_(static_cast<long long>(number)) {}
  template <std::floating_point T>
  piece(T number) noexcept : kind_(fraction), fraction_(static_cast<double>(number)) {}

  void append_to(std::string& text) const {
    char digits[32];
    int n = 0;
    switch (kind_) {
      case characters: text.append(text_); return;
      case with_sign: n = std::snprintf(digits, sizeof digits, "%lld", number_); break;
      case without_sign:
        n = std::snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(number_));
        break;
      case fraction: n = std::snprintf(digits, sizeof digits, "%.15g", fraction_); break;
    }
    text.append(digits, static_cast<std::size_t>(n));
  }

 private:
  enum : unsigned char { characters, with_sign, without_sign, fraction } kind_;
  union {
    std::string_view text_;
    long long number_;
    double fraction_;
  };
};

/// The pieces as one text. Much of hvd's code only builds messages and hardly ever runs. This function is compiled
/// once; operators of std::string would be compiled into every place that builds a message.
[[gnu::noinline]] inline std::string joined(std::initializer_list<piece> pieces) {
  std::string text;
  for (const piece& p : pieces) p.append_to(text);
  return text;
}

/// Throws an `error` whose sentence is made of pieces.
[[noreturn, gnu::noinline]] inline void fail(error_kind kind, std::initializer_list<piece> what, int culprit = -1) {
  throw error(kind, joined(what), culprit);
}

/// The text of an error without the prefix "hvd: ", for use within another sentence.
inline std::string_view sentence(const error& e) noexcept { return std::string_view(e.what()).substr(5); }

/// The same error with its own copy of the text, for throwing it in another thread or again later. Copies of an
/// exception share their text, with a reference count that ThreadSanitizer does not see.
inline error again(const error& e, int culprit) { return {e.kind(), std::string(sentence(e)), culprit}; }
inline error again(const error& e) { return again(e, e.rank()); }

}  // namespace detail

}  // namespace hvd::inline HVD_ABI

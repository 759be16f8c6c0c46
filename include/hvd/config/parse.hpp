// hvd/config/parse.hpp: parsers of settings, whose errors name the refused value.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/error.hpp>

#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace hvd::inline HVD_ABI {

namespace detail {

/// NAME="value" for a message: unprintable characters escaped, the middle of a long value left out.
inline std::string assignment(std::string_view name, std::string_view value) {
  constexpr std::size_t most = 80;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = joined({name, "=\""});
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value.size() > most && i == most / 2) {
      text += "...";
      i = value.size() - most / 2;
    }
    const auto c = static_cast<unsigned char>(value[i]);
    if (c >= 0x20 && c < 0x7f)
      text += value[i];
    else
      text.append("\\x").append(1, digits[c >> 4]).append(1, digits[c & 15]);
  }
  return text + '"';
}

[[noreturn]] inline void refuse_value(std::string_view name, std::string_view value, std::string_view problem,
                                      std::initializer_list<piece> allowed) {
  fail(error_kind::invalid_argument,
       {assignment(name, value), value.empty() ? " is empty" : problem, "; allowed: ", joined(allowed)});
}

}  // namespace detail

/// The decimal whole number in `value`, with nothing before or after it, in [lo, hi]; otherwise invalid_argument, which
/// names `name`, `value` and the range. `meaning` explains the range.
template <std::integral T>
  requires(!std::same_as<T, bool>)
T parse_integer(std::string_view name, std::string_view value, T lo, std::type_identity_t<T> hi,
                std::string_view meaning = {}) {
  T number{};
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = end == value.data() + value.size() && code != std::errc::invalid_argument;
  if (whole && code == std::errc{} && lo <= number && number <= hi) return number;

  // An unsigned from_chars takes a negative number for no number at all.
  const bool negative =
      value.size() > 1 && value[0] == '-' && value.find_first_not_of("0123456789", 1) == std::string_view::npos;
  const char* const problem = whole || negative ? " is out of range" : " is not a whole number";
  if (meaning.empty()) detail::refuse_value(name, value, problem, {lo, " to ", hi});
  detail::refuse_value(name, value, problem, {meaning, " (here ", lo, " to ", hi, ")"});
}

/// A time in seconds, such as "30", "0.5" or "1e3": 1 ms to 1e9 s, so that no conversion to nanoseconds overflows or
/// becomes 0. 0 is allowed only if the caller gives its meaning in `zero`. Else invalid_argument.
inline std::chrono::duration<double> parse_seconds(std::string_view name, std::string_view value,
                                                   std::string_view zero = {}) {
  constexpr double lo = 1e-3, hi = 1e9;
  constexpr std::string_view range = "0.001 to 1000000000 seconds";
  double seconds = 0.0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const bool number = end == value.data() + value.size() && code != std::errc::invalid_argument;
  if (number && code == std::errc{}) {
    if (lo <= seconds && seconds <= hi) return std::chrono::duration<double>(seconds);
    if (seconds == 0.0 && !zero.empty()) return std::chrono::duration<double>::zero();
  }
  const bool finite = number && std::isfinite(seconds);
  const char* const problem = finite ? " is out of range" : " is not a number of seconds";
  if (zero.empty()) detail::refuse_value(name, value, problem, {range});
  detail::refuse_value(name, value, problem, {"0 (", zero, ") or ", range});
}

/// 1, true, yes, on or 0, false, no, off, in any case; else invalid_argument.
inline bool parse_boolean(std::string_view name, std::string_view value) {
  std::string lower(value);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const std::string_view yes : {"1", "true", "yes", "on"})
    if (lower == yes) return true;
  for (const std::string_view no : {"0", "false", "no", "off"})
    if (lower == no) return false;
  detail::refuse_value(name, value, " is not a truth value", {"0, 1, false, true, no, yes, off, on"});
}

/// A job's name. It becomes part of a file's name, so its length and characters are limited.
inline std::string parse_job(std::string_view name, std::string_view value) {
  constexpr std::size_t most = 128;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  std::size_t good = 0;
  while (good < value.size() && fits(value[good])) ++good;
  if (good == value.size() && good >= 1 && good <= most) return std::string(value);
  detail::refuse_value(name, value, " is not a valid name of a job", {"1 to 128 letters, digits, '.', '_' or '-'"});
}

/// An absolute path. Whether the directory exists is not checked here.
inline std::string parse_directory(std::string_view name, std::string_view value) {
  if (value.starts_with('/')) return std::string(value);
  detail::refuse_value(name, value, " is not absolute", {"an absolute path of a directory"});
}

namespace detail {

/// A function object that returns the value of a variable, or nothing if it is not set.
using variable_lookup = function_ref<std::optional<std::string>(const char* name)>;

/// The lookup in the environment of this process.
inline constexpr auto variable_of_environment = [](const char* name) -> std::optional<std::string> {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
};

/// A time limit; 0: none.
inline std::chrono::duration<double> parse_limit(std::string_view name, std::string_view value) {
  return parse_seconds(name, value, "no limit");
}

/// Sets an option from its variable, if that is set.
template <class T, class Parse>
void read_variable(const variable_lookup& variable, const char* name, T& option, Parse parse) {
  if (const auto value = variable(name)) option = parse(name, *value);
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI

// hvd/config.hpp: the environment variables of a job, and parsers that name what they refuse.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/launch_id.hpp>
#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <limits>
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

/// The decimal whole number in `value`, with nothing before or after it, in [lo, hi]; else invalid_argument,
/// which names `name`, `value` and the range. `meaning` states where the range comes from.
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

/// A time in seconds, as in "30", "0.5" or "1e3": 1 ms to 1e9 s, so that no conversion to nanoseconds overflows or
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
  detail::refuse_value(name, value, " is no name for a job", {"1 to 128 letters, digits, '.', '_' or '-'"});
}

/// An absolute path. Whether the directory exists is not checked here.
inline std::string parse_directory(std::string_view name, std::string_view value) {
  if (value.starts_with('/')) return std::string(value);
  detail::refuse_value(name, value, " is not absolute", {"an absolute path of a directory"});
}

/// The settings from the environment. The defaults are those of a process that no launcher has started: alone.
struct config {
  /// A function object that returns the value of a variable, or nothing if it is not set; by reference.
  using lookup = detail::function_ref<std::optional<std::string>(const char* name)>;

  int rank = 0, size = 1;              ///< HOROVOD_RANK, HOROVOD_SIZE: in the job
  int local_rank = 0, local_size = 1;  ///< HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE: on this host
  int cross_rank = 0, cross_size = 1;  ///< HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE: among the processes of the
                                       ///< same local rank on all hosts
  std::string job{};                   ///< HVD_JOB; empty if not set
  /// HVD_LAUNCH, or what the launcher reports of itself (launch_id): equal on all ranks of one launch, different in
  /// another one of the same HVD_JOB. Empty if there is neither.
  std::string launch{};

  std::chrono::duration<double> start_timeout{30.0};  ///< HOROVOD_START_TIMEOUT: for all ranks to join
  std::chrono::duration<double> timeout{300.0};       ///< HVD_TIMEOUT: for a peer to answer; 0: no limit

  bool check = HVD_CHECK != 0;       ///< HVD_CHECK: compare calls between ranks
  std::string shm_dir = "/dev/shm";  ///< HVD_SHM_DIR: where segments are made

  /// Reads this process's environment. Rank and size must both be set or both not, for the job, the host and across
  /// hosts. Without the local pair the job is on one host. Without the cross pair hosts are taken to have equal numbers
  /// of consecutive ranks, if that fits. An invalid_argument error names the variable, its value and what is allowed.
  static config from_environment() {
    return from_environment([](const char* name) -> std::optional<std::string> {
      const char* value = std::getenv(name);
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    });
  }

  /// The same from any source of variables.
  static config from_environment(const lookup& variable);
};

namespace detail {

struct place {
  int rank = 0;
  int size = 1;
};

/// The place that two variables describe; nothing if neither is set.
inline std::optional<place> parse_place(const config::lookup& variable, std::string_view prefix, int largest,
                                        std::string_view meaning = {}) {
  const std::string rank_name = joined({prefix, "RANK"}), size_name = joined({prefix, "SIZE"});
  const auto rank = variable(rank_name.c_str()), size = variable(size_name.c_str());
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    const std::string given = rank ? assignment(rank_name, *rank) : assignment(size_name, *size);
    fail(error_kind::invalid_argument,
         {given, " is set but ", rank ? size_name : rank_name, " is not; allowed: both or neither"});
  }
  place found;
  found.size = parse_integer(size_name, *size, 1, largest, meaning);
  found.rank = parse_integer(rank_name, *rank, 0, found.size - 1, joined({"0 to ", size_name, "-1"}));
  return found;
}

}  // namespace detail

inline config config::from_environment(const lookup& variable) {
  using detail::place;
  const place global = detail::parse_place(variable, "HOROVOD_", std::numeric_limits<int>::max()).value_or(place{});
  const auto given_local = detail::parse_place(variable, "HOROVOD_LOCAL_", global.size, "1 to HOROVOD_SIZE");
  const place local = given_local.value_or(global);
  // Every other host in the cross group has at least one rank.
  const auto given_cross = detail::parse_place(variable, "HOROVOD_CROSS_", global.size - local.size + 1,
                                               given_local ? "1 to HOROVOD_SIZE-HOROVOD_LOCAL_SIZE+1"
                                                           : "1 while HOROVOD_LOCAL_SIZE is not set");
  place cross = given_cross.value_or(place{});
  if (!given_cross && local.size != global.size) {
    if (global.size % local.size != 0 || global.rank % local.size != local.rank)
      detail::fail(error_kind::invalid_argument,
                   {"HOROVOD_CROSS_RANK and HOROVOD_CROSS_SIZE are not set and do not follow from rank ", global.rank,
                    " of ", global.size, ", local rank ", local.rank, " of ", local.size,
                    "; allowed: hosts with equal numbers of consecutive ranks, or all six variables"});
    cross = {global.rank / local.size, global.size / local.size};
  }

  config result;
  result.rank = global.rank, result.size = global.size;
  result.local_rank = local.rank, result.local_size = local.size;
  result.cross_rank = cross.rank, result.cross_size = cross.size;
  if (const auto value = variable("HVD_JOB")) result.job = parse_job("HVD_JOB", *value);
  result.launch = detail::launch_id(variable, result.rank, result.size);
  if (const auto value = variable("HVD_LAUNCH")) result.launch = parse_job("HVD_LAUNCH", *value);
  if (const auto value = variable("HOROVOD_START_TIMEOUT"))
    result.start_timeout = parse_seconds("HOROVOD_START_TIMEOUT", *value);
  if (const auto value = variable("HVD_TIMEOUT")) result.timeout = parse_seconds("HVD_TIMEOUT", *value, "no limit");
  if (const auto value = variable("HVD_CHECK")) result.check = parse_boolean("HVD_CHECK", *value);
  if (const auto value = variable("HVD_SHM_DIR")) result.shm_dir = parse_directory("HVD_SHM_DIR", *value);
  return result;
}

}  // namespace hvd::inline HVD_ABI

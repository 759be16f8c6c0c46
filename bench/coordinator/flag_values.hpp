// bench/coordinator/flag_values.hpp: from the text of a flag to its value, or to an error of one sentence.
#pragma once

#include <bench/options.hpp>

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace hvd::bench {

/// "a, b, c".
template <class Names>
std::string join(const Names& names) {
  std::string all;
  for (const auto& n : names) all += (all.empty() ? "" : ", ") + std::string(n);
  return all;
}

/// Whether all of the text is a number of that type.
template <class T>
bool is_number(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && at == end;
}

// The others throw usage_error.

template <class E, class Names>
E choice_option(const std::string& flag, const Names& names, const std::string& text) {
  if (const auto value = find<E>(names, text)) return *value;
  throw usage_error(flag + " " + text + " is not known; allowed: " + join(names));
}

std::size_t size_option(const std::string& flag, const std::string& text);
double seconds_option(const std::string& flag, const std::string& text);
/// nccl-tests' programs and NCCL's spelling count too.
collective collective_option(std::string text);
std::vector<dtype> type_option(const std::string& text);
std::vector<redop> op_option(const std::string& text);
peer_option peer_of(const std::string& text);

}  // namespace hvd::bench

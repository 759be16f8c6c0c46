// names.hpp: the names of activities, and the kind of operation that each means.
#pragma once

#include "cells.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_timeline {

enum class activity_class : unsigned char {
  negotiate,  ///< other ranks have not submitted the tensor yet
  queue,      ///< other operations run
  run,        ///< an operation, or a part of one
};

struct activity {
  std::string name;
  std::string kind{};  ///< "allreduce" of ALLREDUCE and NEGOTIATE_ALLREDUCE
  activity_class what = activity_class::run;
  bus_class bus = bus_class::plain;
};

/// The kind and class of an activity, from its name.
inline activity describe_activity(std::string_view name) {
  activity a{.name = std::string(name)};
  constexpr std::string_view negotiate = "NEGOTIATE_";
  std::string_view rest = name;
  if (name.starts_with(negotiate)) {
    a.what = activity_class::negotiate;
    rest.remove_prefix(negotiate.size());
  } else if (name == "QUEUE" || name.starts_with("WAIT_FOR_")) {
    a.what = activity_class::queue;
  }
  for (const char c : rest) a.kind += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (rest == "ALLREDUCE" || rest == "ADASUM") a.bus = bus_class::reduced;
  if (rest == "ALLGATHER") a.bus = bus_class::gathered;
  if (rest == "ALLTOALL" || rest == "REDUCESCATTER") a.bus = bus_class::exchanged;
  return a;
}

/// Numbers the names. A timeline has some ten; in a damaged file, names beyond `most` share the last number.
class activity_names {
 public:
  static constexpr std::uint16_t most = 4096;

  std::uint16_t number(std::string_view name) {
    // Usually one of the last few names.
    const std::size_t slot =
        (name.size() * 31 + static_cast<unsigned char>(name.empty() ? 0 : name[name.size() / 2])) % 64;
    const std::uint16_t guess = recent_[slot];
    if (guess < all_.size() && all_[guess].name == name) return guess;
    for (std::size_t i = 0; i != all_.size(); ++i) {
      if (all_[i].name == name) return recent_[slot] = static_cast<std::uint16_t>(i);
    }
    if (all_.size() == most) return most - 1;
    all_.push_back(describe_activity(name));
    return recent_[slot] = static_cast<std::uint16_t>(all_.size() - 1);
  }
  const activity& operator[](std::uint16_t number) const noexcept { return all_[number]; }

 private:
  std::vector<activity> all_;
  std::uint16_t recent_[64] = {};
};

}  // namespace hvd_timeline

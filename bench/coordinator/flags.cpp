// bench/coordinator/flags.cpp: numbers within limits, and the flags of hvd-bench engine.
#include <bench/coordinator/flags.hpp>

#include <bench/coordinator/flag_values.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace hvd::bench {
namespace {

template <class T>
T number(const std::string& flag, const std::string& text, T least, T most, const char* unit) {
  T value{};
  if (is_number(text, value) && value >= least && value <= most) return value;
  std::string range = std::to_string(least) + " to " + std::to_string(most);
  if constexpr (std::is_floating_point_v<T>) {
    range = std::to_string(static_cast<long>(least)) + " to " + std::to_string(static_cast<long>(most));
  }
  throw usage_error(flag + " " + text + " is not allowed; allowed: " + range + unit);
}

}  // namespace

CLI::Option* Flags::add(const std::string& names, const std::string& meaning, reader read) {
  one& flag = all_.emplace_back(one{names.substr(0, names.find(',')), {}, std::move(read)});
  CLI::Option* const option = app_.add_option(names, flag.text, meaning);
  flag.option = option;
  return option;
}

void Flags::whole(const std::string& names, unsigned& value, unsigned least, unsigned most,
                  const std::string& meaning) {
  add(names, meaning, [=, &value](const std::string& flag, const std::string& text) {
    unsigned number = 0;
    if (!is_number(text, number) || number < least || number > most) {
      throw usage_error(flag + " " + text + " is not allowed; allowed: whole numbers from " + std::to_string(least) +
                        " to " + std::to_string(most));
    }
    value = number;
  })->type_name("N");
}

void Flags::neutral(const std::string& names, const std::string& only, const std::string& why) {
  add(names, "Accepted as " + only, [=](const std::string& flag, const std::string& text) {
    if (text == only) return;
    throw usage_error(flag + " " + text + " has no meaning here: " + why + "; leave it out or give " + only);
  })->group("");
}

void Flags::read() const {
  for (const one& flag : all_) {
    if (flag.read && flag.option->count() != 0) flag.read(flag.flag, flag.text);
  }
}

const Flags::one& Flags::find(const std::string& flag) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const one& each) { return each.flag == flag; });
  if (found == all_.end()) throw std::logic_error("there is no flag " + flag);
  return *found;
}

void add_replay_flags(CLI::App& app, Flags& flags, replay& to) {
  using str = const std::string&;
  flags
      .add("--backward-ms", "For engine: time of the backward pass that is replayed (default: 50)",
           [&](str f, str t) { to.backward_seconds = number(f, t, 0.0, 60'000.0, " ms") / 1e3; })
      ->type_name("MS");
  app.add_flag("--on-cpu", to.on_cpu,
               "For engine: the backward pass keeps the rank's CPU busy (default: it runs on an accelerator)");
  flags
      .add("--jitter", "For engine: random share of a pass and of each part of it (default: 10)",
           [&](str f, str t) { to.jitter = number(f, t, 0.0, 90.0, " %") / 1e2; })
      ->type_name("PERCENT");
  flags
      .add("--window", "For engine: the next gradient is one of this many, chosen by each rank (default: 4)",
           [&](str f, str t) { to.window = number(f, t, std::uint32_t{1}, std::uint32_t{1000}, " gradients"); })
      ->type_name("N");
  flags
      .add("--seed", "For engine: seed of the random numbers (default: 1)",
           [&](str f, str t) { to.seed = number(f, t, std::uint64_t{0}, ~std::uint64_t{0}, ""); })
      ->type_name("N");
  flags
      .add("--idle-seconds", "For engine: how long an idle engine is watched, 0: not (default: 10)",
           [&](str f, str t) { to.idle_seconds = number(f, t, 0.0, 3600.0, " s"); })
      ->type_name("SECONDS");
}

}  // namespace hvd::bench

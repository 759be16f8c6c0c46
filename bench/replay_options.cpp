// bench/replay_options.cpp: how backward passes are replayed.
#include <bench/replay_options.hpp>

#include <CLI/CLI.hpp>

#include <charconv>
#include <system_error>

namespace hvd::bench {
namespace {

/// Leaves `to` alone where the flag was not given.
template <class T>
void number(const char* flag, const std::string& text, T& to, T least, T most, const char* unit) {
  if (text.empty()) return;
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc{} && at == end && value >= least && value <= most) {
    to = value;
    return;
  }
  std::string range = std::to_string(least) + " to " + std::to_string(most);
  if constexpr (std::is_floating_point_v<T>) {
    range = std::to_string(static_cast<long>(least)) + " to " + std::to_string(static_cast<long>(most));
  }
  throw usage_error(std::string(flag) + " " + text + " is not allowed; allowed: " + range + unit);
}

}  // namespace

void ReplayFlags::add(CLI::App& app) {
  app.add_option("--backward-ms", backward_, "For engine: time of the backward pass that is replayed (default: 50)")
      ->type_name("MS");
  app.add_flag("--on-cpu", on_cpu_,
               "For engine: the backward pass keeps the rank's CPU busy (default: it runs on an accelerator)");
  app.add_option("--jitter", jitter_, "For engine: how much of a pass, and of each part of it, is random (default: 10)")
      ->type_name("PERCENT");
  app.add_option("--window", window_,
                 "For engine: next comes any of so many gradients, another one on each rank (default: 4)")
      ->type_name("N");
  app.add_option("--seed", seed_, "For engine: of what is random (default: 1)")->type_name("N");
  app.add_option("--idle-seconds", idle_, "For engine: how long an idle engine is watched, 0: not (default: 10)")
      ->type_name("SECONDS");
}

void ReplayFlags::read(replay& to) const {
  double milliseconds = to.backward_seconds * 1e3, percent = to.jitter * 1e2;
  number("--backward-ms", backward_, milliseconds, 0.0, 60'000.0, " ms");
  number("--jitter", jitter_, percent, 0.0, 90.0, " %");
  number("--window", window_, to.window, std::uint32_t{1}, std::uint32_t{1000}, " gradients");
  number("--seed", seed_, to.seed, std::uint64_t{0}, ~std::uint64_t{0}, "");
  number("--idle-seconds", idle_, to.idle_seconds, 0.0, 3600.0, " s");
  to.backward_seconds = milliseconds / 1e3;
  to.jitter = percent / 1e2;
  to.on_cpu = on_cpu_;
}

void check_replay(const options& o) {
  if (o.types.size() != 1 || o.ops.size() != 1) {
    throw usage_error("hvd-bench engine measures one type (-d) and one reduction (-o) at a time, not all");
  }
  if (o.limit) throw usage_error("--limit has no meaning for engine: what it must move depends on when gradients come");
  if (o.state != mode::dirty || o.pace != cadence::isolated) {
    throw usage_error("hvd-bench engine rewrites all gradients before each step; leave out --mode and --streaming");
  }
  if (o.cycles != 1) throw usage_error("-N has no meaning for engine; --iters is the number of steps");
}

}  // namespace hvd::bench

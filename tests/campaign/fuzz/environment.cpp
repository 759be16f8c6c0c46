// tests/campaign/fuzz/environment.cpp: the variables of a job and of an engine, as lines NAME=value.
//
// Findings besides those of fuzz.hpp: a place that is none (a rank beyond its size), and values that are others when
// they are written out and read again.
#include <hvd/config.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/policy.hpp>

#include "fuzz.hpp"

#include <array>
#include <charconv>
#include <map>

namespace {

using variables = std::map<std::string, std::string, std::less<>>;

std::string text_of(double value) {
  std::array<char, 64> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

template <class Options>
Options read(const variables& all) {
  return Options::from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
  });
}

variables written(const hvd::config& c) {
  variables all{{"HOROVOD_RANK", std::to_string(c.rank)},
                {"HOROVOD_SIZE", std::to_string(c.size)},
                {"HOROVOD_LOCAL_RANK", std::to_string(c.local_rank)},
                {"HOROVOD_LOCAL_SIZE", std::to_string(c.local_size)},
                {"HOROVOD_CROSS_RANK", std::to_string(c.cross_rank)},
                {"HOROVOD_CROSS_SIZE", std::to_string(c.cross_size)}};
  if (!c.job.empty()) all["HVD_JOB"] = c.job;
  return all;
}

variables written(const hvd::sharing_options& o) {
  return {{"HOROVOD_START_TIMEOUT", text_of(o.failure.start_timeout.count())},
          {"HVD_TIMEOUT", text_of(o.failure.timeout.count())},
          {"HVD_CHECK", o.failure.check ? "on" : "off"},
          {"HVD_SHM_DIR", o.memory.directory}};
}

variables written(const hvd::engine_options& o) {
  return {{"HOROVOD_FUSION_THRESHOLD", std::to_string(o.fusion_threshold)},
          {"HOROVOD_CYCLE_TIME", text_of(o.cycle_time.count() * 1000)},
          {"HOROVOD_CACHE_CAPACITY", std::to_string(o.cache_capacity)},
          {"HOROVOD_DISABLE_GROUP_FUSION", o.groups_alone ? "1" : "0"},
          {"HOROVOD_STALL_CHECK_DISABLE", o.watch ? "0" : "1"},
          {"HOROVOD_STALL_CHECK_TIME_SECONDS", text_of(o.stall_warning.count())},
          {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", text_of(o.stall_shutdown.count())},
          {"HOROVOD_TIMELINE", o.timeline},
          {"HOROVOD_TIMELINE_MARK_CYCLES", o.mark_cycles ? "1" : "0"},
          {"HOROVOD_AUTOTUNE", o.autotune ? "1" : "0"},
          {"HOROVOD_AUTOTUNE_LOG", o.autotune_log},
          {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES", std::to_string(o.autotune_warmup)},
          {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", std::to_string(o.autotune_steps)},
          {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", std::to_string(o.autotune_samples)}};
}

}  // namespace

FUZZ(in) {
  variables all;
  while (!in.ended()) {
    std::string_view line = in.part('\n');
    const std::size_t name = line.find('=');
    if (name != std::string_view::npos) all[std::string(line.substr(0, name))] = line.substr(name + 1);
  }
  fuzz::accepts([&] {
    const auto c = read<hvd::config>(all);
    fuzz::require(0 <= c.rank && c.rank < c.size, "a rank that is none");
    fuzz::require(0 <= c.local_rank && c.local_rank < c.local_size && c.local_size <= c.size, "no place on a host");
    fuzz::require(0 <= c.cross_rank && c.cross_rank < c.cross_size && c.cross_size <= c.size, "no place across hosts");
    const variables once = written(c);
    fuzz::require(once == written(read<hvd::config>(once)), "a job's values change when they are written and read");
  });
  fuzz::accepts([&] {
    const variables once = written(read<hvd::sharing_options>(all));
    fuzz::require(once == written(read<hvd::sharing_options>(once)), "options change when they are written and read");
  });
  fuzz::accepts([&] {
    const auto o = read<hvd::engine_options>(all);
    fuzz::require(o.cycle_time.count() >= 0 && o.cycle_time.count() <= 1000, "a cycle time out of range");
    const auto again = read<hvd::engine_options>(written(o));
    variables a = written(o), b = written(again);
    a.erase("HOROVOD_CYCLE_TIME"), b.erase("HOROVOD_CYCLE_TIME");  // milliseconds, kept in seconds: rounded
    fuzz::require(a == b, "an engine's options change when they are written and read");
  });
}

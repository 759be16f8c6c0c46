// hvd/engine/options.hpp: the options of an engine, and the HOROVOD_* variables that set them.
#pragma once

#include <hvd/config.hpp>
#include <hvd/error.hpp>
#include <hvd/tensors.hpp>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

namespace hvd::inline HVD_ABI {

class Timeline;

/// The options of an engine. They must be the same on all ranks, except for `report`, the autotuner's log, the options
/// of the timeline and the times of the watch; otherwise making the engine is an error on all ranks.
struct engine_options {
  using seconds = std::chrono::duration<double>;

  std::size_t fusion_threshold = default_fusion_threshold;  ///< HOROVOD_FUSION_THRESHOLD, bytes; 0: nothing is fused
  std::size_t cache_capacity = 1024;  ///< HOROVOD_CACHE_CAPACITY: signatures that are known at a time; 0: as 1
  /// HOROVOD_CYCLE_TIME, ms: a rank begins a round of agreement no sooner than this after the last one, so that more is
  /// fused; 0: at once.
  seconds cycle_time{0.0};
  bool groups_alone = false;  ///< HOROVOD_DISABLE_GROUP_FUSION: a group is fused with nothing else

  bool watch = true;            ///< not HOROVOD_STALL_CHECK_DISABLE
  seconds stall_warning{60.0};  ///< HOROVOD_STALL_CHECK_TIME_SECONDS; infinity: never
  seconds stall_shutdown{0.0};  ///< HOROVOD_STALL_SHUTDOWN_TIME_SECONDS; 0: never
  /// Called with the watch's reports, on its thread; if empty, they go to standard error.
  std::function<void(const std::string&)> report{};

  std::string timeline{};  ///< HOROVOD_TIMELINE: a file; empty or DYNAMIC: none at the start
  /// HVD_LAUNCH: engines of one launch, made one after the other, continue the file; empty: each begins it.
  std::string launch{};
  /// Several engines of a process record in this one, which its owner starts and stops; null: each has its own.
  std::shared_ptr<Timeline> records_in{};
  bool mark_cycles = false;  ///< HOROVOD_TIMELINE_MARK_CYCLES
  std::string host{};        ///< HOROVOD_HOSTNAME: this host in the timeline; empty: the name that the system gives

  bool autotune = false;         ///< HOROVOD_AUTOTUNE; for batches on the host
  std::string autotune_log{};    ///< HOROVOD_AUTOTUNE_LOG
  int autotune_warmup = 3;       ///< HOROVOD_AUTOTUNE_WARMUP_SAMPLES
  int autotune_steps = 10;       ///< HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE: steps in a sample
  int autotune_samples = 20;     ///< HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES: search length, six samples each
  bool threshold_fixed = false;  ///< not tuned, because the user has set it
  bool cycle_fixed = false;      ///< the same for cycle_time

  /// A thread of the engine makes progress. Without it, only waiting threads make progress: for simulations.
  bool thread = true;

  /// Reads the variables above. An invalid_argument error names the variable, its value and the allowed values.
  static engine_options from_environment(const config::lookup& variable = detail::variable_of_environment) {
    engine_options o;
    const auto integer = [&](const char* name, auto& to, auto lo, auto hi) {
      const auto value = variable(name);
      if (value) to = parse_integer(name, *value, lo, hi);
      return value.has_value();
    };
    const auto flag = [&](const char* name, bool& to) { detail::read_variable(variable, name, to, parse_boolean); };
    o.threshold_fixed = integer("HOROVOD_FUSION_THRESHOLD", o.fusion_threshold, std::size_t{0}, std::size_t{1} << 40);
    if (const auto value = variable("HOROVOD_CYCLE_TIME")) {
      double ms = 0;
      const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), ms);
      if (code != std::errc{} || end != value->data() + value->size() || !(ms >= 0 && ms <= 1e6)) {
        detail::refuse_value("HOROVOD_CYCLE_TIME", *value, " is not a time in milliseconds", {"0 to 1000000"});
      }
      o.cycle_time = std::chrono::duration<double, std::milli>(ms);
      o.cycle_fixed = true;
    }
    integer("HOROVOD_CACHE_CAPACITY", o.cache_capacity, std::size_t{0}, std::size_t{1} << 24);
    flag("HOROVOD_DISABLE_GROUP_FUSION", o.groups_alone);
    bool unwatched = false;
    flag("HOROVOD_STALL_CHECK_DISABLE", unwatched);
    o.watch = !unwatched;
    if (const auto value = variable("HOROVOD_STALL_CHECK_TIME_SECONDS")) {
      o.stall_warning = parse_seconds("HOROVOD_STALL_CHECK_TIME_SECONDS", *value);
    }
    if (const auto value = variable("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")) {
      o.stall_shutdown = parse_seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", *value, "never");
      if (o.stall_shutdown.count() > 0 && o.stall_shutdown < o.stall_warning) {
        detail::fail(error_kind::invalid_argument,
                     {detail::assignment("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", *value),
                      " is shorter than the time after which a stall is reported, ", o.stall_warning.count(),
                      " s (HOROVOD_STALL_CHECK_TIME_SECONDS); allowed: 0 (never) or at least that"});
      }
    }
    if (const auto value = variable("HOROVOD_TIMELINE"); value && *value != "DYNAMIC") o.timeline = *value;
    if (const auto value = variable("HVD_LAUNCH")) o.launch = *value;
    flag("HOROVOD_TIMELINE_MARK_CYCLES", o.mark_cycles);
    if (const auto value = variable("HOROVOD_HOSTNAME"); value && *value != "localhost") o.host = *value;
    flag("HOROVOD_AUTOTUNE", o.autotune);
    if (const auto value = variable("HOROVOD_AUTOTUNE_LOG")) o.autotune_log = *value;
    integer("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", o.autotune_warmup, 0, 1'000'000);
    integer("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", o.autotune_steps, 1, 1'000'000);
    integer("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", o.autotune_samples, 1, 1'000'000);
    return o;
  }
};

}  // namespace hvd::inline HVD_ABI

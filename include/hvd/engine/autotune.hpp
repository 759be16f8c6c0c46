// hvd/engine/autotune.hpp: tunes an engine on the job that it runs.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/detail/inform.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/tuner.hpp>
#include <hvd/erased_transport.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The score of a sample is the bytes reduced or moved, divided by the time between the ends of two batches. Ranks run
/// the same batches in the same order, so all end a sample at the same batch. They then receive rank 0's score, and go
/// on with the same setting.
class autotuner {
 public:
  using clock = std::chrono::steady_clock;

  /// Errors: invalid_argument if the log cannot be written.
  autotuner(erased_transport& comm, const engine_options& opts)
      : comm_(comm), steps_(opts.autotune_steps),
        search_(tunables(opts), {.warmup = opts.autotune_warmup,
                                 .budget = std::max(opts.autotune_samples, 6) * 6,
                                 .candidates = std::clamp(opts.autotune_samples / 2, 2, 8)}) {
    if (opts.autotune_log.empty() || comm.rank() != 0) return;
    const int fd = open_descriptor(opts.autotune_log.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (fd >= 0) log_.reset(::fdopen(fd, "w"));
    if (log_ == nullptr) {
      if (fd >= 0) ::close(fd);
      fail(error_kind::invalid_argument, {assignment("HOROVOD_AUTOTUNE_LOG", opts.autotune_log), " cannot be written: ",
                                          std::strerror(errno), "; give a file in a directory that exists"});
    }
    write(search_.csv_header());
  }

  /// Called after a batch of `bytes` bytes, which has run, or was started on a device. At the end of a sample it is
  /// collective, and changes the cycle time and the fusion threshold. A step ends when the operation that ran just
  /// before the sample runs again. So a sample is a number of whole steps, including the program's work between them.
  void count(const std::vector<std::uint32_t>& ids, std::size_t bytes, std::chrono::microseconds& cycle_time,
             executor& execute) {
    if (search_.finished()) return;
    if (steps_seen_ < 0 || ++batches_ > most_batches) {  // begins, or begins again if that operation does not run again
      marker_ = ids.front();
      steps_seen_ = 0;
      batches_ = bytes_ = 0;
      began_ = clock::now();
      return;
    }
    bytes_ += bytes;
    if (std::find(ids.begin(), ids.end(), marker_) != ids.end()) ++steps_seen_;
    if (steps_seen_ < steps_) return;
    double score =
        static_cast<double>(bytes_) / std::chrono::duration<double, std::micro>(clock::now() - began_).count();
    auto* const at = reinterpret_cast<std::byte*>(&score);
    comm_.run(broadcast_call{at, at, sizeof score, 0});
    search_.record(score);
    write(search_.csv_row());
    steps_seen_ = -1;
    if (search_.finished() && comm_.rank() == 0) inform({"autotune: ", search_.verdict()});
    const std::vector<std::int64_t>& now = search_.propose();
    execute.threshold(static_cast<std::size_t>(now[0]));
    cycle_time = std::chrono::microseconds(now[1]);
  }

 private:
  struct closer {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };

  static std::chrono::microseconds cycle_of(const engine_options& opts) {
    return std::chrono::duration_cast<std::chrono::microseconds>(opts.cycle_time);
  }
  static tunable around(std::string name, std::vector<std::int64_t> values, std::int64_t standard, bool fixed) {
    values.push_back(standard);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    const auto at = std::find(values.begin(), values.end(), standard) - values.begin();
    return {std::move(name), std::move(values), static_cast<std::size_t>(at), fixed};
  }
  static std::vector<tunable> tunables(const engine_options& opts) {
    std::vector<std::int64_t> bytes{0};
    for (std::int64_t n = std::int64_t{1} << 18; n <= std::int64_t{1} << 28; n *= 4) bytes.push_back(n);
    return {around("fusion_threshold", bytes, static_cast<std::int64_t>(opts.fusion_threshold), opts.threshold_fixed),
            around("cycle_time_us", {0, 50, 200, 1000, 5000}, cycle_of(opts).count(), opts.cycle_fixed)};
  }
  void write(const std::string& text) {
    if (log_ == nullptr) return;
    std::fwrite(text.data(), 1, text.size(), log_.get());
    std::fflush(log_.get());
  }

  erased_transport& comm_;
  int steps_;
  tuner search_;
  std::unique_ptr<std::FILE, closer> log_;
  static constexpr std::size_t most_batches = 1'000'000;  // in a sample
  std::uint32_t marker_ = 0;
  int steps_seen_ = -1;
  std::size_t batches_ = 0, bytes_ = 0;
  clock::time_point began_{};
};

}  // namespace hvd::inline HVD_ABI::detail

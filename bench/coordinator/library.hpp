// bench/coordinator/library.hpp: one library under measurement, as the coordinator sees it: its ranks, their stage,
// their end.
#pragma once

#include <bench/backends/hvd.hpp>
#include <bench/coordinator/janitor.hpp>
#include <bench/coordinator/launchers.hpp>
#include <bench/options.hpp>
#include <bench/report/where.hpp>
#include <bench/stage.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace hvd::bench {

struct job_result {
  outcome state = outcome::none;
  std::string problem;          ///< why it is unsupported or failed
  std::uint64_t wrong = 0;      ///< over all ranks
  double seconds = 0;           ///< of all iterations, rewriting counted
  std::vector<double> samples;  ///< us of each iteration, over ranks as in the options
};

struct library_settings {
  int ranks = 2;
  std::uint64_t capacity = 2000;  ///< iterations in one job
  int cpus = 1;
  std::string cpu_list;  ///< to pin ranks to; empty: not
  averaging over_ranks = averaging::max;
  double start_seconds = 30;
  double limit_seconds = 20;
};

class Library {
 public:
  Library(launch how, library_settings settings, hvd_settings hvd);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  [[nodiscard]] const std::string& name() const { return how_.name; }
  [[nodiscard]] const std::string& description() const { return description_; }
  [[nodiscard]] const std::vector<rank_line>& ranks() const { return ranks_; }
  /// Why it is not measured (any more); empty if it runs.
  [[nodiscard]] const std::string& missing() const { return missing_; }

  /// Starts the ranks. On failure `missing` has the reason.
  bool start();
  /// One job on all ranks. A library that fails is ended, and started again for the next job, twice at most.
  job_result run(const job& j);
  /// Lets ranks end by themselves, then makes them.
  void stop() noexcept;

  /// Inside a launcher: the ranks above 0 come by themselves and find the stage by this name.
  void expect_others(std::string key) { key_ = std::move(key); }

 private:
  struct child {
    pid_t pid;
    int rank;  ///< -1: a launcher
    std::optional<int> status;
  };
  void spawn();
  pid_t spawn_one(int rank);
  /// Waits until `done` returns true. Returns an error, or an empty text.
  template <class Done>
  std::string wait(Done done, double seconds, const std::string& what);
  void collect();
  [[nodiscard]] std::string trouble();
  [[nodiscard]] std::string last_words() const;
  void kill_all() noexcept;

  launch how_;
  library_settings settings_;
  hvd_settings hvd_;
  std::unique_ptr<Stage> stage_;
  std::vector<child> children_;
  std::unique_ptr<Janitor> janitor_;  ///< of a command
  std::string description_, missing_, key_, stage_path_;
  std::vector<rank_line> ranks_;
  int output_ = -1;  ///< the output of a command
  int failures_ = 0;
};

}  // namespace hvd::bench

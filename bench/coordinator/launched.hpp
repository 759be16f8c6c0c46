// bench/coordinator/launched.hpp: hvd-bench inside mpiexec: each process that the launcher starts is one rank of hvd.
#pragma once

#include <bench/backends/hvd.hpp>
#include <bench/options.hpp>

#include <optional>
#include <string>

namespace hvd::bench {

struct launched {
  int rank = 0, size = 1;
  int local_size = 0;  ///< 0: not known from the launcher
  std::string key;     ///< names this job on this host: its ranks have one parent
};

/// Nothing if no MPI launcher started this process.
std::optional<launched> find_launcher();

/// Errors: usage_error for options that need ranks started by hvd-bench.
void check_launched(const launched& inside, const options& o);

/// Tells the place of the stage to ranks that a launcher started, until all have come.
class StageNotice {
 public:
  /// Does nothing without a key. Errors: std::runtime_error.
  StageNotice(const std::string& key, const std::string& stage);
  StageNotice(const StageNotice&) = delete;
  StageNotice& operator=(const StageNotice&) = delete;
  ~StageNotice();

 private:
  std::string path_;
};

/// The life of a rank above 0: finds rank 0's stage and serves. Returns the exit code.
int serve_launched(const launched& inside, const hvd_settings& settings, const std::string& cpu_list);

}  // namespace hvd::bench

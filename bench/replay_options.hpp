// bench/replay_options.hpp: the flags of hvd-bench engine.
#pragma once

#include <bench/options.hpp>

#include <string>

namespace CLI {
class App;
}

namespace hvd::bench {

class ReplayFlags {
 public:
  void add(CLI::App& app);
  /// Errors: usage_error.
  void read(replay& to) const;

 private:
  std::string backward_, jitter_, window_, seed_, idle_;
  bool on_cpu_ = false;
};

/// Flags that hvd-bench engine does not have. Errors: usage_error.
void check_replay(const options& o);

}  // namespace hvd::bench

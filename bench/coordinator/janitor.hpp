// bench/coordinator/janitor.hpp: cleans up after a launcher if the coordinator no longer can.
#pragma once

#include <string>

#include <sys/types.h>

namespace hvd::bench {

/// A folder for the files of one launcher, and a small process that outlives this one if it is killed: it then asks the
/// launcher's process group to end, makes it end after 3 s, and removes the folder. Otherwise the destructor does.
class Janitor {
 public:
  /// Errors: std::runtime_error.
  Janitor();
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;
  ~Janitor();

  [[nodiscard]] const std::string& folder() const { return folder_; }
  /// Which process group to end.
  void watch(pid_t group) const noexcept;

 private:
  [[noreturn]] void wait_and_clean(int pipe) const;

  std::string folder_;
  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace hvd::bench

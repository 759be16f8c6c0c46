// tests/support/timeline_reader.hpp: what is in a timeline, if it is strict JSON.
#pragma once

#include "support/require.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace hvd::test {

/// The lock of a timeline, as another process would hold it.
class held_lock {
 public:
  explicit held_lock(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    require(fd_ >= 0 && ::flock(fd_, LOCK_EX) == 0, [&] { return "cannot lock " + path; });
  }
  held_lock(const held_lock&) = delete;
  held_lock& operator=(const held_lock&) = delete;
  ~held_lock() { ::close(fd_); }

  [[nodiscard]] std::string text() const {
    std::string all;
    char block[65536];
    for (ssize_t n = 0; (n = ::pread(fd_, block, sizeof block, static_cast<off_t>(all.size()))) > 0;) {
      all.append(block, static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int fd_;
};

/// The file while nobody writes it.
inline std::string timeline_text(const std::string& path) { return held_lock(path).text(); }

/// All events. Throws unless the file is one strict JSON array of well-formed events that begins with the header.
inline std::vector<nlohmann::json> timeline_events(const std::string& path) {
  const std::string text = timeline_text(path);
  const nlohmann::json all = nlohmann::json::parse(text, nullptr, false);
  require(all.is_array() && !all.empty(), [&] { return path + " is no array of strict JSON:\n" + text; });
  for (const nlohmann::json& e : all) {
    const std::string phase = e.value("ph", "");
    const bool good = e.is_object() && phase.size() == 1 && e.at("pid").is_number_unsigned() &&
                      (phase == "E" || e.at("name").is_string()) && (phase == "M" || e.at("ts").is_number());
    require(good, [&] { return "a malformed event: " + e.dump(); });
  }
  require(all[0].at("args").contains("start_time_since_epoch_in_micros"),
          [&] { return "no header: " + all[0].dump(); });
  return all;
}

/// How many events of this phase, and name if one is given, there are.
inline std::size_t count(const std::vector<nlohmann::json>& events, const std::string& phase,
                         const std::string& name = {}) {
  std::size_t n = 0;
  for (const nlohmann::json& e : events) n += e.at("ph") == phase && (name.empty() || e.value("name", "") == name);
  return n;
}

}  // namespace hvd::test

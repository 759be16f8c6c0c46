// tests/campaign/fuzz/timeline.cpp: a file that is there already where a timeline is to be, and names of jobs and
// tensors in it.
//
// An input is the name of a job, up to a zero, and what is in the file, in which @ stands for the header of that job.
// Findings besides those of fuzz.hpp: a file that is not hvd's own and is changed; one that was refused and is changed;
// an append that does not end the array, or changes the events before it; a name that is no string of JSON.
#include <hvd/timeline/file.hpp>
#include <hvd/timeline/json_string.hpp>

#include "fuzz.hpp"

#include <sys/mman.h>

namespace {

constexpr std::string_view beginning =
    "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"hvd\",\"job\":";

/// A file in memory, by a path that works in this process alone.
struct file {
  int fd = ::memfd_create("hvd-fuzz-timeline", MFD_CLOEXEC);
  std::string path = "/proc/self/fd/" + std::to_string(fd);

  void write(std::string_view text) const {
    (void)!::ftruncate(fd, 0);
    (void)!::pwrite(fd, text.data(), text.size(), 0);
  }
  [[nodiscard]] std::string read() const {
    struct stat status {};
    ::fstat(fd, &status);
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    (void)!::pread(fd, text.data(), text.size(), 0);
    return text;
  }
};

/// What a string of JSON stands for; a finding if it is none.
std::string meaning(std::string_view json) {
  fuzz::require(json.size() >= 2 && json.front() == '"' && json.back() == '"', "no string of JSON");
  json = json.substr(1, json.size() - 2);
  std::string text;
  while (!json.empty()) {
    const std::size_t length = hvd::detail::utf8_length(json);
    fuzz::require(length != 0 && static_cast<unsigned char>(json[0]) >= 0x20 && json[0] != '"', "no text of JSON");
    if (json[0] != '\\') {
      text += json.substr(0, length);
      json.remove_prefix(length);
      continue;
    }
    fuzz::require(json.size() >= 2, "half an escape");
    if (json[1] != 'u') {
      fuzz::require(json[1] == '"' || json[1] == '\\', "an escape that is none");
      text += json[1];
      json.remove_prefix(2);
      continue;
    }
    fuzz::require(json.size() >= 6, "half an escape");
    const unsigned long code = std::stoul(std::string(json.substr(2, 4)), nullptr, 16);
    fuzz::require(code < 0x20 || code == 0xfffd, "an escape of something else");
    text += code < 0x20 ? std::string(1, static_cast<char>(code)) : "?";
    json.remove_prefix(6);
  }
  return text;
}

}  // namespace

FUZZ(in) {
  static const file& here = *new file;
  const std::string job(in.part('\0'));
  std::string quoted;
  hvd::detail::append_json_string(quoted, job);
  const std::string back = meaning(quoted);
  fuzz::require(back == job || quoted.find("\\ufffd") != std::string::npos, "another name");

  const std::string header = std::string(beginning) + quoted + ",\"start_time_since_epoch_in_micros\":";
  std::string before;
  for (const char c : in.all()) {
    if (c == '@') {
      before += header;
    } else {
      before += c;
    }
  }
  here.write(before);
  const bool ours = before.empty() || before.starts_with(beginning);
  const bool good = fuzz::accepts([&] {
    hvd::detail::timeline_file f(here.path, "rank 0 of 1", job, 1234, nullptr, nullptr);
    const std::string begun = here.read();
    fuzz::require(ours, "a file of somebody else was taken for a timeline");
    fuzz::require(begun.starts_with(header), "a file without its header");
    const std::string event = ",\n{\"ph\":\"i\",\"name\":" + quoted + "}";
    const auto done = f.append(event, std::chrono::seconds(1));
    const std::string after = here.read();
    fuzz::require(done != hvd::detail::timeline_file::outcome::busy, "a lock that nobody has");
    if (done == hvd::detail::timeline_file::outcome::failed) {
      fuzz::require(!f.problem().empty() && after == begun, "a failed append that is not explained, or left something");
      return;
    }
    const std::string tail = event + "\n]\n";
    fuzz::require(after.ends_with(tail), "an append that does not end the array");
    const std::string events = after.substr(0, after.size() - tail.size());
    fuzz::require(begun.starts_with(events), "other events than before");
    fuzz::require(f.append(event, std::chrono::seconds(1)) == hvd::detail::timeline_file::outcome::written, "no more");
    fuzz::require(here.read() == events + event + tail, "a second append that is not behind the first");
  });
  if (!good) fuzz::require(here.read() == before, "a file that was refused and is changed");
}
